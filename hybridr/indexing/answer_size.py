"""How much larger answers become by what hybridr adds to documents, and how a client leaves that out.

Vectors stay in `_source`. A mapping that excludes them makes answers as small as before, but then a client's
partial update, `_update_by_query` or `_reindex` loses them, since all three write what `_source` holds: seen
on OpenSearch 2.19.1 and 3.6.0 and on Elasticsearch 8.15.0 (k-NN#1694, k-NN#3536, elasticsearch#137173).
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from ..cluster.connection import Cluster, as_json
from ..cluster.limits import result_window
from ..cluster.record import MARK_FIELD, IndexInfo, Record
from .representations import fields_of, representations_in
from .settings import ReindexSettings

HITS = 10
NUMBER_BYTES = {"byte": 3.3}
FLOAT_BYTES = 12.2
"""Characters of a number of a vector in an answer, in the mean of normal numbers, with its comma."""


def added_fields(named: ReindexSettings | Record) -> list[str]:
    """Return the fields of `_source` that hold what hybridr adds to a document."""
    if named.in_place or named.target == "in_place":
        return [*fields_of(named), MARK_FIELD]
    return [name for kind in representations_in(named) if not kind.hidden for name in kind.fields(named)]


def expected_answer(cluster: Cluster, index: IndexInfo, numbers: float, settings: ReindexSettings) -> str:
    """Return a line for a dry run: the size of an answer now, and with so many `numbers` more a document."""
    fields = added_fields(settings)
    now = answer_bytes(cluster, index, fields)
    each = NUMBER_BYTES.get(settings.vectors, FLOAT_BYTES)
    return (
        f"an answer of {HITS} whole documents grows from {kilobytes(now)} to about "
        f"{kilobytes(now + round(HITS * numbers * each))}; {remedy(fields)}"
    )


def measured_answer(cluster: Cluster, index: IndexInfo, record: Record) -> str:
    """Return a line for the end of a run: the size of an answer with what was added, and without it."""
    fields = added_fields(record)
    whole, without = answer_bytes(cluster, index), answer_bytes(cluster, index, fields)
    return (
        f"an answer of {HITS} whole documents has {kilobytes(whole)}, {kilobytes(without)} without what was "
        f"added; {remedy(fields)}"
    )


def remedy(fields: Sequence[str]) -> str:
    """Return what a client types to get documents as before."""
    left_out = json.dumps({"excludes": list(fields)})
    return f'clients leave it out by "_source": {left_out}'


def answer_bytes(cluster: Cluster, index: IndexInfo, excluded: Sequence[str] = ()) -> int:
    """Return the size of an answer with HITS whole documents, less the excluded fields.

    Where a page may not be so large, it is that of a smaller page, in proportion.
    """
    size = min(HITS, result_window(index))
    body = {"size": size, "_source": {"excludes": list(excluded)}, "query": {"match_all": {}}}
    return round(len(as_json(cluster.search(index, body))) * HITS / size)


def kilobytes(size: int) -> str:
    """Write a size in kB."""
    return f"{size / 1000:,.1f} kB"
