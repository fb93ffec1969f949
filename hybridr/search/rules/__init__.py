"""Rules: what people decided about single searches (pins, bans, filters, replacements), applied after all
ranking.
"""
