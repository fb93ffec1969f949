"""Sidecars: what hybridr keeps beside an index, in hidden indices or on this machine, one file each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Protocol

from ...cluster.connection import Cluster
from ...cluster.record import IndexInfo

FAMILY = "status.sidecars"


class Sidecar(Protocol):
    """One kind of thing beside an index; a member gives all of this, and `status` and `remove` know it.

    `remove` tells what goes under `listed`, `status` what is kept under `shown`. `where` is a
    pattern of the hidden indices that it lies in: the shipped roles of these two verbs may read them.
    """

    name: ClassVar[str]
    listed: ClassVar[str]
    label: ClassVar[str]
    where: ClassVar[str]

    @staticmethod
    def state(cluster: Cluster, info: IndexInfo) -> Any | None:
        """Return what is kept beside an index, as a dataclass; None: nothing."""

    @staticmethod
    def lines(value: Any) -> list[str]:
        """Say the same for people."""

    @staticmethod
    def named(cluster: Cluster, infos: Sequence[IndexInfo]) -> list[str]:
        """Name what is kept beside these indices."""

    @staticmethod
    def drop(cluster: Cluster, infos: Sequence[IndexInfo]) -> list[str]:
        """Delete it, less what other indices share; give the names of what went."""
