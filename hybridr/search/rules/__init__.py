"""Rules: what people decided about single searches (pins, bans, filters), applied after all ranking."""
