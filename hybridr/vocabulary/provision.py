"""Sees that an index with vectors has a term table: fitted once, and found again ever after."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from ..cluster.connection import Cluster
from ..cluster.record import FittedTable, IndexInfo
from ..encoding.contract import Encoder
from ..errors import HybridrError
from ..progress import Progress, silent
from .fitting import fit_term_table, table_obstacle, table_origin
from .storage import is_in_cluster, keep_term_table, named_as, open_term_table
from .term_table import TermTable


@dataclass(frozen=True)
class Provision:
    """The table that an index has now, whether it was `fitted` just now, and what is to be said of it.

    Without a `table` the `note` says why: searches go on without soft terms.
    """

    table: FittedTable | None
    fitted: bool = False
    note: str = ""

    @property
    def described(self) -> str:
        """Say in a line what there is."""
        if self.table is None:
            return f"none, {self.note}: searches go on without soft terms"
        said = f"{self.table.terms:,} terms of {self.table.documents:,} documents"
        return f"{said}, {self.note}" if self.note else said

    def to_json(self) -> dict[str, Any]:
        """Give the fields as JSON values."""
        table = self.table.model_dump(mode="json") if self.table else None
        return asdict(self) | {"table": table}


def provide_term_table(
    cluster: Cluster, index: str, encoder: Encoder, *, progress: Progress = silent
) -> Provision:
    """Fit a table to an index that has none which fits its encoder and fields, and keep it.

    Nothing is raised: the index is whole without it.
    """
    try:
        info = cluster.index_info(index)
        if reason := table_obstacle(info, encoder):
            return Provision(None, note=reason)
        table = fitting_table(cluster, info, encoder)
        if table is not None and is_in_cluster(cluster, known := named_as(table)):
            return Provision(known)
        fitted = table is None
        table = table or fit_term_table(cluster, info, encoder, progress=progress)
        if reason := table.shortcoming:
            return Provision(None, note=reason)
        named, note = keep_term_table(cluster, index, table)
        return Provision(named, fitted, note)
    except Exception as error:  # whatever runs an encoder raises classes of its own
        return Provision(None, note=error.message if isinstance(error, HybridrError) else repr(error))


def fitting_table(cluster: Cluster, info: IndexInfo, encoder: Encoder) -> TermTable | None:
    """Open the table of an index if it is one that would be fitted now."""
    table = open_term_table(cluster, info)
    if table is None or table.encoder != encoder.fingerprint:
        return None
    origin = table_origin(cluster, info)
    return table if all(table.origin.get(name) == origin[name] for name in origin) else None
