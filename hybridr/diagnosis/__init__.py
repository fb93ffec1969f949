"""Diagnosis: what works here, what is known to go wrong, and how much a walk of the graph finds."""
