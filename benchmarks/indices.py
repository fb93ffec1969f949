"""Indices that studies make and ask of: judged queries, and texts cut into fields."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from hybridr.cluster.connection import Cluster, path_of
from hybridr.cluster.writing import BULK_BYTES, Action, MemoryRejects, group_by_bytes, write
from hybridr.evaluation.evaluation import checked_qrels
from hybridr.files.formats import qrels_file, read_qrels, read_queries
from hybridr.records import Document, Qrels, Query

QUERIES, SEED = 1_000, 13


def judged_sample(folder: Path) -> tuple[list[Query], Qrels]:
    """Read the judged queries of a collection, a random 1,000 where there are more."""
    qrels = checked_qrels(read_qrels(qrels_file(folder, "test")))
    queries = sorted(read_queries(folder, qrels), key=lambda query: query.query_id)
    if len(queries) > QUERIES:
        queries = random.Random(SEED).sample(queries, QUERIES)
    return queries, qrels


def create(cluster: Cluster, name: str, mapped: Mapping[str, Any]) -> None:
    """Make an index of three shards."""
    settings = {"number_of_shards": 3, "number_of_replicas": 0}
    cluster.request("PUT", path_of(name), {"settings": settings, "mappings": {"properties": mapped}})


def write_all(cluster: Cluster, name: str, actions: Iterable[Action]) -> None:
    """Write documents; none is refused."""
    for group in group_by_bytes(actions, BULK_BYTES):
        assert not write(cluster, name, group, rejects=MemoryRejects()).rejected
    cluster.refresh(name)


def sentences(text: str) -> list[str]:
    """Cut a text into sentences."""
    return [one for one in re.split(r"(?<=[.!?])\s+", text) if one]


def parts_of(document: Document, name: str) -> tuple[str, str, list[str], list[str]]:
    """Give title, lead, sentences of the body, and of the rest where a collection tells it from the body."""
    title, text = document.title, document.text
    text, _, terms = text.partition("Index terms:") if name == "cacm" else (text, "", "")
    told = sentences(text)
    if not title:
        title, told = " ".join(told[:1]), told[1:]
    lead, told = " ".join(told[:1]), told[1:]
    if name == "tldr_cmd":
        pairs = [one.partition(": ") for one in told]
        return title, lead, [first for first, _, _ in pairs], [last for _, _, last in pairs]
    if terms:
        return title, lead, told, terms.split(",")
    middle = (2 * len(told) + 2) // 3
    return title, lead, told[:middle], told[middle:]
