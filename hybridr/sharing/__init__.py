"""Sharing: one job on an index that several processes work on."""
