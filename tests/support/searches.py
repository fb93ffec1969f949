"""Searches without a cluster, for servers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from hybridr.cluster.record import IndexInfo, Record
from hybridr.records import Hits
from hybridr.search.rules.matching import MatchedRules, RuleBook


class StandInSearch:
    """Has what a server needs of a search, and finds nothing."""

    lexical_fields = ("text",)
    fusion = "absolute"
    ruling = staticmethod(MatchedRules)
    rules = RuleBook()
    reranked_by: tuple[str, ...] = ()
    reordering = SimpleNamespace(late_remarks=lambda hits: [])
    signals = SimpleNamespace(reads_tokens=False)
    context: Any = SimpleNamespace(plain=None)
    analysis: Any = SimpleNamespace()
    info = IndexInfo("docs", {}, {}, {}).with_record(Record(vector_field="v"))

    def __init__(self, cluster, index, encoder, mode="hybrid", *, settings=None) -> None:
        self.cluster, self.encoder, self.mode = cluster, encoder, mode

    def using(self, mode):
        return type(self)(self.cluster, "", self.encoder, mode)

    def __call__(self, text, k, **options):
        return Hits()
