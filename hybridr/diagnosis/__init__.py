"""Diagnosis: what works here, what is known to go wrong, what an index holds, and what the graph finds."""
