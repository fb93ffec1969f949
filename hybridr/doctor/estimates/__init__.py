"""Estimates: the time, memory and disk that vectors for an index will take."""
