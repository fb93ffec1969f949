"""Freshness: how an index with vectors keeps up with what is written."""
