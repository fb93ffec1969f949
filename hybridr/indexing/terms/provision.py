"""Sees that an index with vectors has a term table: fitted once, and found again ever after."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from ...cluster.connection import Cluster
from ...cluster.record import IndexInfo
from ...cluster.record_parts import FittedTable
from ...encoders.contract import Encoder
from ...errors import AccessDenied, HybridrError
from ...records import Progress, silent
from .fitting import TermTableBuilder, fit_term_table, table_obstacle, table_origin
from .storage import is_in_cluster, keep_term_table, named_as, open_term_table
from .term_table import TermTable


@dataclass(frozen=True)
class Provision:
    """The table that an index has now, whether it was `fitted` just now, and what is to be said of it.

    `heard`: of the states of the pass that made the vectors; else a pass of its own read a sample.
    Without a `table` the `note` says why: searches go on without soft terms.
    """

    table: FittedTable | None
    fitted: bool = False
    note: str = ""
    heard: bool = False

    @property
    def described(self) -> str:
        """Say in a line what there is."""
        if self.table is None:
            return f"none, {self.note}: searches go on without soft terms"
        again = ", which were read once more for it" if self.fitted and not self.heard else ""
        said = f"{self.table.terms:,} terms of {self.table.documents:,} documents{again}"
        return f"{said}, {self.note}" if self.note else said

    def to_json(self) -> dict[str, Any]:
        """Give the fields as JSON values."""
        table = self.table.model_dump(mode="json") if self.table else None
        return asdict(self) | {"table": table}


def provide_term_table(
    cluster: Cluster,
    index: str | IndexInfo,
    encoder: Encoder,
    *,
    listener: TermTableBuilder | None = None,
    progress: Progress = silent,
) -> Provision:
    """Fit a table to an index that has none which fits its encoder and fields, and keep it.

    It is of what a `listener` heard while the index was filled. Where that is too little (a run that went on,
    vectors of other processes, or none was there), the encoder reads a sample. Nothing is raised: the index
    is whole without it.
    """
    try:
        info = index if isinstance(index, IndexInfo) else cluster.index_info(index)
        if reason := table_obstacle(info, encoder):
            return Provision(None, note=reason)
        table = fitting_table(cluster, info, encoder)
        name = named_as(table) if table else None
        if name and name == info.record.term_table and is_in_cluster(cluster, info):
            return Provision(name)
        fitted = table is None
        progress("term table", 0, 1)
        heard = listener.table(cluster.count(info.name)) if fitted and listener is not None else None
        table = table or heard or fit_term_table(cluster, info, encoder, progress=progress)
        if reason := table.shortcoming:
            return Provision(None, note=reason)
        named, note = keep_term_table(cluster, info, table)
        progress("term table", 1, 1)
        return Provision(named, fitted, note, heard is not None)
    except Exception as error:  # whatever runs an encoder raises classes of its own
        note = error.message if isinstance(error, HybridrError) else repr(error)
        hint = error.hint if isinstance(error, HybridrError) else None
        return Provision(None, note=f"{note} ({hint})" if hint else note)


def fitting_table(cluster: Cluster, info: IndexInfo, encoder: Encoder) -> TermTable | None:
    """Open the table of an index if it is one that would be fitted now."""
    table = None
    with suppress(AccessDenied):  # then it is fitted again, and kept on this machine
        table = open_term_table(cluster, info)
    if table is None or table.encoder != encoder.fingerprint:
        return None
    origin = table_origin(cluster, info)
    return table if all(table.origin.get(name) == origin[name] for name in origin) else None
