"""The rules of an index: read, added, taken away; each change is a version, with who made it and when."""

from __future__ import annotations

import getpass
import secrets
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import NamedTuple, TypeAlias

from ...cluster.connection import Cluster
from ...cluster.destinations import claimants, resolve_complete, write_record
from ...cluster.reading import hits_by_id
from ...cluster.record import IndexInfo
from ...cluster.record_parts import KeptRules
from ...errors import ClusterError, DataError, NotFound
from ...files.formats import read_jsonl
from .keeping import RulesVersion, kept_version, refused_filters, write_version
from .patterns import require_quick
from .rule import Rule, read_rule

EDIT_ROUNDS = 5  # that others may be quicker
MOST_LOOKED_UP = 1_000  # documents that are pinned
Edit: TypeAlias = Callable[[tuple[Rule, ...]], tuple[Rule, ...]]


class RulesChange(NamedTuple):
    """What a change made of the rules of an index, and which documents that it pins are not there."""

    now: RulesVersion
    missing: tuple[str, ...] = ()


def rules_of(cluster: Cluster, name: str, version: int | None = None) -> RulesVersion:
    """Read the rules of an index with vectors, as they are or as they were in a version that is still kept.

    Raises DataError without vectors, NotFound for a version that is not there.
    """
    info = ruled_index(cluster, name)
    if version is None and info.record.rules is None:
        newest = kept_version(cluster, info)
        return (newest or RulesVersion())._replace(rules=())
    number = info.record.rules.version if version is None and info.record.rules else version
    if (rules := kept_version(cluster, info, number)) is None:
        raise NotFound(f"version {number} of the rules of '{name}' is not kept", hint=f"hybridr rules {name}")
    return rules._replace(left_out={**rules.left_out, **refused_filters(cluster, info, rules.rules)})


def add_rules(cluster: Cluster, name: str, rules: Iterable[Rule], *, by: str | None = None) -> RulesChange:
    """Add rules, each in the place of the one of its name; searches keep to them from then on.

    `by` is who decides so, by default the cluster's user. Raises DataError without vectors, for too many
    rules, a slow pattern or a filter that the index refuses, ClusterError through an alias that shows a
    part, AccessDenied.
    """
    info, new_rules = ruled_index(cluster, name), tuple(rules)
    check_rules(cluster, info, new_rules)
    stamped = {rule.name: rule.model_copy(update=signed(cluster, by)) for rule in new_rules}

    def added(before: tuple[Rule, ...]) -> tuple[Rule, ...]:
        left = {rule.name: rule for rule in before}
        return tuple({**left, **stamped}.values())

    version = changed_rules(cluster, info, added, by)
    return RulesChange(version, missing_pins(cluster, info, new_rules))


def check_rules(cluster: Cluster, info: IndexInfo, rules: Sequence[Rule]) -> None:
    """Raise DataError for a rule that would make searches slow, or have the cluster refuse them."""
    for rule in rules:
        try:
            if rule.pattern is not None:
                require_quick(rule.pattern)
        except ValueError as error:
            raise DataError(f"rule {rule.name}: {error}") from None
    for name, reason in refused_filters(cluster, info, rules).items():
        raise DataError(f"rule {name}: {reason}", hint="the mapping says what its fields take")


def remove_rules(cluster: Cluster, name: str, names: Sequence[str], *, by: str | None = None) -> RulesChange:
    """Take rules away by their names. Raises NotFound for a name that is none, and as `add_rules`."""
    info = ruled_index(cluster, name)

    def left(before: tuple[Rule, ...]) -> tuple[Rule, ...]:
        if unknown := set(names) - {rule.name for rule in before}:
            raise NotFound(f"no rule is called '{min(unknown)[:100]}'", hint=f"hybridr rules {name}")
        return tuple(rule for rule in before if rule.name not in names)

    return RulesChange(changed_rules(cluster, info, left, by))


def read_rules(file: Path) -> list[Rule]:
    """Read rules of a JSONL file. Raises DataError with file and line."""
    return [read_rule(record, f"{file}:{number}") for number, record in read_jsonl(file)]


def ruled_index(cluster: Cluster, name: str) -> IndexInfo:
    """Give the index that searches of a name ask. Raises as `add_rules`."""
    return resolve_complete(cluster, name)


def changed_rules(cluster: Cluster, info: IndexInfo, change: Edit, by: str | None) -> RulesVersion:
    """Write what a change makes of the newest rules, and then into the records that these are in force."""
    for _ in range(EDIT_ROUNDS):
        before = kept_version(cluster, info) or RulesVersion()
        mark = signed(cluster, by)
        rules = change(before.rules)
        version = RulesVersion(before.version + 1, mark["by"], mark["at"], secrets.token_hex(8), rules)
        if write_version(cluster, info, version):
            put_in_force(cluster, info, version)
            return version
    raise ClusterError(f"others go on changing the rules of '{info.name}'", hint="try again")


def put_in_force(cluster: Cluster, info: IndexInfo, version: RulesVersion) -> None:
    """Name a version in every index with vectors of the same source: a rollback keeps what was decided."""
    stored = (
        KeptRules(version=version.version, rules=len(version.rules), job=version.job)
        if version.rules
        else None
    )
    others = [] if info.record.in_place else claimants(cluster, info.record.source)
    same = [index for index in others if index.record.source_uuid == info.record.source_uuid]
    for index in dict.fromkeys([info.name, *(index.name for index in same)]):
        write_record(cluster, index, rules=stored)


def signed(cluster: Cluster, by: str | None) -> dict[str, str]:
    """Say who decides, and when: the cluster's user, else that of this machine."""
    user = cluster.settings.user if cluster.settings else None
    at = datetime.now(timezone.utc).isoformat(timespec="seconds")
    return {"by": (by or user or login())[:200], "at": at}


def signature(cluster: Cluster, remark: str) -> str:
    """Return who decides for a client: the server's own user, with the client's word in brackets."""
    return f"{signed(cluster, None)['by'][:100]} ({remark})"


def login() -> str:
    """Name the user of this machine; a container may have none."""
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):
        return ""


def missing_pins(cluster: Cluster, info: IndexInfo, rules: Sequence[Rule]) -> tuple[str, ...]:
    """Name the first documents that rules pin and the index has not."""
    doc_ids = list(dict.fromkeys(doc for rule in rules for doc in rule.pin))[:MOST_LOOKED_UP]
    if not doc_ids:
        return ()
    there = {hit["_id"] for hit in hits_by_id(cluster, info, doc_ids, {"_source": False})}
    return tuple(doc for doc in doc_ids if doc not in there)
