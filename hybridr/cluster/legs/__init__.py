"""Legs: what finds candidates for a query, one file each."""
