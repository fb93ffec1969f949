"""Sidecars: what hybridr keeps beside an index, in hidden indices or on this machine, one file each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Protocol

from ...cluster.connection import Cluster
from ...cluster.record import IndexInfo

FAMILY = "status.sidecars"


class Sidecar(Protocol):
    """One kind of thing stored beside an index; `status` and `remove` handle every member.

    `result_key` is its key in the result of `remove`, `label` its key in that of `status`. `description`
    names one for people, with its name in the braces. `where` is a pattern of the hidden indices that hold
    it, which the shipped roles for these two verbs may read. With `of_source` it belongs to the source, so
    that a rollback that drops an index leaves it.
    """

    name: ClassVar[str]
    result_key: ClassVar[str]
    label: ClassVar[str]
    where: ClassVar[str]
    description: ClassVar[str] = "{}"
    of_source: ClassVar[bool] = False

    @staticmethod
    def state(cluster: Cluster, info: IndexInfo) -> Any | None:
        """Return the state of the sidecar of an index, as a dataclass; None without one."""

    @staticmethod
    def lines(value: Any) -> list[str]:
        """Return the state as lines for people."""

    @staticmethod
    def stored_names(cluster: Cluster, infos: Sequence[IndexInfo]) -> list[str]:
        """Return the names of the sidecars of these indices."""

    @staticmethod
    def drop(cluster: Cluster, infos: Sequence[IndexInfo]) -> list[str]:
        """Delete the sidecars of these indices that no other index shares; return their names."""
