"""Evaluation: measures, significance and reports; knows no cluster and no torch."""
