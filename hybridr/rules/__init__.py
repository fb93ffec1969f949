"""Rules: what people decided about single searches, beside all ranking."""
