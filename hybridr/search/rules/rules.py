"""Stores the rules of an index: in a hidden index beside its source, one document a version.

A version is written whole and never changed. The record of every index with vectors of the source names the
version in force, so that a running server sees a new version, and an index without rules costs no request.
"""

from __future__ import annotations

import getpass
import secrets
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from shlex import quote
from types import MappingProxyType
from typing import Any, NamedTuple

from ...cluster.aliases import resolve_complete
from ...cluster.connection import Cluster, hidden_index_body, json_bytes, make_index, path_of
from ...cluster.destinations import claiming_indices, rewrite
from ...cluster.reading import hits_by_id
from ...cluster.record import IndexInfo
from ...cluster.record_parts import KeptRules
from ...cluster.rule_versions import NEWEST, rules_index, with_newest_rules
from ...errors import AccessDenied, ClusterError, DataError, NotFound
from ...files.formats import read_jsonl
from ...files.local import fingerprint
from .matching import MAX_CLAUSES, NO_RULES, RuleBook
from .rule import (
    LONGEST_TEXT,
    MAX_PATTERNS,
    MAX_PROGRAM_SIZE,
    MAX_TOTAL_PROGRAM_SIZE,
    Rule,
    clause_count,
    program_size,
    read_rule,
    require_quick,
)

BODY_OF_RULES = hidden_index_body({"version": {"type": "long"}})
MAX_RULES, MAX_RULES_BYTES = 20_000, 20_000_000
VERSIONS_KEPT = 20
MAX_BOOKS = 8
EDIT_ROUNDS, EDIT_WAIT_S = 5, 0.2
"""Attempts of an edit if other editors write first; each waits so many seconds longer than the last."""
MAX_LOOKED_UP = 1_000  # pinned documents whose existence is checked
BAD_REQUEST, ALREADY_THERE = 400, 409

_books: dict[tuple[str, str, str, str], RuleBook] = {}


class RulesVersion(NamedTuple):
    """All rules of an index as of one change: version number, author and time of the change.

    `job` tells versions with the same number apart. `left_out` maps the names of stored rules that cannot be
    used to the reason. `excess` are stored rules, as they are, whose patterns exceed the limits.
    """

    version: int = 0
    by: str = ""
    at: str = ""
    job: str = ""
    rules: tuple[Rule, ...] = ()
    left_out: Mapping[str, str] = MappingProxyType({})
    excess: tuple[Mapping[str, Any], ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the version as JSON values."""
        rules, excess = [rule.to_json() for rule in self.rules], list(map(dict, self.excess))
        return {**self._asdict(), "rules": rules, "left_out": dict(self.left_out), "excess": excess}

    def stored(self) -> dict[str, Any]:
        """Return the document that holds the version, with the rules in excess behind the others."""
        values = {name: getattr(self, name) for name in ("version", "by", "at", "job")}
        return {**values, "rules": [*(rule.to_json() for rule in self.rules), *self.excess]}

    def without(self, names: Collection[str]) -> RulesVersion:
        """Return the version without the rules of these names."""
        return self._replace(
            rules=tuple(rule for rule in self.rules if rule.name not in names),
            excess=tuple(rule for rule in self.excess if rule.get("name") not in names),
        )


def rules_in_force(cluster: Cluster, info: IndexInfo) -> RuleBook:
    """Return the rules that the record of an index names, cached by version; no request if it names none.

    Raises AccessDenied if the user may not read them, and DataError if they are missing or unreadable:
    without them banned documents would be shown. Patterns beyond the limits and filters that the index
    refuses are left out, with a remark.
    """
    if (rules := info.record.rules) is None:
        return NO_RULES
    mapping_key = fingerprint(info.mappings.get("properties"))
    key = (cluster.url, info.name, rules.job, mapping_key)
    if key not in _books:
        version = fetch_version(cluster, info, rules.version)
        if version is None or version.job != rules.job:
            raise DataError(
                f"the rules of '{info.name}' are not as they were written",
                hint=f"hybridr rules {quote(info.record.source)} import FILE   writes them anew",
            )
        refusals = find_refused_filters(cluster, info, version.rules)
        changes = {name: {"filter": None} for name in refusals}
        accepted = [rule.model_copy(update=changes.get(rule.name)) for rule in version.rules]
        usable = [rule for rule in accepted if rule.actions]  # a refused filter may be the only action
        _books[key] = RuleBook(usable, {**version.left_out, **refusals})
        while len(_books) > MAX_BOOKS:
            _books.pop(next(iter(_books)), None)
    return _books[key]


def fetch_version(cluster: Cluster, info: IndexInfo, version: int | None = None) -> RulesVersion | None:
    """Return a stored version of the rules, the newest if `version` is None; None if there is none.

    Raises AccessDenied with the missing right, DataError for a malformed version.
    """
    index = rules_index(info)
    query = {"match_all": {}} if version is None else {"ids": {"values": [str(version)]}}
    body = {"size": 1, "query": query, "sort": [NEWEST]}
    try:
        answer = cluster.search(index, body, every_shard=True)
    except NotFound:
        return None
    except AccessDenied as error:
        raise AccessDenied(
            f"the rules of '{info.name}' cannot be read: {error.message}",
            hint=f"give this user's role indices:data/read/search on {index}, as roles/search.json does",
            status=error.status,
        ) from None
    with cluster.reading_answer(path_of(index, "_search")):
        hits = answer["hits"]["hits"]
        return read_version(hits[0]["_source"]) if hits else None


def read_version(source: Mapping[str, Any]) -> RulesVersion:
    """Return a version from its stored document, which other programs may have written. Raises DataError if
    it is malformed.
    """
    rules = source.get("rules")
    if not isinstance(rules, list) or not isinstance(source.get("version"), int):
        raise DataError("the index of rules holds a document that hybridr did not write")
    excess = excess_patterns(rules)
    parsed = tuple(
        read_rule(rule, f"rule {number}") for number, rule in enumerate(rules, 1) if number not in excess
    )
    require_room(parsed)
    by, at, job = (str(source.get(name, "")) for name in ("by", "at", "job"))
    left_out = {str(rules[number - 1].get("name", number))[:100]: reason for number, reason in excess.items()}
    stored_excess = tuple(rules[number - 1] for number in excess)
    return RulesVersion(source["version"], by, at, job, parsed, left_out, stored_excess)


def excess_patterns(rules: Sequence[Any]) -> dict[int, str]:
    """Return the stored rules whose patterns exceed the limits: number (from 1) -> reason."""
    excess: dict[int, str] = {}
    too_many = f"at most {MAX_PATTERNS} patterns of {MAX_TOTAL_PROGRAM_SIZE:,} parts in all are used"
    patterns = programs = 0
    for number, rule in enumerate(rules, 1):
        pattern = rule.get("pattern") if isinstance(rule, Mapping) else None
        if not isinstance(pattern, str):
            continue
        patterns += 1
        if patterns > MAX_PATTERNS:
            excess[number] = too_many
            continue
        try:
            size = program_size(pattern) if len(pattern) <= LONGEST_TEXT else MAX_PROGRAM_SIZE + 1
        except ValueError:
            size = MAX_PROGRAM_SIZE + 1
        if size > MAX_PROGRAM_SIZE:
            excess[number] = f"its pattern is too complex, a program has at most {MAX_PROGRAM_SIZE:,} parts"
        elif programs + size > MAX_TOTAL_PROGRAM_SIZE:
            excess[number] = too_many
        else:
            programs += size
    return excess


def find_refused_filters(cluster: Cluster, info: IndexInfo, rules: Sequence[Rule]) -> dict[str, str]:
    """Return the rules whose filters the index refuses: name -> reason, such as a value that is not a date.

    Several filters are tried in one search; a refused group is split in half.
    """
    groups: list[list[Rule]] = [[]]  # the first may stay empty
    clauses = 0
    for rule in rules:
        if rule.filter is not None:
            count = clause_count(rule.filter)
            if clauses + count > MAX_CLAUSES:
                groups.append([])
                clauses = 0
            groups[-1].append(rule)
            clauses += count
    refusals: dict[str, str] = {}
    while groups:
        group = groups.pop()
        if group and (reason := try_filters(cluster, info, [rule.filter or {} for rule in group])):
            if len(group) == 1:
                refusals[group[0].name] = f"its filter is refused: {reason}"[:300]
            else:
                half = len(group) // 2
                groups += [group[:half], group[half:]]
    return refusals


def try_filters(cluster: Cluster, info: IndexInfo, filters: Sequence[Mapping[str, Any]]) -> str:
    """Return why an index refuses one of these filters; empty if it accepts all."""
    clauses = [{"bool": {"filter": [clause]}} for clause in filters]
    try:
        cluster.search(info, {"size": 0, "query": {"bool": {"should": clauses}}, "track_total_hits": False})
    except ClusterError as error:
        if error.status != BAD_REQUEST:
            raise
        return error.message
    return ""


def require_room(rules: Sequence[Rule]) -> None:
    """Raise DataError for too many rules, too many patterns, or patterns that are too large together."""
    if len(rules) > MAX_RULES:
        raise DataError(f"these are {len(rules):,} rules, an index has at most {MAX_RULES:,}")
    sizes = [program_size(rule.pattern) for rule in rules if rule.pattern is not None]
    if len(sizes) > MAX_PATTERNS:
        raise DataError(
            f"{len(sizes):,} rules have a pattern, at most {MAX_PATTERNS} may: each is tried for every query",
            hint="text, words and prefix are looked up, whatever their number",
        )
    if sum(sizes) > MAX_TOTAL_PROGRAM_SIZE:
        raise DataError(
            f"the patterns have {sum(sizes):,} parts together, at most {MAX_TOTAL_PROGRAM_SIZE:,} may",
            hint="use smaller counts in {}, or text, words and prefix",
        )


def write_version(cluster: Cluster, info: IndexInfo, version: RulesVersion) -> bool:
    """Write a version; return False if a version of this number exists already. Raises DataError for one that
    is too large, AccessDenied.
    """
    require_room(version.rules)
    index, content = rules_index(info), json_bytes(version.stored())
    if len(content) > MAX_RULES_BYTES:
        raise DataError(f"these rules have {len(content):,} bytes, at most {MAX_RULES_BYTES:,} are kept")
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
        with suppress(ClusterError):  # an old version does no harm
            cluster.request("DELETE", path_of(index, "_doc", str(version.version - VERSIONS_KEPT)))
    return True


class RulesChange(NamedTuple):
    """The rules of an index after a change, and the pinned documents that do not exist."""

    now: RulesVersion
    missing: tuple[str, ...] = ()


def fetch_rules(cluster: Cluster, name: str, version: int | None = None) -> RulesVersion:
    """Return the rules of an index with vectors, those in force or those of a version that is still stored.

    Without rules in force, returns the newest stored version (author and time of the last change) with no
    rules. Raises DataError without vectors, NotFound for a version that is not stored.
    """
    info = resolve_complete(cluster, name)
    if version is None and info.record.rules is None:
        newest = fetch_version(cluster, info)
        return (newest or RulesVersion())._replace(rules=(), left_out={}, excess=())
    number = version if version is not None or info.record.rules is None else info.record.rules.version
    if (rules := fetch_version(cluster, info, number)) is None:
        raise NotFound(
            f"version {number} of the rules of '{name}' is no longer stored",
            hint=f"hybridr rules {quote(name)}",
        )
    return rules._replace(left_out={**rules.left_out, **find_refused_filters(cluster, info, rules.rules)})


def add_rules(
    cluster: Cluster, name: str, rules: Iterable[Rule], *, by: str | None = None, dry_run: bool = False
) -> RulesChange:
    """Add rules, each replacing the rule of the same name; they apply to searches at once.

    `by` is the author, by default the cluster's user. With `dry_run` nothing is stored. Raises DataError
    without vectors, for too many rules, a slow pattern or a filter that the index refuses, ClusterError
    through a filtered alias, AccessDenied.
    """
    info, new_rules = resolve_complete(cluster, name), tuple(rules)
    for rule in new_rules:
        try:
            if rule.pattern is not None:
                require_quick(rule.pattern)
        except ValueError as error:
            raise DataError(f"rule {rule.name}: {error}") from None
    for rule_name, reason in find_refused_filters(cluster, info, new_rules).items():
        raise DataError(
            f"rule {rule_name}: {reason}", hint="the mapping of the index says which values its fields take"
        )
    signed_rules = {rule.name: rule.model_copy(update=change_stamp(cluster, by)) for rule in new_rules}

    def with_added(old: RulesVersion) -> RulesVersion:
        """Return the version with the added rules, each in the place of the rule of the same name."""
        rules = tuple(({rule.name: rule for rule in old.rules} | signed_rules).values())
        return old.without(signed_rules)._replace(rules=rules)

    version = change_rules(cluster, info, with_added, by, dry_run=dry_run)
    pins = list(dict.fromkeys(doc for rule in new_rules for doc in rule.pin))[:MAX_LOOKED_UP]
    existing = {hit["_id"] for hit in hits_by_id(cluster, info, pins, {"_source": False})} if pins else set()
    return RulesChange(version, tuple(doc for doc in pins if doc not in existing))


def remove_rules(
    cluster: Cluster, name: str, names: Sequence[str], *, by: str | None = None, dry_run: bool = False
) -> RulesChange:
    """Remove rules by name. Raises NotFound for an unknown name, and the errors of `add_rules`."""
    info = resolve_complete(cluster, name)

    def without_removed(old: RulesVersion) -> RulesVersion:
        """Return the version without the removed rules. Raises NotFound for an unknown name."""
        stored_names = {rule.name for rule in old.rules} | {rule.get("name") for rule in old.excess}
        if unknown := set(names) - stored_names:
            raise NotFound(f"no rule is called '{min(unknown)[:100]}'", hint=f"hybridr rules {quote(name)}")
        return old.without(names)

    return RulesChange(change_rules(cluster, info, without_removed, by, dry_run=dry_run))


def read_rules(file: Path) -> list[Rule]:
    """Return the rules in a JSONL file. Raises DataError with file and line."""
    return [read_rule(record, f"{file}:{number}") for number, record in read_jsonl(file)]


def change_rules(
    cluster: Cluster,
    info: IndexInfo,
    change: Callable[[RulesVersion], RulesVersion],
    by: str | None,
    *,
    dry_run: bool = False,
) -> RulesVersion:
    """Apply a change to the newest rules, write the result as a new version, and put it in force.

    Rules in excess of the limits, which another program stored, stay stored. The records of all indices with
    vectors of the same source name the new version, so that a rollback keeps the rules.
    """
    for edit_round in range(EDIT_ROUNDS):
        time.sleep(edit_round * EDIT_WAIT_S)
        newest = fetch_version(cluster, info) or RulesVersion()
        stamp = change_stamp(cluster, by)
        changed, job = change(newest), secrets.token_hex(8)
        require_room(changed.rules)
        number, excess = newest.version + 1, changed.excess
        version = RulesVersion(number, stamp["by"], stamp["at"], job, changed.rules, excess=excess)
        if excess:  # a removal may bring them within the limits
            version = read_version(version.stored())
        if dry_run:
            return version
        if not write_version(cluster, info, version):
            continue
        kept_rules = KeptRules(version=version.version, rules=len(version.rules), job=version.job)
        claiming = [] if info.record.in_place else claiming_indices(cluster, info.record.source)
        names = [index.name for index in claiming if index.record.source_uuid == info.record.source_uuid]
        for name in dict.fromkeys([info.name, *names]):
            rewrite(cluster, name, with_newest_rules(cluster, info, kept_rules), settled=True)
        return version
    raise ClusterError(f"others keep changing the rules of '{info.name}'", hint="try again")


def change_stamp(cluster: Cluster, by: str | None) -> dict[str, str]:
    """Return author and time of a change: `by`, else the cluster's user, else that of this machine."""
    user = by or (cluster.settings.user if cluster.settings else None)
    if not user:
        with suppress(OSError, KeyError, ImportError):  # a container may have no user
            user = getpass.getuser()
    at = datetime.now(timezone.utc).isoformat(timespec="seconds")
    return {"by": (user or "")[:200], "at": at}


def signature(cluster: Cluster, remark: str) -> str:
    """Return the author of a client's change: the server's own user, with the client's remark in brackets."""
    return f"{change_stamp(cluster, None)['by'][:100]} ({remark})"
