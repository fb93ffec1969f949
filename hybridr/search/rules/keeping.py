"""Where rules are kept: in a hidden index beside their source, one document for each of the last versions.

A version is written whole and never changed. The record of every index with vectors of the source names the
one in force: a running server follows it as it follows all else, and an index without rules asks nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import Any, NamedTuple

from ...cluster.connection import Cluster, as_json, path_of
from ...cluster.default_pipeline import hidden_body, make_index
from ...cluster.failures import understood
from ...cluster.record import IndexInfo
from ...errors import AccessDenied, ClusterError, DataError, NotFound
from ...files.manifest import fingerprint
from .filters import comparisons
from .matching import MOST_CLAUSES, NO_RULES, RuleBook
from .patterns import MOST_PATTERNS, MOST_PROGRAM, MOST_PROGRAMS, program_size
from .rule import LONGEST_TEXT, Rule, read_rule

BESIDE_SOURCE = "-hybridr-rules"
BODY_OF_RULES = hidden_body({"version": {"type": "long"}})
MOST_RULES, MOST_BYTES_OF_RULES = 20_000, 20_000_000
VERSIONS_KEPT = 20
MOST_BOOKS = 8
BAD_REQUEST, ALREADY_THERE = 400, 409

_books: dict[tuple[str, str, str, str], RuleBook] = {}


class RulesVersion(NamedTuple):
    """The rules of an index as they were from one change on: its number, whose it was, when, and all rules.

    `job` tells versions of the same number apart. `left_out` maps stored rules that cannot be used to the
    reason.
    """

    version: int = 0
    by: str = ""
    at: str = ""
    job: str = ""
    rules: tuple[Rule, ...] = ()
    left_out: Mapping[str, str] = MappingProxyType({})

    def to_json(self) -> dict[str, Any]:
        """Give all as JSON values."""
        rules = [rule.to_json() for rule in self.rules]
        return {**self._asdict(), "rules": rules, "left_out": dict(self.left_out)}


def rules_index(info: IndexInfo) -> str:
    """Name the hidden index of the rules of an index: all that hold vectors of one source share it."""
    return (info.record.source or info.name) + BESIDE_SOURCE


def rules_in_force(cluster: Cluster, info: IndexInfo) -> RuleBook:
    """Give the rules that an index names, read once a version; those of none ask nobody.

    Raises AccessDenied where they may not be read, DataError where they are gone or no rules: without them
    what is banned would show. A pattern beyond the bounds and a filter that the index refuses are left out,
    and the book says so.
    """
    if (rules := info.record.rules) is None:
        return NO_RULES
    mapped = fingerprint(info.mappings.get("properties"))
    key = (cluster.url, info.name, rules.job, mapped)
    if key not in _books:
        version = kept_version(cluster, info, rules.version)
        if version is None or version.job != rules.job:
            raise DataError(
                f"the rules of '{info.name}' are not as they were written",
                hint=f"hybridr rules {info.record.source} import FILE   writes them anew",
            )
        refused = refused_filters(cluster, info, version.rules)
        _books[key] = RuleBook(without_filters(version.rules, refused), {**version.left_out, **refused})
        while len(_books) > MOST_BOOKS:
            _books.pop(next(iter(_books)), None)
    return _books[key]


def kept_version(cluster: Cluster, info: IndexInfo, version: int | None = None) -> RulesVersion | None:
    """Read a version of the rules, None: the newest; None where it is not there."""
    index = rules_index(info)
    query = {"match_all": {}} if version is None else {"ids": {"values": [str(version)]}}
    body = {"size": 1, "query": query, "sort": [{"version": {"order": "desc", "unmapped_type": "long"}}]}
    try:
        answer = cluster.search(index, body, every_shard=True)
    except NotFound:
        return None
    except AccessDenied as error:
        raise AccessDenied(
            f"the rules of '{info.name}' may not be read: {error.message}",
            hint=f"give this user's role indices:data/read/search on {index}, as roles/search.json does",
            status=error.status,
        ) from None
    with understood(cluster.url, path_of(index, "_search")):
        hits = answer["hits"]["hits"]
        return read_version(hits[0]["_source"]) if hits else None


def read_version(source: Mapping[str, Any]) -> RulesVersion:
    """Read a version; whoever may write there writes what he likes. Raises DataError."""
    rules = source.get("rules")
    if not isinstance(rules, list) or not isinstance(source.get("version"), int):
        raise DataError("the index of rules holds what hybridr did not write")
    left_out = excess_patterns(rules)
    usable = {number: rule for number, rule in enumerate(rules, 1) if number not in left_out}
    read = tuple(read_rule(rule, f"rule {number}") for number, rule in usable.items())
    require_room(read)
    by, at, job = (str(source.get(name, "")) for name in ("by", "at", "job"))
    names = {str(rules[number - 1].get("name", number))[:100]: why for number, why in left_out.items()}
    return RulesVersion(source["version"], by, at, job, read, names)


def excess_patterns(rules: Sequence[Any]) -> dict[int, str]:
    """Return which stored rules have patterns beyond the bounds, by their numbers from 1, and why."""
    excess: dict[int, str] = {}
    patterns = programs = 0
    for number, rule in enumerate(rules, 1):
        pattern = rule.get("pattern") if isinstance(rule, Mapping) else None
        if not isinstance(pattern, str):
            continue
        patterns += 1
        size = size_of_pattern(pattern) if patterns <= MOST_PATTERNS else 0
        if size > MOST_PROGRAM:
            excess[number] = f"its pattern's repeats are too large, {MOST_PROGRAM:,} parts are the most"
        elif patterns > MOST_PATTERNS or programs + size > MOST_PROGRAMS:
            excess[number] = f"{MOST_PATTERNS} patterns of {MOST_PROGRAMS:,} parts in all are the most"
        else:
            programs += size
    return excess


def size_of_pattern(pattern: str) -> int:
    """Return the size of a pattern's program, a size beyond all bounds where that cannot be told."""
    try:
        return program_size(pattern) if len(pattern) <= LONGEST_TEXT else MOST_PROGRAM + 1
    except ValueError:
        return MOST_PROGRAM + 1


def refused_filters(cluster: Cluster, info: IndexInfo, rules: Sequence[Rule]) -> dict[str, str]:
    """Return the rules whose filters the index refuses, with its reason: a value that is no number or date.

    Several are asked in one search, and one by one where that is refused.
    """
    groups: list[list[Rule]] = [[]]
    clauses = 0
    for rule in rules:
        if rule.filter is not None:
            count = sum(1 for _ in comparisons(rule.filter))
            if clauses + count > MOST_CLAUSES:
                groups.append([])
                clauses = 0
            groups[-1].append(rule)
            clauses += count
    refused: dict[str, str] = {}
    while groups:
        group = groups.pop()
        if group and (reason := refusal(cluster, info, [rule.filter or {} for rule in group])):
            if len(group) == 1:
                refused[group[0].name] = f"its filter is refused: {reason}"[:300]
            else:
                half = len(group) // 2
                groups += [group[:half], group[half:]]
    return refused


def refusal(cluster: Cluster, info: IndexInfo, filters: Sequence[Mapping[str, Any]]) -> str:
    """Return why an index refuses one of these filters; empty where it takes them all."""
    clauses = [{"bool": {"filter": [clause]}} for clause in filters]
    try:
        cluster.search(info, {"size": 0, "query": {"bool": {"should": clauses}}, "track_total_hits": False})
    except ClusterError as error:
        if error.status != BAD_REQUEST:
            raise
        return error.message
    return ""


def without_filters(rules: Sequence[Rule], refused: Mapping[str, str]) -> list[Rule]:
    """Return the rules without filters that are refused; one that does nothing else is gone."""
    usable = [rule.model_copy(update={"filter": None}) if rule.name in refused else rule for rule in rules]
    return [rule for rule in usable if rule.actions]


def require_room(rules: Sequence[Rule]) -> None:
    """Raise DataError for more rules than a search can look at."""
    if len(rules) > MOST_RULES:
        raise DataError(f"these are {len(rules):,} rules, an index has at most {MOST_RULES:,}")
    sizes = [program_size(rule.pattern) for rule in rules if rule.pattern is not None]
    if len(sizes) > MOST_PATTERNS:
        raise DataError(
            f"{len(sizes):,} rules have a pattern, {MOST_PATTERNS} may: each is tried for every query",
            hint="text, words and prefix are looked up, whatever their number",
        )
    if sum(sizes) > MOST_PROGRAMS:
        raise DataError(
            f"the patterns of these rules have {sum(sizes):,} parts together, {MOST_PROGRAMS:,} are the most",
            hint="smaller counts in {}, or text, words and prefix",
        )


def write_version(cluster: Cluster, info: IndexInfo, version: RulesVersion) -> bool:
    """Write a version; False where somebody else wrote one of this number first. Raises DataError for one too
    large, AccessDenied."""
    require_room(version.rules)
    index, content = rules_index(info), as_json(version.to_json())
    if len(content) > MOST_BYTES_OF_RULES:
        raise DataError(f"these rules have {len(content):,} bytes, at most {MOST_BYTES_OF_RULES:,} are kept")
    if version.version == 1:
        make_index(cluster, index, BODY_OF_RULES)
    try:
        path = path_of(index, "_create", str(version.version))
        cluster.request("PUT", path, content, {"refresh": "true"})
    except ClusterError as error:
        if error.status != ALREADY_THERE:
            raise
        return False
    if version.version > VERSIONS_KEPT:
        with suppress(ClusterError):  # what is older is in nobody's way
            cluster.request("DELETE", path_of(index, "_doc", str(version.version - VERSIONS_KEPT)))
    return True
