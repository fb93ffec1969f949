"""Similarities: how an index reads the words of queries and scores them, by its settings and mapping."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from .fields import TEXT_TYPES, mapping_of
from .record import IndexInfo

BM25, DEFAULT = "BM25", "default"
WITH_NORMS = {
    "text",
    "search_as_you_type",
}  # fields that BM25 scores by their length, unless they are told not to


class Similarity(NamedTuple):
    """The two numbers of BM25; OpenSearch's own unless told otherwise."""

    k1: float = 1.2
    b: float = 0.75

    def gain(self, *, old: bool) -> float:
        """Tell how much larger scores are than by `Similarity()` since OpenSearch 3, for a word that stands
        once in a text of mean length."""
        return (Similarity().k1 + 1) / (1.0 if old else self.k1 + 1)


def similarity_of(info: IndexInfo, name: str = DEFAULT) -> Similarity | None:
    """Read k1 and b of an index's similarity, its default one or another; None for one that is no BM25."""
    before = f"index.similarity.{name}."
    options = {
        key.removeprefix(before): value for key, value in info.settings.items() if key.startswith(before)
    }
    if options.get("type", BM25 if name == DEFAULT else name) != BM25:
        return None
    return Similarity(**{part: float(options[part]) for part in Similarity._fields if part in options})


def shared_similarity(info: IndexInfo, fields: Iterable[str]) -> Similarity | None:
    """Give the BM25 by which all of these fields are scored; None where there is no one such."""
    mappings = [mapping_of(info, field) for field in fields]
    if any(
        mapping.get("type", "text") not in WITH_NORMS or not mapping.get("norms", True)
        for mapping in mappings
    ):
        return None
    similarities = {similarity_of(info, mapping.get("similarity", DEFAULT)) for mapping in mappings}
    return similarities.pop() if len(similarities) == 1 else None


def search_analyzer_of(info: IndexInfo, field: str) -> str:
    """Name the analyser of queries where it may be another one than that of documents; else empty.

    The index may have one for the queries of all texts, which comes before a field's own for documents.
    """
    mapping = mapping_of(info, field)
    whole = any(key.startswith("index.analysis.analyzer.default_search.") for key in info.settings)
    usual = "default_search" if whole and mapping.get("type") in TEXT_TYPES else ""
    return str(mapping.get("search_analyzer", usual))


def read_as_one(info: IndexInfo, fields: Sequence[str]) -> bool:
    """Tell whether `combined_fields` takes these fields, and scores them as the index scores each of them."""
    mappings = {field: mapping_of(info, field) for field in fields}
    alike = {
        (search_analyzer_of(info, field) or mapping.get("analyzer", "default"), mapping.get("norms", True))
        for field, mapping in mappings.items()
    }
    return len(alike) == 1 and all(
        mapping.get("type") == "text" and "similarity" not in mapping for mapping in mappings.values()
    )
