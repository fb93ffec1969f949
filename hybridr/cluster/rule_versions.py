"""The hidden index of a source's rules: its name, and the version that a new index begins with."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from pydantic import ValidationError

from ..errors import AccessDenied, DataError, NotFound
from .connection import Cluster, path_of
from .record import IndexInfo, Record
from .record_parts import KeptRules

BESIDE_SOURCE = "-hybridr-rules"
NEWEST = {"version": {"order": "desc", "unmapped_type": "long"}}
NAMED = ["version", "job", "rules.name"]  # a document may have megabytes


def rules_index(info: IndexInfo) -> str:
    """Return the name of the hidden index of rules, which all indices with vectors of one source share."""
    return (info.record.source or info.name) + BESIDE_SOURCE


def newest_rules(cluster: Cluster, source: IndexInfo) -> KeptRules | None:
    """Return the newest rules of a source as a record names them; None if there are none, or without the
    right to look.

    They outlive the indices with vectors that a rollback drops. Raises DataError if they are malformed:
    without them banned documents would be shown.
    """
    newest = newest_version(cluster, source)
    return newest if newest and newest.rules else None


def with_newest_rules(
    cluster: Cluster, info: IndexInfo, fallback: KeptRules | None
) -> Callable[[Record], Record]:
    """Return a change of a record that puts the newest rules of an index's source in force.

    They are read whenever the change is made: records are not written in the order of the versions. The
    `fallback` is for where none are stored, or without the right to look.
    """

    def change(record: Record) -> Record:
        """Return the record with the rules that are the newest now."""
        newest = newest_version(cluster, info) or fallback
        return record.changed(rules=newest if newest and newest.rules else None)

    return change


def newest_version(cluster: Cluster, info: IndexInfo) -> KeptRules | None:
    """Return the newest stored version of the rules of an index's source, which may have no rule.

    None if none is stored, or without the right to look. Raises DataError if it is malformed.
    """
    index, hits = rules_index(info), []
    with suppress(AccessDenied, NotFound):
        answer = cluster.search(index, {"size": 1, "sort": [NEWEST], "_source": NAMED}, every_shard=True)
        with cluster.reading_answer(path_of(index, "_search")):
            hits = answer["hits"]["hits"]
    if not hits:
        return None
    try:
        held = hits[0]["_source"]
        return KeptRules(version=held["version"], rules=len(held.get("rules", ())), job=held["job"])
    except (AttributeError, KeyError, TypeError, ValidationError):
        raise DataError(
            f"'{index}' holds what hybridr did not write", hint="mend it, or delete it and its rules"
        ) from None
