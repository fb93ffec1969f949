"""Tables of terms: the words of an index, as its encoder sees them, in the cluster and on this machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...cluster.connection import Cluster
from ...cluster.record import IndexInfo
from ...indexing.terms import storage
from . import Sidecar


@dataclass(frozen=True)
class KeptTable:
    """The table that an index names: its size, and the `places` where it is now, "cluster" and "machine"."""

    fingerprint: str
    terms: int
    documents: int
    places: tuple[str, ...]


class TermTables(Sidecar):
    """Names tables by their fingerprints; one may serve several indices."""

    name = "term_tables"
    listed = "term_tables"
    label = "term_table"
    where = storage.HOME + "INDEX"

    @staticmethod
    def state(cluster: Cluster, info: IndexInfo) -> KeptTable | None:
        """Return which table the record names, and where it lies."""
        if (named := info.record.term_table) is None:
            return None
        places: tuple[str, ...] = ("cluster",) if storage.is_in_cluster(cluster, info) else ()
        places += ("machine",) if storage.local_table(named.fingerprint) else ()
        return KeptTable(named.fingerprint, named.terms, named.documents, places)

    @staticmethod
    def lines(table: KeptTable) -> list[str]:
        """Return how large it is, and where."""
        where = (
            " and ".join(f"this {place}" for place in table.places) or "NOWHERE: hybridr tune fits it again"
        )
        return [f"term table: {table.terms:,} terms of {table.documents:,} documents, in {where}"]

    @staticmethod
    def named(cluster: Cluster, infos: Sequence[IndexInfo]) -> list[str]:
        """Name the tables of the records."""
        return [info.record.term_table.fingerprint for info in infos if info.record.term_table]

    @staticmethod
    def drop(cluster: Cluster, infos: Sequence[IndexInfo]) -> list[str]:
        """Delete the tables that no other index names."""
        return storage.drop_term_tables(cluster, infos)
