"""Rewriting: what a client's own search asks for, and what becomes of it."""
