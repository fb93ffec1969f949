"""The hidden index of a source's rules: its name, and the version that a new index begins with."""

from __future__ import annotations

from contextlib import suppress

from pydantic import ValidationError

from ..errors import AccessDenied, DataError, NotFound
from .connection import Cluster, path_of
from .record import IndexInfo
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
    index, hits = rules_index(source), []
    with suppress(AccessDenied, NotFound):
        answer = cluster.search(index, {"size": 1, "sort": [NEWEST], "_source": NAMED}, every_shard=True)
        with cluster.understood(path_of(index, "_search")):
            hits = answer["hits"]["hits"]
    if not hits:
        return None
    try:
        held = hits[0]["_source"]
        rules = len(held.get("rules", ()))
        return KeptRules(version=held["version"], rules=rules, job=held["job"]) if rules else None
    except (AttributeError, KeyError, TypeError, ValidationError):
        raise DataError(
            f"'{index}' holds what hybridr did not write", hint="mend it, or delete it and its rules"
        ) from None
