"""The weight of a query's terms in an index: the scale that makes BM25 scores of different queries alike."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, TypeAlias

from ..cluster.connection import Cluster, path_of
from ..evaluation.bm25 import idf

REMEMBERED, AT_ONCE = 10_000, 100  # queries
PLAIN_SCORES, OLD_FACTOR = (3, 0, 0), 2.2  # before 3.0 BM25 has Lucene's old factor k1 + 1


Vectors: TypeAlias = dict[str, Any]
"""Field -> its terms with their statistics, as the server gives them."""


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
        known = {text: self._known.get(text) for text in texts}  # another thread may forget one meanwhile
        unknown = [text for text, one in known.items() if one is None]
        parts = (unknown[start : start + AT_ONCE] for start in range(0, len(unknown), AT_ONCE))
        found = {text: one for part in parts for text, one in zip(part, self._ask(part), strict=True)}
        self._known |= found
        while len(self._known) > self.remembered:
            self._known.popitem(last=False)
        sums = {text: one for text, one in known.items() if one is not None} | found
        return [sums[text] for text in texts]

    def _ask(self, texts: Sequence[str]) -> list[float]:
        found = text_vectors(self.cluster, self.index, self.fields, texts)
        # The root of the sum is what scores are divided by: hence the square of their factor.
        factor = 1.0 if self.cluster.version >= PLAIN_SCORES else OLD_FACTOR**2
        return [factor * sum(map(idf_sum, vectors.values())) for vectors in found]


def text_vectors(cluster: Cluster, index: str, fields: Sequence[str], texts: Sequence[str]) -> list[Vectors]:
    """Give the terms of each text, by field, with the frequencies they have in the index."""
    wanted = [{"doc": dict.fromkeys(fields, text)} for text in texts]
    answers = term_vectors(cluster, index, fields, wanted)
    return [answer.get("term_vectors", {}) for answer in answers]


def term_vectors(
    cluster: Cluster, index: str, fields: Sequence[str], wanted: Sequence[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Ask for the terms and statistics of documents, or of texts given in their place."""
    if not wanted:
        return []
    options = {
        "fields": list(fields),
        "term_statistics": True,
        "field_statistics": True,
        "positions": False,
        "offsets": False,
        "payloads": False,
    }
    body = {"docs": [one | options for one in wanted]}
    found: list[dict[str, Any]] = cluster.request("POST", path_of(index, "_mtermvectors"), body)["docs"]
    return found


def idf_sum(field: dict[str, Any]) -> float:
    """Add up Lucene's idf of a field's terms."""
    count = field.get("field_statistics", {}).get("doc_count", 0)
    return math.fsum(idf(term.get("doc_freq", 0), count) for term in field["terms"].values())
