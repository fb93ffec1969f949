"""Reads the hits of a `_search`: checks them, chooses the text to show, and fetches whole texts."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape
from itertools import islice
from typing import Any

from ..cluster.connection import Cluster
from ..cluster.failures import is_partial, reading_answer
from ..cluster.field_values import text_of
from ..cluster.fields import choose_text_fields
from ..cluster.reading import groups_of, sources_by_id
from ..cluster.record import IndexInfo
from ..encoders.passages import Span
from ..errors import ClusterError

READ_AT_ONCE = 500  # documents
LONGEST_FRAGMENT, LONGEST_PASSAGE = 500, 5_000
MARKS = ("<em>", "</em>")
PARTS = re.compile(r"</?em>|&#?\w{1,8};|.", re.DOTALL)


def checked_hits(answer: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the hits of a response.

    Raises ClusterError for a time-out, failed shards, and negative scores, which mark a hybrid query whose
    scores no pipeline combined.
    """
    with reading_answer("the cluster", "_search"):
        hits: list[dict[str, Any]] = answer["hits"]["hits"]
        if not all("_id" in hit and isinstance(hit["_score"], float | int | None) for hit in hits):
            raise ClusterError("the cluster's answer has hits without an id or with an odd score")
        partial = is_partial(answer)
    if partial:
        raise ClusterError("some shards did not answer the search", hint="GET _cat/shards?v", status=503)
    if any(hit["_score"] is not None and hit["_score"] < 0 for hit in hits):
        raise ClusterError(
            "the cluster returned raw hybrid scores: no search pipeline combined them",
            hint="is the plugin opensearch-neural-search on every node? hybridr doctor",
        )
    return hits


def shown_text(hit: dict[str, Any], fields: Sequence[str]) -> tuple[str, Span | None]:
    """Return the text to show for a hit, as HTML, and its span: the best of several passages, or else
    highlighted fragments.
    """
    text = text_of(hit.get("_source", {}), fields)
    passages = [passage for hits in hit.get("inner_hits", {}).values() for passage in hits["hits"]["hits"]]
    best = max(passages, key=lambda passage: passage["_score"], default=None)
    span: Span | None = (best["_source"]["start"], best["_source"]["end"]) if best else None
    # A text that a client has changed since may be shorter than its passages were.
    if span and span != (0, len(text)) and text[slice(*span)]:
        return escape(text[slice(*span)][:LONGEST_PASSAGE]), span
    marked = hit.get("highlight", {})
    return " … ".join(shortened(part) for field in fields for part in marked.get(field, ())), None


def fetch_texts(
    cluster: Cluster, info: IndexInfo, doc_ids: Sequence[str], fields: Sequence[str] = ()
) -> dict[str, str]:
    """Return the texts of documents by id: of the given fields, else of those that the encoder reads."""
    texts: dict[str, str] = {}
    fields = fields or info.record.fields or choose_text_fields(cluster, info)
    for group in groups_of(doc_ids, READ_AT_ONCE):
        sources = sources_by_id(cluster, info, group)
        texts |= {doc_id: text_of(source, fields) for doc_id, source in sources.items()}
    return texts


def shortened(fragment: str) -> str:
    """Return a highlighted HTML fragment of at most 500 visible characters; entities and marks stay whole."""
    if len(fragment) <= LONGEST_FRAGMENT:
        return fragment
    parts = PARTS.finditer(fragment)
    visible = (part for part in parts if part[0] not in MARKS)
    end = next(islice(visible, LONGEST_FRAGMENT, None), None)
    if end is None:
        return fragment
    excerpt = fragment[: end.start()]
    unclosed = excerpt.count(MARKS[0]) > excerpt.count(MARKS[1])
    return f"{excerpt}{MARKS[1] * unclosed} …"
