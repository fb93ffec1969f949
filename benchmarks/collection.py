"""Measures one collection as a user would: load, reindex, adapt, reindex again, ask every system, compare.

What is there already is not done again: a loaded and reindexed collection is only searched, a system whose
run file is current is not asked. The index, the adapted encoder and the run files are what an interrupted
condition goes on from. The vectors of both encoders stay, each behind an alias of its own.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

from conditions import ADAPTED, Condition
from hybridr import AdaptResult, AdaptSettings, load_encoder
from hybridr.cluster.aliases import alias_target
from hybridr.cluster.connection import Cluster, path_of
from hybridr.cluster.destinations import default_alias
from hybridr.cluster.loading import load
from hybridr.cluster.settings import LoadSettings
from hybridr.errors import DataError
from hybridr.evaluation.evaluation import Evaluation, JudgedQueries
from hybridr.evaluation.significance import CONFIDENCE, RESAMPLES, SEED, compare_systems
from hybridr.files.formats import qrels_file, read_qrels, write_qrels, write_run
from hybridr.files.local import fingerprint, read_manifest, sha256_of, versions, write_json
from hybridr.indexing.reindexing import reindex, synced_position
from hybridr.indexing.settings import ReindexSettings
from hybridr.records import Progress
from hybridr.search.settings import SearchSettings
from hybridr.search.systems import Compared, evaluate_index, evaluate_systems
from hybridr.training.adaptation import adapt
from study import machine_record, ranking_code

BASELINES = ("bm25", "hybrid-stock")
STATISTICS = {"interval": "bootstrap", "confidence": CONFIDENCE, "resamples": RESAMPLES, "seed": SEED}
FEW_RESAMPLES = 100
"""While one system is asked its interval is not looked at."""


class Searched(NamedTuple):
    """What a system asks: an index, or the alias of vectors and the encoder that wrote them."""

    name: str
    encoder: Path | None = None
    fingerprint: str | None = None


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
        files = {
            "corpus": self.folder / "corpus.jsonl",
            "queries": self.folder / "queries.jsonl",
            "qrels": split,
        }
        if missing := [file.name for file in files.values() if not file.is_file()]:
            raise DataError(f"the collection {self.condition.name} has no {missing[0]}")
        return {name: sha256_of(file) for name, file in files.items()}

    @property
    def runs_fingerprint(self) -> str:
        """Identify what a system's run depends on."""
        adaptation = [AdaptSettings().record()] if self.condition.needs_vectors else []
        return fingerprint(
            [
                self.condition.settings(),
                self.inputs,
                self.encoder_fingerprint,
                ranking_code(),
                SearchSettings().record(),
                self.reindexing.record(),
                *adaptation,
            ]
        )

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
    plain = vectorised(work, cluster, asked, progress)
    adaptation = adapted(work, cluster, asked, progress) if work.condition.needs_adaptation else None
    own = vectorised(work, cluster, asked, progress, adaptation)
    for number, system in enumerate(work.condition.systems, 2):
        step(number, steps)
        progress(system, 0, 1)
        if not asked.has(system):
            searched = own if ADAPTED in system else plain
            asked.timed(system, partial(ask, work, cluster, system, searched, asked.qrels))
        progress(system, 1, 1)
    return result(work, cluster, asked, documents, adaptation)


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

    @staticmethod
    def forget(work: Work) -> None:
        """Have every system asked anew; encoder and index stay."""
        (work.runs / "state.json").unlink(missing_ok=True)

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


def adapted(work: Work, cluster: Cluster, asked: Asked, progress: Progress) -> AdaptResult:
    """Fit the packaged encoder to the collection's index, or go on with it; one that is there is taken."""
    settings = AdaptSettings(out=work.runs / "adapted")
    found: AdaptResult = asked.timed(
        "adapt", lambda: adapt((cluster, work.index), settings, progress=progress)
    )
    return found


def vectorised(
    work: Work, cluster: Cluster, asked: Asked, progress: Progress, adaptation: AdaptResult | None = None
) -> Searched:
    """Reindex unless that is done, and give what to search; after a veto that is what was there before."""
    if not work.condition.needs_vectors:
        return Searched(work.index)
    if adaptation is None or not adaptation.promoted:
        found, kind = Searched(default_alias(work.index), work.encoder, work.encoder_fingerprint), "reindex"
    else:
        folder, kind = adaptation.folder, f"reindex{ADAPTED}"
        found = Searched(work.index + ADAPTED, folder, load_encoder(folder).fingerprint)
    if not is_reindexed(work, cluster, found):
        asked.timed(kind, lambda: fill(work, cluster, found, progress))
    return found


def is_reindexed(work: Work, cluster: Cluster, wanted: Searched) -> bool:
    """Tell whether all vectors are of this encoder and nothing happened at the source since; read only."""
    current = alias_target(cluster, wanted.name)
    if current is None or current.record.state != "complete":
        return False
    if current.record.encoder != wanted.fingerprint:
        return False
    path = path_of(work.index, "_stats", "docs")
    stats = cluster.request("GET", path, params={"level": "shards"})["indices"][work.index]["shards"]
    settled = {
        int(number): max(copy["seq_no"]["global_checkpoint"], -1)
        for number, copies in stats.items()
        for copy in copies
        if copy["routing"]["primary"]
    }
    synced = synced_position(current)
    return synced is not None and synced.seq_no == settled


def fill(work: Work, cluster: Cluster, wanted: Searched, progress: Progress) -> None:
    """Reindex, or go on with it. Raises DataError when documents were refused."""
    settings = work.reindexing.model_copy(update={"alias": wanted.name})
    done = reindex(cluster, work.index, wanted.encoder or Path(), settings, progress=progress)
    if done.rejected:
        raise DataError(f"the index refused {done.rejected} vectors")


def ask(work: Work, cluster: Cluster, system: str, searched: Searched, qrels: Path) -> None:
    """Ask one system all queries and keep its run."""
    condition, name = work.condition, system.removesuffix(ADAPTED)
    found = evaluate_index(
        cluster,
        searched.name,
        JudgedQueries(work.folder, condition.split, qrels),
        Compared([name], measures=condition.measures, resamples=FEW_RESAMPLES),
        encoder=searched.encoder,
        settings=SearchSettings(tuned=False),
    )
    write_run(work.runs / f"{system}.trec", found.runs[name], system)


def result(
    work: Work, cluster: Cluster, asked: Asked, documents: int, adaptation: AdaptResult | None
) -> dict[str, Any]:
    """Compare the runs and give the record of a finished condition."""
    condition = work.condition
    files = {system: work.runs / f"{system}.trec" for system in condition.systems}
    found = evaluate_systems(
        JudgedQueries(work.folder, condition.split, asked.qrels), Compared((), files, condition.measures)
    )
    return {
        "name": condition.name,
        "condition": work.fingerprint,
        "settings": condition.settings(),
        "inputs": work.inputs,
        "encoder": work.encoder_fingerprint,
        "documents": documents,
        "queries": found.queries,
        "systems": found.systems,
        "intervals": found.intervals,
        "comparisons": comparisons(found),
        "statistics": STATISTICS,
        "seconds": asked.seconds,
        "machine": machine_record(),
        "versions": {**versions(), "opensearch": cluster.info["version"]["number"]},
        "runs": {system: sha256_of(file) for system, file in files.items()},
        **({"adaptation": adaptation_record(adaptation)} if adaptation else {}),
    }


def adaptation_record(adaptation: AdaptResult) -> dict[str, Any]:
    """Give what the encoder's manifest says of its adaptation, and which encoder it is."""
    entry = (read_manifest(adaptation.folder) or {})["adaptation"]
    training = {name: value for name, value in entry["training"].items() if name != "losses"}
    return {
        "encoder": load_encoder(adaptation.folder).fingerprint,
        **{name: entry[name] for name in ("promoted", "gate", "settings")},
        "training": training,
    }


def comparisons(found: Evaluation, baselines: Sequence[str] = BASELINES) -> dict[str, list[dict[str, Any]]]:
    """Compare by the leading measure: every system with each baseline, each adapted one with its unadapted.

    The result is baseline -> comparisons; Holm's correction is over the comparisons with one baseline.
    """
    lead = {name: {found.measures[0]: values[found.measures[0]]} for name, values in found.per_query.items()}
    pairs = {name.replace(ADAPTED, ""): name for name in lead if ADAPTED in name}
    wanted = {baseline: lead for baseline in baselines} | {
        plain: {plain: lead[plain], own: lead[own]} for plain, own in pairs.items() if plain in lead
    }
    return {
        baseline: [vars(one) for one in compare_systems(values, baseline)]
        for baseline, values in wanted.items()
        if baseline in values
    }
