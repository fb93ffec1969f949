"""Sidecar rule books: the rules of a source's searches, in a hidden index beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...cluster.connection import Cluster, drop_index
from ...cluster.record import IndexInfo
from ...cluster.rule_versions import rules_index
from . import Sidecar


@dataclass(frozen=True)
class RuleBookState:
    """The number and version of the rules in force, and their hidden index; `exists` is false without it."""

    index: str
    rules: int
    version: int
    exists: bool


class RuleBooks(Sidecar):
    """The hidden indices of rules; all indices with vectors of one source share one."""

    name = "rule_books"
    result_key = "rules"
    label = "rules"
    where = "INDEX-hybridr*"
    description = "rules that people made, {}"
    of_source = True

    @staticmethod
    def state(cluster: Cluster, info: IndexInfo) -> RuleBookState | None:
        """Return the rules that the record names; None without any."""
        if (rules := info.record.rules) is None:
            return None
        index = rules_index(info)
        return RuleBookState(index, rules.rules, rules.version, cluster.exists(index))

    @staticmethod
    def lines(book: RuleBookState) -> list[str]:
        """Return a line with the number of rules, or that they were deleted."""
        where = f"in {book.index}" if book.exists else "GONE: hybridr rules NAME import FILE writes them anew"
        return [f"rules: {book.rules:,}, version {book.version}, {where}"]

    @staticmethod
    def stored_names(cluster: Cluster, infos: Sequence[IndexInfo]) -> list[str]:
        """Return the names of the existing hidden indices."""
        return [index for index in dict.fromkeys(map(rules_index, infos)) if cluster.exists(index)]

    @staticmethod
    def drop(cluster: Cluster, infos: Sequence[IndexInfo]) -> list[str]:
        """Delete the hidden indices; return their names."""
        return [index for index in dict.fromkeys(map(rules_index, infos)) if drop_index(cluster, index)]
