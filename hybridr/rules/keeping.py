"""Where rules are kept: in a hidden index beside their source, one document for each of the last versions.

A version is written whole and never changed. The record of every index with vectors of the source names the
one in force: a running server follows it as it follows all else, and an index without rules asks nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from ..cluster.connection import Cluster, as_json, path_of
from ..cluster.failures import understood
from ..cluster.record import IndexInfo
from ..cluster.side_indices import hidden_body, make_index
from ..errors import AccessDenied, ClusterError, DataError, NotFound
from .matching import NO_RULES, RuleBook
from .rule import Rule, read_rule

BESIDE_SOURCE = "-hybridr-rules"
BODY_OF_RULES = hidden_body({"version": {"type": "long"}})
MOST_RULES, MOST_PATTERNS, MOST_BYTES_OF_RULES = 20_000, 200, 20_000_000
VERSIONS_KEPT = 20
MOST_BOOKS = 8
ALREADY_THERE = 409

_books: dict[tuple[str, str, str], RuleBook] = {}


class RulesVersion(NamedTuple):
    """The rules of an index as they were from one change on: its number, whose it was, when, and all rules.

    `job` tells versions of the same number apart.
    """

    version: int = 0
    by: str = ""
    at: str = ""
    job: str = ""
    rules: tuple[Rule, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Give all as JSON values."""
        return {**self._asdict(), "rules": [one.to_json() for one in self.rules]}


def rules_index(info: IndexInfo) -> str:
    """Name the hidden index of the rules of an index: all that hold vectors of one source share it."""
    return (info.record.source or info.name) + BESIDE_SOURCE


def rules_in_force(cluster: Cluster, info: IndexInfo) -> RuleBook:
    """Give the rules that an index names, read once a version; those of none ask nobody.

    Raises AccessDenied where they may not be read, DataError where they are gone or no rules: without them
    what is banned would show.
    """
    if (told := info.record.rules) is None:
        return NO_RULES
    key = (cluster.url, rules_index(info), told.job)
    if key not in _books:
        found = kept_version(cluster, info, told.version)
        if found is None or found.job != told.job:
            raise DataError(
                f"the rules of '{info.name}' are not as they were written",
                hint=f"hybridr rules {info.record.source} import FILE   writes them anew",
            )
        _books[key] = RuleBook(found.rules)
        while len(_books) > MOST_BOOKS:
            _books.pop(next(iter(_books)), None)
    return _books[key]


def kept_version(cluster: Cluster, info: IndexInfo, version: int | None = None) -> RulesVersion | None:
    """Read a version of the rules, None: the newest; None where it is not there."""
    index = rules_index(info)
    wanted = {"match_all": {}} if version is None else {"ids": {"values": [str(version)]}}
    body = {"size": 1, "query": wanted, "sort": [{"version": {"order": "desc", "unmapped_type": "long"}}]}
    try:
        found = cluster.search(index, body, every_shard=True)
    except NotFound:
        return None
    except AccessDenied as error:
        raise AccessDenied(
            f"the rules of '{info.name}' may not be read: {error.message}",
            hint=f"give this user's role indices:data/read/search on {index}, as roles/search.json does",
            status=error.status,
        ) from None
    with understood(cluster.url, path_of(index, "_search")):
        hits = found["hits"]["hits"]
        return read_version(hits[0]["_source"]) if hits else None


def read_version(found: Mapping[str, Any]) -> RulesVersion:
    """Read a version; whoever may write there writes what he likes. Raises DataError."""
    rules = found.get("rules")
    if not isinstance(rules, list) or not isinstance(found.get("version"), int):
        raise DataError("the index of rules holds what hybridr did not write")
    read = tuple(read_rule(one, f"rule {number}") for number, one in enumerate(rules, 1))
    require_room(read)
    by, at, job = (str(found.get(name, "")) for name in ("by", "at", "job"))
    return RulesVersion(found["version"], by, at, job, read)


def require_room(rules: Sequence[Rule]) -> None:
    """Raise DataError for more rules than a search can look at."""
    patterns = sum(one.pattern is not None for one in rules)
    if len(rules) > MOST_RULES:
        raise DataError(f"these are {len(rules):,} rules, an index has at most {MOST_RULES:,}")
    if patterns > MOST_PATTERNS:
        raise DataError(
            f"{patterns:,} rules have a pattern, at most {MOST_PATTERNS} may: each is tried for every query",
            hint="text, words and prefix are looked up, whatever their number",
        )


def write_version(cluster: Cluster, info: IndexInfo, made: RulesVersion) -> bool:
    """Write a version; False where somebody else wrote one of this number first. Raises DataError for one too
    large, AccessDenied."""
    require_room(made.rules)
    index, content = rules_index(info), as_json(made.to_json())
    if len(content) > MOST_BYTES_OF_RULES:
        raise DataError(f"these rules have {len(content):,} bytes, at most {MOST_BYTES_OF_RULES:,} are kept")
    if made.version == 1:
        make_index(cluster, index, BODY_OF_RULES)
    try:
        path = path_of(index, "_create", str(made.version))
        cluster.request("PUT", path, content, {"refresh": "true"})
    except ClusterError as error:
        if error.status != ALREADY_THERE:
            raise
        return False
    if made.version > VERSIONS_KEPT:
        with suppress(ClusterError):  # what is older is in nobody's way
            cluster.request("DELETE", path_of(index, "_doc", str(made.version - VERSIONS_KEPT)))
    return True
