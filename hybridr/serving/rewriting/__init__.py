"""Rewriting: how a client's own query is read, and ranked with vectors."""
