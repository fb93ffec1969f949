"""The weight of a query's terms in an index: the scale that makes BM25 scores of different queries alike."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from .cluster import Cluster, path_of

REMEMBERED, AT_ONCE = 10_000, 100  # queries
PLAIN_SCORES, OLD_FACTOR = (3, 0, 0), 2.2  # before 3.0 BM25 has Lucene's old factor k1 + 1


class IdfSums:
    """Give the sum of the idf of each query's different terms over the fields that the lexical leg searches.

    BM25 grows with it: a document with every term once, at an average length, has about this score. Terms
    are analysed and looked up by the server, in one shard, as its own scores are; sums are remembered by
    text.
    """

    def __init__(
        self, cluster: Cluster, index: str, fields: Sequence[str], *, remembered: int = REMEMBERED
    ) -> None:
        self.cluster, self.index, self.fields, self.remembered = cluster, index, list(fields), remembered
        self._known: OrderedDict[str, float] = OrderedDict()

    def of(self, texts: Sequence[str]) -> list[float]:
        """Give the sum of each text; 0 where no term is left after analysis."""
        unknown = [text for text in dict.fromkeys(texts) if text not in self._known]
        parts = (unknown[start : start + AT_ONCE] for start in range(0, len(unknown), AT_ONCE))
        found = {text: one for part in parts for text, one in zip(part, self._ask(part), strict=True)}
        sums = [found[text] if text in found else self._known[text] for text in texts]
        self._known |= found
        while len(self._known) > self.remembered:
            self._known.popitem(last=False)
        return sums

    def _ask(self, texts: Sequence[str]) -> list[float]:
        options = {
            "fields": self.fields, "term_statistics": True, "field_statistics": True,
            "positions": False, "offsets": False, "payloads": False,
        }  # fmt: skip
        docs = [{"doc": dict.fromkeys(self.fields, text)} | options for text in texts]
        path = path_of(self.index, "_mtermvectors")
        answers = self.cluster.request("POST", path, {"docs": docs})["docs"]
        # The root of the sum is what scores are divided by: hence the square of their factor.
        factor = 1.0 if self.cluster.version >= PLAIN_SCORES else OLD_FACTOR**2
        return [factor * sum(map(idf_sum, answer.get("term_vectors", {}).values())) for answer in answers]


def idf_sum(field: dict[str, Any]) -> float:
    """Add up Lucene's idf of a field's terms."""
    count = field.get("field_statistics", {}).get("doc_count", 0)
    return math.fsum(idf(term.get("doc_freq", 0), count) for term in field["terms"].values())


def idf(containing: int, documents: int) -> float:
    """Give ln(1 + (N - n + 0.5) / (n + 0.5)), Lucene's BM25Similarity."""
    return math.log(1 + (documents - containing + 0.5) / (containing + 0.5))
