"""Runners: how the shares of a reindex are worked on, one file each."""
