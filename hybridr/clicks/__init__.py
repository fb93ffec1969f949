"""Clicks: what people chose in the answers to their searches, as judgements; knows no encoder."""
