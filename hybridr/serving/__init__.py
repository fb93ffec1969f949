"""Serving: how others ask, by the embedding server or through plain REST."""
