"""The hidden index of a source's rules: its name, and its newest version."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from pydantic import ValidationError

from ..errors import AccessDenied, DataError, NotFound
from .connection import Cluster, IndexLookup, path_of
from .record import IndexInfo, Record
from .record_parts import KeptRules

BESIDE_SOURCE = "-hybridr-rules"
NEWEST = {"version": {"order": "desc", "unmapped_type": "long"}}
NAMED = ["version", "job", "rules.name"]  # not the rules, which may be megabytes


def rules_index(info: IndexInfo) -> str:
    """Return the name of the hidden index of rules, which all indices with vectors of one source share."""
    return (info.record.source or info.name) + BESIDE_SOURCE


def newest_rules(cluster: Cluster, source: IndexInfo, view: IndexLookup | None = None) -> KeptRules | None:
    """Return the newest rules of a source as a record holds them; None without rules or the right to read.

    A `view` tells whether there are any. Rules outlive the indices with vectors that a rollback deletes.
    Raises DataError if they are malformed, since without them banned documents would be shown.
    """
    if view is not None and not view.indices(rules_index(source)):
        return None
    newest = newest_version(cluster, source)
    return newest if newest and newest.rules else None


def with_newest_rules(
    cluster: Cluster, info: IndexInfo, fallback: KeptRules | None
) -> Callable[[Record], Record]:
    """Return a function that puts the newest rules of an index's source into a record.

    It reads the rules at each call, since records are not written in the order of the versions. It uses
    `fallback` if no rules are stored, or without the right to read them.
    """

    def change(record: Record) -> Record:
        """Return the record with the newest rules."""
        newest = newest_version(cluster, info) or fallback
        return record.changed(rules=newest if newest and newest.rules else None)

    return change


def newest_version(cluster: Cluster, info: IndexInfo) -> KeptRules | None:
    """Return the newest stored version of the rules of an index's source, which may have no rule.

    None if none is stored, or without the right to read it. Raises DataError if it is malformed.
    """
    index, hits = rules_index(info), []
    with suppress(AccessDenied, NotFound):
        answer = cluster.search(index, {"size": 1, "sort": [NEWEST], "_source": NAMED}, every_shard=True)
        with cluster.reading_answer(path_of(index, "_search")):
            hits = answer["hits"]["hits"]
    if not hits:
        return None
    try:
        stored = hits[0]["_source"]
        return KeptRules(version=stored["version"], rules=len(stored.get("rules", ())), job=stored["job"])
    except (AttributeError, KeyError, TypeError, ValidationError):
        raise DataError(
            f"'{index}' holds a document that hybridr did not write",
            hint="mend it, or delete it and its rules",
        ) from None
