"""The same cluster from another machine, by the same address; another one that answers there is refused."""

from __future__ import annotations

from typing import NamedTuple

from ...cluster.connection import Cluster
from ...cluster.settings import ClusterSettings
from ...errors import SettingsError, Unreachable

LONGEST_CONNECT_S = 30.0  # a wrong address should be told soon, though patience is for hours
SAME_URL = "give a --url by which every machine reaches the cluster; localhost is another one on each"


class SameCluster(NamedTuple):
    """The way to a cluster, and what it calls itself, if it tells."""

    settings: ClusterSettings
    uuid: str | None

    @classmethod
    def of(cls, cluster: Cluster) -> SameCluster:
        """Take down how this process reaches it."""
        assert cluster.settings is not None
        return cls(cluster.settings, cluster.info.get("cluster_uuid"))

    def connect(self, patience_s: float) -> Cluster:
        """Connect to it from here. Raises Unreachable; SettingsError where another cluster answers."""
        try:
            cluster = Cluster.connect(self.settings, patience_s=min(patience_s, LONGEST_CONNECT_S))
        except Unreachable as error:
            raise Unreachable(error.message, hint=SAME_URL) from None
        uuid = cluster.info.get("cluster_uuid")
        if uuid and self.uuid and uuid != self.uuid:
            raise SettingsError(f"{cluster.url} is another cluster than that of the driver", hint=SAME_URL)
        return cluster.patient(patience_s)
