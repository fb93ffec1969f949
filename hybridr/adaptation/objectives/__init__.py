"""Objectives: what a training minimises, one file each."""
