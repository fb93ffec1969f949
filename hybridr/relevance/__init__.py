"""Relevance: what judgements and clicks say of a ranking.

Tuning chooses settings by judged queries, learning remembers judged queries, experiments compare two rankings
with live users. `clicks/` turns logs into judgements.
"""
