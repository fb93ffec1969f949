"""DR, DDR and its rivals on many targets, each by several seeds: what is trained, measured and kept.

Every model is a finished folder in DIR, named by what it was trained with; every row of a target, with its
seed, stands in the target's file of results, which is written after each. So a study goes on where it was,
also on another machine: what the files have is not trained again.
"""

from __future__ import annotations

import argparse
import json
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from backbone import fetch_backbone
from hybridr.errors import DataError, HybridrError
from hybridr.evaluation.evaluation import evaluate
from hybridr.files.formats import read_beir
from hybridr.files.local import acquire_lock, fingerprint, read_manifest
from hybridr.files.programs import locked
from hybridr.records import Document, Qrels, Query, Run
from hybridr.training.rankers import assemble
from study import LEAD, RESULTS, Record, write_result
from workshop import Encode, Workshop, chosen, dense_run, device, encoded, hybrid_run, lexical_run

DEEP = "R@100"
MEASURES = [LEAD, DEEP]
WAYS = ("dense", "hybrid")
SCALE = 10_000
"""Values of queries are kept as whole numbers: nDCG times this."""
Place: TypeAlias = tuple[str, str, str]
"""Target, row and seed."""
WAIT = 1.0
"""Seconds between two looks at what other processes work on."""
NO_SEED = "0"
TRIAL = "@"
"""Between the name of a row and that of the trial whose settings it is measured with."""


class Row(NamedTuple):
    """How a row comes to its encoder."""

    title: str
    domain: str | None = None
    """The objective of its DAM; None: it stands on the backbone as it comes."""
    fitted: str = "target"
    """What its DAM is fitted to: target, from the source's; target alone, from the backbone; source."""
    relevance: Mapping[str, Any] | None = {}
    """How its REM differs from that of the form; `full` trains all weights; None: there is no REM."""
    invariant: bool = False
    """Whether the target takes part in that (MoDIR)."""
    shots: int = 0
    """Queries of the target, none that is measured, that the REM is trained on afterwards."""

    @property
    def stages(self) -> tuple[str, ...]:
        """Name the tables of settings that its values follow from."""
        learnt = "dr" if (self.relevance or {}).get("full") else "rem"
        fitted = {"target": ("source_dam", "target_dam"), "alone": ("source_dam", "target_dam")}
        domain = fitted.get(self.fitted, ("source_dam",)) if self.domain else ()
        learning = () if self.relevance is None else (learnt, "few") if self.shots else (learnt,)
        return (*domain, *learning)


ALL: dict[str, Any] = {"full": True}
DISTIL = {"loss": "distil"}
PAIRS = {
    "contrast": ("dr", "ddr"),
    "contrast, with a DAM by COCO": ("dr", "coco"),
    "distil": ("dr-distil", "ddr-distil"),
    "distil, with a DAM by COCO": ("dr-distil", "coco-distil"),
}
"""The rows that the paper compares, by the loss of both; its DAM learns masked words."""
EFFECTS = {
    "Target's DAM less source's, by masked-LM": ("source", "ddr"),
    "Target's DAM less source's, by COCO": ("coco-source", "coco"),
    "Sequential initialisation less none, by COCO": ("coco-si", "coco"),
    "REM by iDRO less by contrast, DAM by COCO": ("coco", "coco-idro"),
}
"""What one part of the method is worth."""
ROWS = {
    "bm25": Row("BM25"),
    "dr": Row("DR: all weights trained on the source's labels", relevance=ALL),
    "dr-dam": Row("DR from the source DAM", "mlm", "source", ALL),
    "source": Row("source DAM + REM", "mlm", "source"),
    "ddr": Row("DDR: target DAM + REM", "mlm"),
    "ddr-si": Row("DDR without sequential initialisation", "mlm", "alone"),
    "coco-source": Row("source DAM by COCO + REM", "coco", "source"),
    "coco": Row("COCO + REM", "coco"),
    "coco-si": Row("COCO + REM without sequential initialisation", "coco", "alone"),
    "coco-idro": Row("COCO + iDRO", "coco", relevance={"method": "idro"}),
    "groupdro": Row("DR with GroupDRO", relevance={**ALL, "method": "groupdro"}),
    "modir": Row("DR with MoDIR", relevance=ALL, invariant=True),
    "berm": Row("DR with BERM", relevance={**ALL, "method": "berm"}),
    "rem-only": Row("REM on the backbone, no DAM"),
    "dam-only": Row("target DAM, no REM", "mlm", relevance=None),
    "dr-distil": Row("DR, distilled", relevance={**ALL, **DISTIL}),
    "source-distil": Row("source DAM + REM, distilled", "mlm", "source", DISTIL),
    "ddr-distil": Row("DDR, distilled", "mlm", relevance=DISTIL),
    "coco-distil": Row("COCO + REM, distilled", "coco", relevance=DISTIL),
    "few-8": Row("DDR, REM trained on by 8 queries of the target", "mlm", shots=8),
    "few-32": Row("DDR, REM trained on by 32 queries of the target", "mlm", shots=32),
    "ddr-lora": Row("DDR, REM of LoRA", "mlm", relevance={"design": "lora"}),
    "ddr-parallel": Row("DDR, REM of a parallel adapter", "mlm", relevance={"design": "parallel"}),
}


class Models(Workshop):
    """The encoders of all rows, by one seed."""

    def __init__(self, collections: Path, work: Path, form: Record) -> None:
        super().__init__(collections, work, form)
        self.trained: dict[str, Record] = {}

    def dam(self, stage: str, collection: str, base: str, name: str, **changes: Any) -> str:
        """Fit a DAM in a folder that is named by its settings, so that those of a trial have their own."""
        name += f"-{fingerprint([self.form[stage] | changes, Path(base).name])[:8]}"
        return self.made(name, "dam", partial(super().dam, stage, collection, base, name, **changes))

    def relevance(self, name: str, dam: str, stage: str = "rem", target: Any = None, **changes: Any) -> str:
        """Train a REM in such a folder."""
        name += f"-{fingerprint([self.form[stage] | changes, Path(dam).name])[:8]}"
        return self.made(name, "rem", partial(super().relevance, name, dam, stage, target, **changes))

    def made(self, name: str, stage: str, make: Callable[[], object]) -> str:
        """Make a model unless its folder is there, and note it. Raises Taken."""
        folder = self.work / name
        if stage not in (read_manifest(folder) or {}):
            with claimed(self.work / f"{name}.lock"):
                make()
        return self.noted(str(folder), stage)

    def noted(self, folder: str, stage: str) -> str:
        """Note how a training went, from its manifest; give its folder."""
        entry = (read_manifest(Path(folder)) or {})[stage]
        unseen = {"unseen_loss": entry["unseen_loss"]} if "unseen_loss" in entry else {}
        said = {name: entry[name] for name in ("steps", "seconds", "loss_start", "loss_end")}
        self.trained[f"{self.work.name}/{Path(folder).name}"] = said | unseen
        return folder

    def encoder(self, name: str, target: str) -> Encode:
        """Make the encoder of a row for a target."""
        row = ROWS[name]
        source = self.source_dam(row.domain) if row.domain else self.backbone
        dam = self.fitted(row, source, target)
        learnt = None if row.relevance is None else self.learnt(row, source, target)
        if row.relevance and row.relevance.get("full"):
            return assemble(str(learnt))
        return assemble(dam, self.few(row.shots, dam, str(learnt), target) if row.shots else learnt)

    def source_dam(self, objective: str) -> str:
        """Fit the backbone to the source."""
        return self.dam("source_dam", self.source, self.backbone, f"{objective}-source", objective=objective)

    def fitted(self, row: Row, source: str, target: str) -> str:
        """Give the DAM that the REM of a row is joined with."""
        if row.domain is None or row.fitted == "source" or (row.relevance or {}).get("full"):
            return source
        base, name = (self.backbone, "alone") if row.fitted == "alone" else (source, "target")
        return self.dam("target_dam", target, base, f"{row.domain}-{name}-{target}", objective=row.domain)

    def learnt(self, row: Row, dam: str, target: str) -> str:
        """Train what a row learns of the source's labels, on the source's DAM where there is one."""
        from hybridr.relevance.corpus import CorpusFile, read_target

        changes = dict(row.relevance or {})
        stage = "dr" if changes.get("full") else "rem"
        domain = read_target(target, CorpusFile(self.collections / target)) if row.invariant else None
        name = f"modir-{target}" if row.invariant else str(changes.get("method") or stage)
        name += "-distil" * ("loss" in changes)
        return self.relevance(f"{name}-{row.domain or 'none'}", dam, stage, domain, **changes)

    def few(self, shots: int, dam: str, rem: str, target: str) -> str:
        """Train a REM on by some queries of the target, joined with the target's DAM."""
        from hybridr.training.rem import RemSettings, train_rem

        shared = {name: self.form["rem"][name] for name in ("design", "rank") if name in self.form["rem"]}
        given = shared | self.form["few"]
        name = fingerprint([given, shots, Path(dam).name, Path(rem).name])[:8]
        out = self.work / f"few-{shots}-{target}-{name}"
        settings = RemSettings(dam=dam, rem=rem, out=out, **given)
        judged = spare_queries(self.collections / target, self.form["queries"])
        asked = judged.sample(shots, settings.seed)
        return self.made(out.name, "rem", partial(train_rem, asked, settings))


class Collection(NamedTuple):
    """Documents, and the queries that are asked of them."""

    corpus: list[Document]
    queries: list[Query]
    qrels: Qrels


@cache
def read_collection(folder: Path, queries: int) -> Collection:
    """Read a collection; of many queries some."""
    corpus, found, qrels = read_beir(folder)
    return Collection(corpus, chosen(found, qrels, queries), qrels)


def spare_queries(folder: Path, queries: int) -> Any:
    """Read the judged queries of a collection that are not measured, of the first split that has some.

    Raises DataError when there are none.
    """
    from hybridr.training.judged import read_judged_beir

    taken = {query.query_id for query in read_collection(folder, queries).queries}
    for split in ("train", "dev", "test"):
        if (folder / "qrels" / f"{split}.tsv").is_file():
            judged = read_judged_beir(folder, split)
            rest = {name: text for name, text in judged.queries.items() if name not in taken}
            if rest:
                positives = {name: judged.positives[name] for name in rest}
                return replace(judged, queries=rest, positives=positives)
    raise DataError(f"{folder.name} has no judged queries but those that are measured")


def measure(given: argparse.Namespace, form: Record) -> int:
    """Measure what the files of results have not, by `given.jobs` processes; return the exit code."""
    form = with_backbone(form, given)
    if given.jobs == 1:
        return int(not measure_rest(given, form))
    context = get_context("spawn")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # workers end with this process
    workers = [context.Process(target=work, args=(given, form), daemon=True) for _ in range(given.jobs)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return int(any(worker.exitcode for worker in workers))


def with_backbone(form: Record, given: argparse.Namespace) -> Record:
    """Return a form whose backbone is a folder: the given one, else its own, fetched if it is not there."""
    base = given.backbone or form["backbone"]
    if isinstance(base, dict):
        base = str(fetch_backbone(base, given.work / "backbone"))
    return form | {"backbone": base}


def work(given: argparse.Namespace, form: Record) -> None:
    """Measure what is left in a process of its own, which ends with the one that started it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    sys.exit(int(not measure_rest(given, form)))


def measure_rest(given: argparse.Namespace, form: Record) -> bool:
    """Measure round by round, seed by seed, row by row; return whether nothing failed.

    What another process works on is left to it, and looked at again until it is there.
    """
    rest, failed = list(places(form, given.sets)), False
    while rest:
        taken: list[Place] = []
        for place in rest:
            try:
                measure_place(given, form, place)
            except Taken:
                taken.append(place)
            except HybridrError as error:
                failed = True
                print(f"{' '.join(place)} failed: {error.message}", file=sys.stderr, flush=True)
        if len(taken) == len(rest):
            time.sleep(WAIT)
        rest = taken
    return not failed


def measure_place(given: argparse.Namespace, form: Record, place: Place) -> None:
    """Measure a row on a target by a seed, and write it, unless the file has it. Raises Taken."""
    target, row, seed = place
    file = (given.json or RESULTS / f"ddr-{given.form}") / f"{target}.json"
    mine = with_trial(form, row)
    key = key_of(mine, row.partition(TRIAL)[0])
    if read_results(file).get("rows", {}).get(row, {}).get(seed, {}).get("key") == key:
        return
    locks = given.work / given.form / "locks"
    with claimed(locks / fingerprint([target, row, seed])[:16]):
        collection = read_collection(given.folder / target, form["queries"])
        values, trained = measured(given, mine, place, collection)
        with locked(locks / f"{target}.json"):
            record = joined(read_results(file), collection, (row, seed), {"key": key, **values}, trained)
            write_result(file, record)
    print(f"{target}: {row} by seed {seed}: {values['mean']}", file=sys.stderr, flush=True)


def read_results(file: Path) -> Record:
    """Read what was measured of a target, empty where nothing was."""
    record: Record = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    return record


class Taken(Exception):
    """Another process works on it."""


@contextmanager
def claimed(lock: Path) -> Iterator[None]:
    """Hold a lock file. Raises Taken where another process holds it."""
    lock.parent.mkdir(parents=True, exist_ok=True)
    try:
        held = acquire_lock(lock, wait=False)
    except BlockingIOError:
        raise Taken from None
    with held:
        yield


def places(form: Record, sets: list[str]) -> Iterator[Place]:
    """Give target, row and seed of all that is measured, in the order of the work.

    The sets that settings are chosen on come first: they have the first round and the trials by one seed.
    """
    first, rounds = form["seeds"][0], form["rounds"]
    work = [(row, first, form["choosing"]) for row in [*rounds[0], *form["trial_rows"]]]
    work += [(row, seed, form["targets"]) for rows in rounds for seed in form["seeds"] for row in rows]
    for row, seed, names in work:
        place = NO_SEED if row == "bm25" else str(seed)
        able = [name for name in names if not (ROWS[row.partition(TRIAL)[0]].shots and name in form["whole"])]
        yield from ((name, row, place) for name in able if not sets or name in sets)


def with_trial(form: Record, row: str) -> Record:
    """Change the form's settings to those of the trial that a row names, if it does."""
    _, _, trial = row.partition(TRIAL)
    changes = form["trials"][trial] if trial else {}
    return form | {stage: form[stage] | values for stage, values in changes.items()}


def key_of(form: Record, row: str) -> str:
    """Identify the settings that a row's values follow from."""
    stages = () if row == "bm25" else ROWS[row].stages
    shared = {name: form[name] for name in ("source", "max_tokens", "queries")}
    base = {"backbone": Path(form["backbone"]).name}
    return fingerprint({**shared, **base, **{stage: form[stage] for stage in stages}})[:16]


def measured(
    given: argparse.Namespace, form: Record, place: Place, collection: Collection
) -> tuple[Record, dict[str, Record]]:
    """Rank a target by a row; give values, and the trainings that it took."""
    target, row, seed = place
    corpus, queries, _ = collection
    if row == "bm25":
        run = lexical_run(corpus, queries)
        return values_of(dict.fromkeys(WAYS, run), collection), {}
    models = Models(given.folder, given.work / given.form / f"seed-{seed}", seeded(form, int(seed)))
    encoder = models.encoder(row.partition(TRIAL)[0], target).to(device())
    vectors = encoded(encoder, corpus, queries, form["max_tokens"])
    runs = {"dense": dense_run(vectors, corpus, queries), "hybrid": hybrid_run(vectors, corpus, queries)}
    return values_of(runs, collection), models.trained


def seeded(form: Record, seed: int) -> Record:
    """Give every training the seed."""
    stages = ("source_dam", "target_dam", "rem", "dr", "few")
    return form | {stage: form[stage] | {"seed": seed} for stage in stages}


def values_of(runs: Mapping[str, Run], collection: Collection) -> Record:
    """Give the means, and nDCG by query, in the order of the queries and in one text a way."""
    report = evaluate(runs, collection.queries, collection.qrels, MEASURES, resamples=1)
    values = {way: report.per_query[way][LEAD].values() for way in WAYS}
    means = {way: {name: round(report.systems[way][name], 4) for name in MEASURES} for way in WAYS}
    texts = {way: " ".join(str(round(SCALE * value)) for value in values[way]) for way in WAYS}
    return {"mean": means, "queries": texts}


def joined(
    record: Record,
    collection: Collection,
    place: tuple[str, str],
    values: Record,
    trained: Mapping[str, Record],
) -> Record:
    """Put the values of a row and seed into a target's record."""
    row, seed = place
    rows = record.get("rows", {})
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    return record | {
        "documents": len(collection.corpus),
        "queries": len(collection.queries),
        "rows": rows | {row: rows.get(row, {}) | {seed: values}},
        "training": record.get("training", {}) | dict(trained),
        "peak_mib": max(peak, record.get("peak_mib", 0)),
    }
