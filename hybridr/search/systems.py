"""The named systems of `evaluate`, and the search that `hybridr search` opens."""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from ..cluster.connection import Cluster
from ..cluster.destinations import resolve
from ..cluster.fields import choose_text_fields
from ..cluster.reading import count_missing, sources_by_id, text_of
from ..errors import DataError, SettingsError
from ..evaluation.evaluation import Evaluation, System, evaluate
from ..evaluation.measures import MEASURES, needed_depth, parse_measure
from ..evaluation.report import checked_format, shown_documents, write_report
from ..evaluation.settings import EvaluateSettings
from ..files.formats import document_of, qrels_file, read_corpus, read_qrels, read_queries, read_run
from ..progress import Progress, silent
from ..records import Qrels, Query, Run
from .encoders import encoder_for
from .fusions.completed import CompletedSearch
from .search import LEXICAL, Feedback, Mode, Search
from .settings import SearchSettings

CHECKED_DOCUMENTS, SAMPLE_SEED = 1000, 13
NO_RUNS: Mapping[str, Path] = MappingProxyType({})


class Condition(NamedTuple):
    """What a named system is; its own `settings` take the place of the user's."""

    mode: Mode
    feedback: Feedback | None = None
    settings: dict[str, Any] | None = None
    completed: bool = False


SYSTEMS = {
    "bm25": Condition("lexical"),
    "rm3": Condition("lexical", feedback="rm3"),
    "dense": Condition("dense"),
    "dense-exact": Condition("dense", settings={"exact": True}),
    "hybrid": Condition("hybrid"),
    "dense-rocchio": Condition("dense", feedback="rocchio"),
    "hybrid-rocchio": Condition("hybrid", feedback="rocchio"),
    "hybrid-rm3": Condition("hybrid", feedback="rm3"),
    "hybrid-stock": Condition("hybrid", settings={"tuned": False, "fusion": "pipeline"}),
    "hybrid-completed": Condition("hybrid", settings={"tuned": False}, completed=True),
}


def open_search(
    cluster: Cluster,
    name: str,
    mode: Mode = "hybrid",
    encoder: Path | None = None,
    settings: SearchSettings | None = None,
    *,
    feedback: Feedback | None = None,
    complete: bool = False,
    progress: Progress = silent,
) -> Search:
    """Open a search of `name` with the encoder that wrote its vectors, or the one in the given folder."""
    info = resolve(cluster, name)
    model = None if mode == LEXICAL else encoder_for(cluster, info, encoder, progress=progress)
    kind = CompletedSearch if complete and mode == "hybrid" else Search
    return kind(cluster, info.name, model, mode, feedback, settings=settings)


def evaluate_index(
    cluster: Cluster,
    name: str,
    beir: Path,
    *,
    split: str = "test",
    qrels: Path | None = None,
    systems: Sequence[str] = ("bm25", "dense", "hybrid"),
    runs: Mapping[str, Path] = NO_RUNS,
    measures: Sequence[str] = MEASURES,
    baseline: str | None = None,
    encoder: Path | None = None,
    settings: SearchSettings | None = None,
    statistics: EvaluateSettings | None = None,
    progress: Progress = silent,
) -> Evaluation:
    """Evaluate named systems of one index, and given TREC runs, on the judged queries of a BEIR folder.

    `qrels` overrides those of the split. The candidates of each leg are as deep as the measures look.
    Raises SettingsError for an unknown system, DataError when the index lacks most of the relevant
    documents, and what `open_search` and `evaluate` raise.
    """
    if unknown := [system for system in systems if system not in SYSTEMS]:
        raise SettingsError(f"unknown system '{unknown[0]}': {', '.join(SYSTEMS)}")
    judgements = read_qrels(qrels or qrels_file(beir, split))
    queries = read_queries(beir, judgements)
    info = resolve(cluster, name)
    check_collection(cluster, info.name, judgements)
    statistics = statistics or EvaluateSettings()
    depth = statistics.depth or needed_depth([parse_measure(measure) for measure in measures])
    modes = {SYSTEMS[system].mode for system in systems}
    model = encoder_for(cluster, info, encoder, progress=progress) if modes - {LEXICAL} else None
    opened: dict[str, System | Run] = {}
    for system in systems:
        condition = SYSTEMS[system]
        kind = CompletedSearch if condition.completed else Search
        given = settings or SearchSettings()
        chosen = SearchSettings(**condition.settings) if condition.settings else given
        chosen = chosen.model_copy(update={"depth": max(chosen.depth, depth)})
        opened[system] = kind(cluster, info.name, model, condition.mode, condition.feedback, settings=chosen)
    opened |= read_runs(runs, systems)
    return evaluate(
        opened, queries, judgements, measures, baseline=baseline, settings=statistics, progress=progress
    )


def evaluate_runs(
    runs: Mapping[str, Path],
    *,
    beir: Path | None = None,
    split: str = "test",
    qrels: Path | None = None,
    measures: Sequence[str] = MEASURES,
    baseline: str | None = None,
    statistics: EvaluateSettings | None = None,
    progress: Progress = silent,
) -> Evaluation:
    """Evaluate TREC run files without a cluster, on `qrels` or on a split of a BEIR folder.

    The BEIR folder gives the texts of the queries too. Raises SettingsError when there are no qrels or no
    runs, DataError with file and line for what cannot be read, and what `evaluate` raises.
    """
    if qrels is None and beir is None:
        raise SettingsError("no judgements", hint="--qrels FILE, or --beir FOLDER")
    judgements = read_qrels(qrels or qrels_file(beir or Path(), split))
    queries = read_queries(beir, judgements) if beir else [Query(one, "") for one in judgements]
    return evaluate(
        read_runs(runs),
        queries,
        judgements,
        measures,
        baseline=baseline,
        settings=statistics,
        progress=progress,
    )


def read_runs(runs: Mapping[str, Path], taken: Collection[str] = ()) -> dict[str, System | Run]:
    """Read TREC runs by system. Raises SettingsError for a name that is taken, and what `read_run` raises."""
    if twice := [name for name in runs if name in taken]:
        raise SettingsError(f"two systems are called '{twice[0]}'", hint="--run OTHER-NAME=FILE")
    return {name: read_run(file) for name, file in runs.items()}


def check_collection(cluster: Cluster, index: str, qrels: Qrels) -> None:
    """Refuse an index that lacks most of the relevant documents. Raises DataError."""
    relevant = sorted({doc for grades in qrels.values() for doc, grade in grades.items() if grade > 0})
    asked = random.Random(SAMPLE_SEED).sample(relevant, min(CHECKED_DOCUMENTS, len(relevant)))
    missing = count_missing(cluster, index, asked)
    if 2 * missing > len(asked):
        raise DataError(
            f"{missing:,} of {len(asked):,} relevant documents of the qrels are not in '{index}': "
            "index and qrels are not of the same collection",
            hint="hybridr load FOLDER --index NAME   loads the collection that the qrels judge",
        )


def report(
    found: Evaluation,
    file: Path,
    title: str,
    *,
    kind: str | None = None,
    index: tuple[Cluster, str] | None = None,
    beir: Path | None = None,
) -> None:
    """Write a report; HTML shows documents with their text from the index, else from the BEIR folder.

    `kind` is markdown, latex, json or html; None: by the suffix of the file. Raises SettingsError.
    """
    chosen = checked_format(kind, file)
    texts: dict[str, str] = {}
    if chosen == "html":
        wanted = shown_documents(found)
        texts = _texts_of_index(*index, wanted) if index else _texts_of_folder(beir, wanted)
    write_report(found, file, chosen, title, texts)


def _texts_of_index(cluster: Cluster, name: str, wanted: Sequence[str]) -> dict[str, str]:
    info = resolve(cluster, name)
    fields = info.record.fields or choose_text_fields(cluster, info.name)
    found: dict[str, str] = {}
    for start in range(0, len(wanted), CHECKED_DOCUMENTS):
        sources = sources_by_id(cluster, info.name, wanted[start : start + CHECKED_DOCUMENTS])
        found |= {doc_id: text_of(source, fields) for doc_id, source in sources.items()}
    return found


def _texts_of_folder(beir: Path | None, wanted: Sequence[str]) -> dict[str, str]:
    if beir is None or not (beir / "corpus.jsonl").is_file():
        return {}
    shown = set(wanted)
    return {
        record["_id"]: document_of(record, beir).contents
        for record in read_corpus(beir)
        if record["_id"] in shown
    }
