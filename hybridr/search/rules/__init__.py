"""Rules: what people decided about single searches, applied after all ranking."""
