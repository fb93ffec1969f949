"""Targets: where vectors go, one file each."""
