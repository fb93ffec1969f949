"""Evaluation of rankings: measures, significance tests and reports; needs no cluster and no torch."""
