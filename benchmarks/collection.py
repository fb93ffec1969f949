"""Measures one collection as a user would: load, reindex, ask every system, compare.

What is there already is not done again: a loaded and reindexed collection is only searched, a system whose
run file is current is not asked. The index and the run files are what an interrupted condition goes on from.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, partial
from importlib import metadata
from pathlib import Path
from typing import Any

from conditions import Condition
from hybridr import load, reindex
from hybridr.cluster import Cluster
from hybridr.destinations import destinations, resolve
from hybridr.encoder import Encoder
from hybridr.errors import DataError
from hybridr.evaluation import Evaluation
from hybridr.formats import qrels_file, read_qrels, write_qrels, write_run
from hybridr.machine import machine_record
from hybridr.manifest import fingerprint, sha256_of, versions, write_json
from hybridr.progress import Progress
from hybridr.reading import checkpoints
from hybridr.settings import EvaluateSettings, LoadSettings, ReindexSettings, SearchSettings
from hybridr.significance import compare
from hybridr.syncing import synced_position
from hybridr.systems import evaluate_index, evaluate_runs
from hybridr.tuned import tuning_of
from hybridr.tuning import tune

TUNED = "-tuned"
BASELINES = ("bm25", "hybrid-stock")
SOME = EvaluateSettings(interval="t", resamples=100)
"""While one system is asked its interval is not looked at."""


@dataclass(frozen=True)
class Work:
    """A condition, the collection's folder, its index, the encoder's folder, and where its runs go."""

    condition: Condition
    folder: Path
    runs: Path
    index: str
    encoder: Path | None = None
    encoder_fingerprint: str | None = None
    reindexing: ReindexSettings = field(default_factory=ReindexSettings)

    @cached_property
    def inputs(self) -> dict[str, str]:
        """Hash the collection's files. Raises DataError when one is missing."""
        split = qrels_file(self.folder, self.condition.split)
        files = {"corpus": self.folder / "corpus.jsonl", "queries": self.folder / "queries.jsonl",
                 "qrels": split}  # fmt: skip
        if missing := [file.name for file in files.values() if not file.is_file()]:
            raise DataError(f"the collection {self.condition.name} has no {missing[0]}")
        return {name: sha256_of(file) for name, file in files.items()}

    @property
    def runs_fingerprint(self) -> str:
        """Identify what a system's run depends on."""
        return fingerprint([
            self.condition.settings(), self.inputs, self.encoder_fingerprint, metadata.version("hybridr"),
            SearchSettings().record(), self.reindexing.record(),
        ])  # fmt: skip

    @property
    def fingerprint(self) -> str:
        """Identify the whole condition: a result with the same one is finished."""
        return fingerprint([self.runs_fingerprint, self.condition.systems])


def measure(
    work: Work, cluster: Cluster, progress: Progress, step: Callable[[int, int], None]
) -> dict[str, Any]:
    """Measure what is left of a condition and give its result; `step` hears of steps begun and their number.

    Raises HybridrError; what was done till then is kept.
    """
    asked = Asked(work)
    steps = 2 + len(work.condition.systems)
    step(0, steps)
    documents = asked.timed("load", lambda: loaded(work, cluster, progress))
    step(1, steps)
    if work.condition.needs_vectors and not is_reindexed(work, cluster):
        asked.timed("reindex", lambda: vectorised(work, cluster, progress))
    for number, system in enumerate(work.condition.systems, 2):
        step(number, steps)
        progress(system, 0, 1)
        if not asked.has(system):
            asked.timed(system, partial(ask, work, cluster, system, asked.qrels))
        progress(system, 1, 1)
    return result(work, cluster, asked, documents)


class Asked:
    """The run files of a condition, and the seconds that it took so far; both outlive an interruption."""

    def __init__(self, work: Work) -> None:
        self._work, self._file = work, work.runs / "state.json"
        state = json.loads(self._file.read_text(encoding="utf-8")) if self._file.is_file() else {}
        if state.get("runs") != work.runs_fingerprint:
            for file in work.runs.glob("*.trec"):
                file.unlink()
            state = {"runs": work.runs_fingerprint, "seconds": {}}
        self.seconds: dict[str, float] = state["seconds"]
        self.qrels = choose_queries(work)

    def has(self, system: str) -> bool:
        """Tell whether this system's run is there."""
        return (self._work.runs / f"{system}.trec").is_file()

    def timed(self, name: str, do: Callable[[], Any]) -> Any:
        """Do something and add its seconds."""
        started = time.monotonic()
        found = do()
        self.seconds[name] = round(self.seconds.get(name, 0.0) + time.monotonic() - started, 2)
        write_json(self._file, {"runs": self._work.runs_fingerprint, "seconds": self.seconds})
        return found


def choose_queries(work: Work) -> Path:
    """Write qrels of a random choice when there are more queries than wanted; give the qrels to use."""
    whole = qrels_file(work.folder, work.condition.split)
    qrels = read_qrels(whole)
    if len(qrels) <= work.condition.queries:
        return whole
    ids = random.Random(work.condition.seed).sample(sorted(qrels), work.condition.queries)
    file = work.runs / "qrels.txt"
    write_qrels(file, {query_id: qrels[query_id] for query_id in ids})
    return file


def loaded(work: Work, cluster: Cluster, progress: Progress) -> int:
    """Load the collection unless it is there; count its documents. Raises DataError for another's index."""
    done = load(cluster, work.folder, LoadSettings(index=work.index), progress=progress)
    if done.rejected:
        raise DataError(f"the index refused {done.rejected} documents")
    return done.documents


def is_reindexed(work: Work, cluster: Cluster) -> bool:
    """Tell whether all vectors are of this encoder and nothing happened at the source since; read only."""
    source = cluster.index_info(work.index)
    current = [info for info in destinations(cluster, source) if info.meta.get("alias") in info.aliases]
    if not current or current[-1].meta.get("state") != "complete":
        return False
    if current[-1].meta.get("encoder") != work.encoder_fingerprint:
        return False
    synced = synced_position(current[-1])
    return synced is not None and synced.seq_no == checkpoints(cluster, source.name, source.shards).seq_no


def vectorised(work: Work, cluster: Cluster, progress: Progress) -> None:
    """Reindex, or go on with it. Raises DataError when documents were refused."""
    encoder: Encoder | Path = work.encoder or Path()
    done = reindex(cluster, work.index, encoder, work.reindexing, progress=progress)
    if done.rejected:
        raise DataError(f"the index refused {done.rejected} vectors")


def ask(work: Work, cluster: Cluster, system: str, qrels: Path) -> None:
    """Ask one system all queries and keep its run; one that ends in -tuned after label-free tuning."""
    condition, name = work.condition, system.removesuffix(TUNED)
    if (tuned := name != system) and not tuning_of(resolve(cluster, work.index)):
        tune(cluster, work.index, encoder=work.encoder)
    found = evaluate_index(
        cluster, work.index, work.folder, split=condition.split, qrels=qrels, systems=[name],
        measures=condition.measures, encoder=work.encoder if condition.needs_vectors else None,
        settings=SearchSettings(tuned=tuned), statistics=SOME,
    )  # fmt: skip
    write_run(work.runs / f"{system}.trec", found.runs[name], system)


def result(work: Work, cluster: Cluster, asked: Asked, documents: int) -> dict[str, Any]:
    """Compare the runs and give the record of a finished condition."""
    condition = work.condition
    files = {system: work.runs / f"{system}.trec" for system in condition.systems}
    found = evaluate_runs(files, beir=work.folder, split=condition.split, qrels=asked.qrels,
                          measures=condition.measures)  # fmt: skip
    return {
        "name": condition.name, "condition": work.fingerprint, "settings": condition.settings(),
        "inputs": work.inputs, "encoder": work.encoder_fingerprint, "documents": documents,
        "queries": found.queries, "systems": found.systems, "intervals": found.intervals,
        "comparisons": comparisons(found), "statistics": found.settings.record(),
        "seconds": asked.seconds, "machine": machine_record(),
        "versions": {**versions(), "opensearch": cluster.info["version"]["number"]},
        "runs": {system: sha256_of(file) for system, file in files.items()},
    }  # fmt: skip


def comparisons(found: Evaluation) -> dict[str, list[dict[str, Any]]]:
    """Compare every system by the leading measure with each baseline: baseline -> comparisons."""
    lead = {name: {found.measures[0]: values[found.measures[0]]} for name, values in found.per_query.items()}
    return {
        baseline: [vars(one) for one in compare(lead, baseline, found.settings)]
        for baseline in BASELINES
        if baseline in lead
    }
