"""Clicks: what people chose in the results of their searches, as judgements; knows no encoder."""
