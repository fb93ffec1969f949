"""Runs measurements of collections one after the other: what is finished is left, what failed is explained.

Finished results stand in `results/`, why one failed in `results/failed/`. Unfinished ones go on where they
stopped, from the index and what lies in `--runs`: adapted encoders and run files.
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
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from bar import Bar
from collection import Asked, Work, measure
from conditions import Condition
from hybridr import connect
from hybridr.cluster.connection import Cluster
from hybridr.cluster.embedded import process
from hybridr.cluster.settings import NodeSettings
from hybridr.errors import HybridrError
from hybridr.files.local import write_json
from hybridr.records import Progress
from study import HERE, LEAD, RESULTS, write_result

INTERRUPTED = 130
Measuring = Callable[[Work, Cluster, Progress, Callable[[int, int], None]], dict[str, Any]]
"""Measures what is left of one collection and gives its result; the last argument hears of steps."""


def add_places(parser: argparse.ArgumentParser) -> None:
    """Take the cluster, and where runs and results go."""
    parser.add_argument("--url", help="cluster (default: HYBRIDR_URL, else an embedded node, `bench`)")
    kept = "run files, adapted encoders, unpacked collections (default: runs/)"
    parser.add_argument("--runs", type=Path, default=HERE.parent / "runs", metavar="FOLDER", help=kept)
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="FOLDER")
    parser.add_argument("--again", action="store_true", help="ask finished systems once more")


def run_open(works: list[Work], places: Places, url: str | None, measuring: Measuring | None = None) -> int:
    """Run what is not finished; a collection that cannot be read does not stop the rest.

    `measuring` None measures the condition's systems.
    """
    left, failed = [], 0
    for work in works:
        try:
            left += [] if places.is_finished(work) else [work]
        except HybridrError as error:
            failed += places.file_failure(work.condition.name, error, print_error)
    if finished := len(works) - len(left) - failed:
        print(f"{finished} of {len(works)} are finished already", file=sys.stderr)
    return (run_works(left, places, url, measuring or measure) if left else 0) or int(failed > 0)


def print_error(text: str) -> None:
    """Print where progress goes."""
    print(text, file=sys.stderr)


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


def run_works(works: list[Work], places: Places, url: str | None, measuring: Measuring) -> int:
    """Run conditions one after the other; a failed one does not stop the next."""
    cluster = open_cluster(url)
    finished: list[str] = []
    weights = {work.condition.name: (work.folder / "corpus.jsonl").stat().st_size for work in works}
    with Bar(weights) as bar:
        for work in works:
            bar.begin(work.condition.name)
            try:
                if attempt(work, cluster, places, bar, measuring):
                    finished.append(work.condition.name)
            except KeyboardInterrupt:
                bar.say(interrupted(work, works, finished))
                return INTERRUPTED
            bar.end()
    print(f"{len(finished)} finished, {len(works) - len(finished)} failed", file=sys.stderr)
    return int(len(finished) < len(works))


def open_cluster(url: str | None) -> Cluster:
    """Connect to the cluster that is named, else to an embedded node, which is started if need be."""
    logging.getLogger("opensearch").setLevel(logging.CRITICAL)
    if url or os.environ.get("HYBRIDR_URL"):
        return connect(url)
    return connect(process.start(NodeSettings(name="bench", heap="2g")).url)


def attempt(work: Work, cluster: Cluster, places: Places, bar: Bar, measuring: Measuring) -> bool:
    """Run one condition and file what came of it; tell whether it is finished."""
    name = work.condition.name
    try:
        record = measuring(work, cluster, bar, bar.step)
    except Exception as error:
        places.file_failure(name, error, bar.say)
        return False
    write_result(places.finished(name), record)
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
