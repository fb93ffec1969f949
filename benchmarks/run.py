"""Runs the conditions of `conditions.toml`: `make bench`.

    python benchmarks/run.py [NAME ...] --collections FOLDER [--url URL] [--runs FOLDER] [--again]
    python benchmarks/run.py --published SET --collections FOLDER [--row TABLE/ROW] [--dam DAM [--rem REM]]

FOLDER holds collections in BEIR layout, as folders or as NAME.tar.xz. Without `--url` (or HYBRIDR_URL) an
embedded node called `bench` is started. Finished conditions stand in `results/collections/` and are not run
again unless their settings, files, encoder or hybridr's version changed; failed ones are explained in
`results/failed/`; unfinished ones go on where they stopped, from the index and what lies in `--runs`: adapted
encoders and run files.

`--published` runs rows of `published.toml` on one of its sets: all that can run, one, or a model of your own
that is in no table (`--dam` without `--row`). With `--row`, `--dam` and `--rem` say where its parts lie.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import shutil
import sys
import tarfile
import traceback
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

from bar import Bar
from collection import Asked, Work, measure
from conditions import Condition, chosen, read_conditions
from hybridr import connect, load_encoder
from hybridr.cluster.connection import Cluster
from hybridr.errors import DataError, HybridrError, SettingsError
from hybridr.exporting.exporting import minilm_encoder
from hybridr.files.atomic import write_json
from hybridr.node import process
from hybridr.node.settings import NodeSettings
from published import Row, located, own_row, read_published, result_name, rows_for, work_of
from sections.markdown import LEAD

HERE = Path(__file__).parent
INTERRUPTED = 130


def main(arguments: list[str] | None = None) -> int:
    """Run what is open; exit code 1 when something failed, 130 when interrupted."""
    given = parser().parse_args(arguments)
    logging.getLogger("opensearch").setLevel(logging.CRITICAL)
    try:
        return run_published(given) if given.published else run(given)
    except KeyboardInterrupt:
        print("interrupted before anything was run; the same command begins again", file=sys.stderr)
        return INTERRUPTED
    except HybridrError as error:
        print(f"error: {error.message}" + (f"\nhint: {error.hint}" if error.hint else ""), file=sys.stderr)
        return error.exit_code


def parser() -> argparse.ArgumentParser:
    """Describe the command line."""
    found = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("names", nargs="*", metavar="NAME", help="collections (default: all)")
    found.add_argument("--collections", type=Path, required=True, metavar="FOLDER")
    found.add_argument("--url", help="cluster (default: HYBRIDR_URL, else an embedded node)")
    found.add_argument(
        "--runs",
        type=Path,
        default=HERE.parent / "runs",
        metavar="FOLDER",
        help="run files, adapted encoders, unpacked collections (default: runs/)",
    )
    found.add_argument("--results", type=Path, default=HERE / "results", metavar="FOLDER")
    found.add_argument("--published", metavar="SET", help="a set of published.toml instead of NAMEs")
    found.add_argument("--row", metavar="TABLE/ROW", help="one row of its tables, such as ddr/contrast")
    found.add_argument("--dam", help="DAM, or a BERT that is a retriever by itself: a name or a folder")
    found.add_argument("--rem", help="REM: a published name, a folder or a zip")
    found.add_argument("--pooling", choices=("mean", "cls"))
    found.add_argument("--similarity", choices=("ip", "cosine"))
    found.add_argument("--again", action="store_true", help="ask finished systems once more")
    return found


def run(given: argparse.Namespace) -> int:
    """Run every chosen condition that has data and is not finished, and say what came of each."""
    conditions = chosen(read_conditions(), given.names)
    places = Places(given.results, given.runs, given.again)
    found = [(one, folder_of(one.name, given.collections, given.runs)) for one in conditions]
    for condition, folder in found:
        if folder is None:
            print(f"{condition.name}: not run, it is not in {given.collections}", file=sys.stderr)
    there = [(condition, folder) for condition, folder in found if folder is not None]
    return run_open(with_encoder(there, given.runs), places, given.url)


def run_open(works: list[Work], places: Places, url: str | None) -> int:
    """Run what is not finished; a collection that cannot be read does not stop the rest."""
    left, failed = [], 0
    for work in works:
        try:
            left += [] if places.is_finished(work) else [work]
        except HybridrError as error:
            failed += places.file_failure(work.condition.name, error, print_error)
    if finished := len(works) - len(left) - failed:
        print(f"{finished} of {len(works)} are finished already", file=sys.stderr)
    return (run_works(left, places, url) if left else 0) or int(failed > 0)


def print_error(text: str) -> None:
    """Print where progress goes."""
    print(text, file=sys.stderr)


def run_published(given: argparse.Namespace) -> int:
    """Run rows of the published tables on one collection; a model that is missing does not stop the rest."""
    collections, tables = read_published()
    collection = collections.get(given.published)
    if collection is None or collection.not_run:
        reason = collection.not_run if collection else f"published.toml has {', '.join(collections)}"
        raise SettingsError(f"'{given.published}' cannot be run: {reason}")
    folder = folder_of(collection.folder or collection.name, given.collections, given.runs)
    if folder is None:
        where = given.collections / (collection.folder or collection.name)
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


def folder_of(name: str, collections: Path, runs: Path) -> Path | None:
    """Give the folder of a collection, unpacked first where there is only its archive; None without data."""
    if (collections / name).is_dir():
        return collections / name
    archive, unpacked = collections / f"{name}.tar.xz", runs / "collections" / name
    if archive.is_file() and not unpacked.is_dir():
        staged = unpacked.with_name(f".{name}")
        shutil.rmtree(staged, ignore_errors=True)
        with tarfile.open(archive) as packed:
            packed.extractall(staged, filter="data")
        (staged / name).rename(unpacked)
        staged.rmdir()
    return unpacked if unpacked.is_dir() else None


def with_encoder(there: list[tuple[Condition, Path]], runs: Path) -> list[Work]:
    """Turn conditions into work; those that need vectors get the packaged MiniLM."""
    encoder = minilm_encoder() if any(condition.needs_vectors for condition, _ in there) else None
    identity = load_encoder(encoder).fingerprint if encoder else None
    return [
        Work(condition, folder, runs / condition.name, condition.name, encoder, identity)
        if condition.needs_vectors
        else Work(condition, folder, runs / condition.name, condition.name)
        for condition, folder in there
    ]


class Places:
    """Where results go: finished and failed ones apart, unfinished ones as run files."""

    def __init__(self, results: Path, runs: Path, again: bool = False, kind: str = "collections") -> None:
        self.runs, self.again = runs, again
        self._finished, self._failed = results / kind, results / "failed"

    def finished(self, name: str) -> Path:
        """Name the file of a finished result."""
        return self._finished / f"{name}.json"

    def failed(self, name: str) -> Path:
        """Name the file that says why there is none."""
        return self._failed / f"{name}.json"

    def file_failure(self, name: str, error: Exception, say: Callable[[str], None]) -> int:
        """Say and write down why there is no result, and count it.

        The traceback of what nobody foresaw lies with the runs.
        """
        say(f"{name}: failed: {words(error)}")
        write_json(
            self.failed(name),
            {
                "name": name,
                "error": words(error),
                "hint": getattr(error, "hint", None),
                "at": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            },
        )
        if not isinstance(error, HybridrError):
            trace = "".join(traceback.format_exception(error))
            (self.runs / name).mkdir(parents=True, exist_ok=True)
            (self.runs / name / "traceback.txt").write_text(trace, encoding="utf-8")
        return 1

    def is_finished(self, work: Work) -> bool:
        """Tell whether a result of exactly this condition is there; with `again` forget the runs.

        Raises DataError when the collection cannot be read.
        """
        file, wanted = self.finished(work.condition.name), work.fingerprint
        if self.again:
            Asked.forget(work)
        if self.again or not file.is_file():
            return False
        return bool(json.loads(file.read_text(encoding="utf-8")).get("condition") == wanted)


def run_works(works: list[Work], places: Places, url: str | None) -> int:
    """Run conditions one after the other; a failed one does not stop the next."""
    cluster = open_cluster(url)
    finished: list[str] = []
    weights = {work.condition.name: (work.folder / "corpus.jsonl").stat().st_size for work in works}
    with Bar(weights) as bar:
        for work in works:
            bar.begin(work.condition.name)
            try:
                if attempt(work, cluster, places, bar):
                    finished.append(work.condition.name)
            except KeyboardInterrupt:
                bar.say(interrupted(work, works, finished))
                return INTERRUPTED
            bar.end()
    print(f"{len(finished)} finished, {len(works) - len(finished)} failed", file=sys.stderr)
    return int(len(finished) < len(works))


def open_cluster(url: str | None) -> Cluster:
    """Connect to the cluster that is named, else to an embedded node, which is started if need be."""
    if url or os.environ.get("HYBRIDR_URL"):
        return connect(url)
    return connect(process.start(NodeSettings(name="bench", heap="2g")).url)


def attempt(work: Work, cluster: Cluster, places: Places, bar: Bar) -> bool:
    """Run one condition and file what came of it; tell whether it is finished."""
    name = work.condition.name
    try:
        record = measure(work, cluster, bar, bar.step)
    except Exception as error:
        places.file_failure(name, error, bar.say)
        return False
    write_json(places.finished(name), record)
    places.failed(name).unlink(missing_ok=True)
    bar.say(summary(work.condition, record))
    return True


def words(error: Exception) -> str:
    """Say what went wrong."""
    return error.message if isinstance(error, HybridrError) else f"{type(error).__name__}: {error}"


def summary(condition: Condition, record: dict[str, dict[str, dict[str, float]]]) -> str:
    """Say what a finished condition gave, and what of it was not expected."""
    lead = {name: means[LEAD] for name, means in record["systems"].items() if LEAD in means}
    off = [
        f"{name} {lead[name]:.4f}, expected {value:.3f}"
        for name, value in condition.expected.items()
        if name in lead and abs(lead[name] - value) > condition.tolerance
    ]
    values = ", ".join(f"{name} {value:.4f}" for name, value in lead.items())
    return f"{condition.name}: {values}" + (f"; NOT AS EXPECTED: {'; '.join(off)}" if off else "")


def interrupted(work: Work, works: list[Work], finished: list[str]) -> str:
    """Say what an interruption leaves."""
    done = f"finished and kept: {', '.join(finished)}" if finished else "none was finished"
    return (
        f"interrupted in {work.condition.name}; {done}; {len(works) - len(finished)} left. The same command "
        "goes on where this one stopped."
    )


if __name__ == "__main__":
    sys.exit(main())
