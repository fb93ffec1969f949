"""Do published models rank here as was published, row by row of `published.toml`?

    python benchmarks/run.py published SET FOLDER [--row TABLE/ROW] [--dam DAM [--rem REM]] [--url URL]

A row is a DAM, or any BERT that is a retriever by itself, with or without a REM; or BM25 and RM3. All rows
that can run on SET are run, or one, or a model of your own that is in no table (`--dam` without `--row`).
With `--row`, `--dam` and `--rem` say where its parts lie. Results and what is left of interrupted runs lie
as those of `collections` do.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from collection import Work
from conditions import Condition, read_toml
from hybridr import load_encoder
from hybridr.errors import DataError, HybridrError, SettingsError
from hybridr.training.rankers import export_joined
from layouts import LAYOUTS, as_beir
from runner import Places, add_places, folder_of, print_error, run_open
from study import HERE, Record, Section, table

FILE = HERE / "published.toml"
OWN = "own"
ALL = 10**9
SOURCES = {"en": "msmarco", "zh": "dureader"}
USAGE = {"en": ("mean", "ip"), "zh": ("mean", "cosine")}
"""Pooling and similarity of the checkpoints by language."""


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


def options(parser: argparse.ArgumentParser) -> None:
    """Take the set, and the model."""
    parser.add_argument("set", metavar="SET", help="a set of published.toml")
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="where the sets lie")
    parser.add_argument("--row", metavar="TABLE/ROW", help="one row of its tables, such as ddr/contrast")
    parser.add_argument("--dam", help="DAM, or a BERT that is a retriever by itself: a name or a folder")
    parser.add_argument("--rem", help="REM: a published name, a folder or a zip")
    parser.add_argument("--pooling", choices=("mean", "cls"))
    parser.add_argument("--similarity", choices=("ip", "cosine"))
    add_places(parser)


def measure(given: argparse.Namespace) -> int:
    """Run rows of the published tables on one collection; a model that is missing does not stop the rest."""
    collections, tables = read_published()
    collection = collections.get(given.set)
    if collection is None or collection.not_run:
        reason = collection.not_run if collection else f"published.toml has {', '.join(collections)}"
        raise SettingsError(f"'{given.set}' cannot be run: {reason}")
    folder = folder_of(collection.folder or collection.name, given.folder, given.runs)
    if folder is None:
        where = given.folder / (collection.folder or collection.name)
        raise DataError(f"'{collection.name}' is not run: there is no folder {where}")
    places, works, failed = Places(given.results, given.runs, given.again, "published"), [], 0
    for row in asked_rows(given, rows_for(collection, tables, given.row)):
        row = located(row, collection) if row.table in tables else row
        try:
            works.append(work_of(collection, row, tables.get(row.table), folder, given.runs))
        except HybridrError as error:
            failed += places.file_failure(result_name(collection.name, row), error, print_error)
    return run_open(works, places, given.url) or int(failed > 0)


def asked_rows(given: argparse.Namespace, rows: list[Row]) -> list[Row]:
    """Take the rows of the tables, with their parts where the command line says they lie; or one's own."""
    if given.rem and not (given.dam or given.row):
        raise SettingsError("--rem alone says too little", hint="--dam DAM, or --row TABLE/ROW")
    if given.dam and not given.row:
        return [own_row(given.dam, given.rem, given.pooling, given.similarity)]
    parts = {name: getattr(given, name) for name in ("dam", "rem", "pooling", "similarity")}
    return [replace(row, **{name: part for name, part in parts.items() if part}) for row in rows]


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


HOW = (
    "The value measured here comes first, the published one in parentheses. `published.toml` says where the "
    "values are from, which model each column is, and where its data are. A column without a model only "
    "shows what others measured."
)


def render(record: Record) -> str:
    """Render every table, then the models that are in none."""
    return "\n\n".join(
        [HOW, *(render_table(one, record) for one in read_published()[1].values()), *own(record)]
    )


def render_table(published: Table, record: Record) -> str:
    """Render one table: rows by collections."""
    header = [", ".join(published.measures), *published.rows]
    rows = [
        [name, *(cell(published, row, name, values, record) for row in published.rows.values())]
        for name, values in published.expected.items()
    ]
    return f"{published.title}; values from {published.source}:\n\n{table(header, rows)}"


def cell(published: Table, row: Row, name: str, values: dict[str, list[float]], record: Record) -> str:
    """Render what was found and what was published; `off` where they differ by more than the tolerance."""
    expected = values.get(row.name)
    found = record.get(result_name(name, row))
    told = f"({' '.join(short(value) for value in expected)})" if expected else ""
    if found is None:
        return f"not run {told}".rstrip()
    reached = [next(iter(found["systems"].values()))[measure] for measure in published.measures]
    pairs = zip(reached, expected or (), strict=False)
    off = " off" if any(abs(one - other) > row.tolerance for one, other in pairs) else ""
    return f"{' '.join(short(round(value, 4)) for value in reached)}{off} {told}".rstrip()


def short(value: float) -> str:
    """Write a value without its leading zero."""
    return f"{value:.5g}".removeprefix("0")


def own(record: Record) -> list[str]:
    """Render the models that are in no table."""
    rows = []
    for name, found in record.items():
        collection, _, model = name.partition(f"--{OWN}-")
        means = next(iter(found["systems"].values()))
        values = ", ".join(f"{measure} {value:.4f}" for measure, value in means.items())
        rows += [[collection, model, values]] if model else []
    return [f"Other models:\n\n{table(['collection', 'model', 'found'], rows)}"] if rows else []


SECTIONS = [
    Section(
        160,
        "Published rankings",
        "published",
        "python benchmarks/run.py published SET FOLDER",
        render,
        render({}),  # every value that is expected stands there before anything was run
    )
]
