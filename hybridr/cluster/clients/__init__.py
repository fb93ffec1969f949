"""Clients: what speaks to a server, one file each."""
