"""Stages: a reindex in three parts with files between them, for indices too large for one run."""
