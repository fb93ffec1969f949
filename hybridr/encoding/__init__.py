"""Encoding: texts to vectors."""
