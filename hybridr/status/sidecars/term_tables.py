"""Sidecar term tables: terms with their encoder states, in the cluster and on this machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...cluster.connection import Cluster
from ...cluster.record import IndexInfo
from ...indexing.terms import storage
from . import Sidecar


@dataclass(frozen=True)
class TermTableState:
    """The term table that an index names: its size, and the `places` that store it ("cluster", "machine")."""

    fingerprint: str
    terms: int
    documents: int
    places: tuple[str, ...]


class TermTables(Sidecar):
    """The term tables, named by fingerprint; several indices may share one."""

    name = "term_tables"
    result_key = "term_tables"
    label = "term_table"
    where = storage.HOME + "INDEX"
    description = "term table {:.12}"

    @staticmethod
    def state(cluster: Cluster, info: IndexInfo) -> TermTableState | None:
        """Return the table that the record names, and where it is stored; None without one."""
        if (table_record := info.record.term_table) is None:
            return None
        places: tuple[str, ...] = ("cluster",) if storage.is_in_cluster(cluster, info) else ()
        places += ("machine",) if storage.local_table(table_record.fingerprint) else ()
        return TermTableState(table_record.fingerprint, table_record.terms, table_record.documents, places)

    @staticmethod
    def lines(table: TermTableState) -> list[str]:
        """Return a line with the table's size and places."""
        where = (
            " and ".join(f"this {place}" for place in table.places) or "NOWHERE: hybridr tune fits it again"
        )
        return [f"term table: {table.terms:,} terms of {table.documents:,} documents, in {where}"]

    @staticmethod
    def stored_names(cluster: Cluster, infos: Sequence[IndexInfo]) -> list[str]:
        """Return the fingerprints of the tables in the records, and of those left by deleted indices.

        An index without a uuid is deleted: it counts for all tables stored for its source.
        """
        named = [info.record.term_table.fingerprint for info in infos if info.record.term_table]
        parts = storage.part_ids_by_home(cluster, [info for info in infos if not info.uuid])
        stored = sorted(part.partition("-")[0] for part_ids in parts.values() for part in part_ids)
        return list(dict.fromkeys([*named, *stored]))

    @staticmethod
    def drop(cluster: Cluster, infos: Sequence[IndexInfo]) -> list[str]:
        """Delete the tables that no other index names; return their fingerprints."""
        return storage.drop_term_tables(cluster, infos)
