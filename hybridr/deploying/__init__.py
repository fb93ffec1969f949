"""Deploying: what a cluster keeps so that plain REST asks an index with vectors."""
