"""Reads `published.toml` and runs its rows: published models on published collections.

A row is a DAM, or any BERT that is a retriever by itself, with or without a REM; or BM25 and RM3.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from collection import Work
from conditions import Condition, read_toml
from hybridr import load_encoder
from hybridr.assembly.published import SOURCES, USAGE
from hybridr.errors import SettingsError
from hybridr.exporting.exporting import export_joined
from layouts import LAYOUTS, as_beir

FILE = Path(__file__).parent / "published.toml"
OWN = "own"
ALL = 10**9


@dataclass(frozen=True)
class Collection:
    """A published collection: where its data lie, in which layout."""

    name: str
    layout: str
    language: str
    split: str = "test"
    folder: str = ""
    target: str = ""
    measures: tuple[str, ...] = ()
    not_run: str = ""


@dataclass(frozen=True)
class Row:
    """What is ranked with: a model of one or two parts, or a `system` that needs none.

    A row with neither only shows what others measured.
    """

    table: str
    name: str
    dam: str | None = None
    rem: str | None = None
    pooling: str | None = None
    similarity: str | None = None
    system: str | None = None
    tolerance: float = 0.0

    @property
    def identity(self) -> str:
        """Name it beside the rows of other tables."""
        return f"{self.table}/{self.name}"

    @property
    def can_run(self) -> bool:
        """Tell whether it names something to rank with."""
        return bool(self.dam or self.system)


@dataclass(frozen=True)
class Table:
    """Rows by collections, and the values that were published: collection -> row -> values by measure."""

    name: str
    title: str
    source: str
    measures: tuple[str, ...]
    rows: dict[str, Row]
    expected: dict[str, dict[str, list[float]]]
    join: str | None = None


def read_published(file: Path = FILE) -> tuple[dict[str, Collection], dict[str, Table]]:
    """Read collections and tables by name. Raises SettingsError."""
    found = read_toml(file)
    try:
        collections = {
            name: Collection(name, **{**values, "measures": tuple(values.get("measures", ()))})
            for name, values in found["set"].items()
        }
        tables = {name: table_of(name, values) for name, values in found["table"].items()}
    except (TypeError, KeyError) as error:
        raise SettingsError(f"{file.name}: {error}") from error
    if unknown := {one for table in tables.values() for one in table.expected} - collections.keys():
        raise SettingsError(f"{file.name}: there is no [set.{min(unknown)}]")
    if unknown := {one.layout for one in collections.values()} - LAYOUTS.keys():
        raise SettingsError(f"{file.name}: there is no layout '{min(unknown)}'")
    return collections, tables


def table_of(name: str, values: Mapping[str, Any]) -> Table:
    """Make one table."""
    rows = {
        row: Row(name, row, **{"tolerance": values["tolerance"], **given})
        for row, given in values["row"].items()
    }
    return Table(
        name,
        values["title"],
        values["source"],
        tuple(values["measures"]),
        rows,
        values["expected"],
        values.get("join"),
    )


def result_name(collection: str, row: Row) -> str:
    """Name the result of a row on a collection."""
    return f"{collection}--{row.table}-{row.name}"


def rows_for(collection: Collection, tables: Mapping[str, Table], identity: str | None) -> list[Row]:
    """List the rows that can run on a collection, or the one that is asked for. Raises SettingsError."""
    there = [
        row
        for table in tables.values()
        if collection.name in table.expected
        for row in table.rows.values()
        if row.can_run
    ]
    found = [row for row in there if identity in (None, row.identity)]
    if not found:
        known = ", ".join(row.identity for row in there) or "none"
        raise SettingsError(f"'{identity}' cannot run on {collection.name}", hint=f"rows that can: {known}")
    return found


def own_row(dam: str, rem: str | None, pooling: str | None, similarity: str | None) -> Row:
    """Make a row of a model that is in no table."""
    name = "+".join(Path(part).stem for part in (dam, rem) if part)
    return Row(OWN, name, dam, rem, pooling, similarity)


def located(row: Row, collection: Collection) -> Row:
    """Fill in the names of a table's row for this collection, and how its language's models are used."""
    names = {"source": SOURCES[collection.language], "target": collection.target}
    pooling, similarity = USAGE[collection.language]
    return replace(
        row,
        dam=row.dam and row.dam.format(**names),
        rem=row.rem and row.rem.format(**names),
        pooling=row.pooling or pooling,
        similarity=row.similarity or similarity,
    )


def work_of(collection: Collection, row: Row, table: Table | None, folder: Path, runs: Path) -> Work:
    """Prepare a row on a collection: the data as a BEIR folder, the model as an encoder.

    Raises what reading the data and assembling the model raise.
    """
    name = result_name(collection.name, row)
    join = table.join if table else None
    index = f"published-{collection.name}" + ("-joined" if join else "")
    if collection.layout != "beir" or join:
        target = runs / "published" / index
        folder = as_beir(folder, collection.layout, collection.split, target, join=join)
    measures = [*(table.measures if table else ("nDCG@10", "R@100", "R@1000")), *collection.measures]
    condition = Condition(
        name, "published", collection.split, ALL, 0, measures, [row.system or "dense"], row.tolerance
    )
    if row.system:
        return Work(condition, folder, runs / name, index)
    encoder = export_joined(
        str(row.dam),
        row.rem,
        runs / "published" / f"{name}-encoder",
        pooling=row.pooling,
        similarity=row.similarity,
    )
    return Work(condition, folder, runs / name, index, encoder, load_encoder(encoder).fingerprint)
