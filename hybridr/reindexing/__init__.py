"""Reindexing: vectors into an index, verified, resumable, and undone."""
