"""Adaptation: everything that trains."""
