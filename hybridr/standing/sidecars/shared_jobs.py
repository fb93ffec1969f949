"""Shared jobs: which share of a job each of several processes works on."""

from __future__ import annotations

from collections.abc import Sequence

from ...cluster.connection import Cluster
from ...cluster.record import IndexInfo
from ...sharing.board import Tally, drop_leases, lease_index, leased_shares
from . import Sidecar


class SharedJobs(Sidecar):
    """Names the hidden indices of leases; they stay only where a job was stopped."""

    name = "shared_jobs"
    listed = "leases"
    shown = "shares"
    where = lease_index("INDEX-hybridr*")

    @staticmethod
    def kept(cluster: Cluster, info: IndexInfo) -> Tally | None:
        """Say how far the job is."""
        return leased_shares(cluster, info.name)

    @staticmethod
    def lines(kept: Tally) -> list[str]:
        """Say how many shares are done, and how it goes on."""
        done = kept.shares - kept.open - kept.held
        return [
            f"shared out: {done:,} of {kept.shares:,} shares done, {kept.held:,} taken",
            "if it does not go on: the command that was stopped, run again, does the rest",
        ]

    @staticmethod
    def named(cluster: Cluster, infos: Sequence[IndexInfo]) -> list[str]:
        """Name the indices of leases that are there."""
        return [lease_index(info.name) for info in infos if leased_shares(cluster, info.name)]

    @staticmethod
    def drop(cluster: Cluster, infos: Sequence[IndexInfo]) -> list[str]:
        """Delete them."""
        return [lease_index(info.name) for info in infos if drop_leases(cluster, info.name)]
