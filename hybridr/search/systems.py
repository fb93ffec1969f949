"""Evaluates the named systems of `hybridr evaluate`: searches of an index and TREC run files."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from ..cluster.connection import Cluster
from ..cluster.destinations import resolve
from ..cluster.reading import count_missing
from ..cluster.record import IndexInfo
from ..errors import DataError, SettingsError, quantity
from ..evaluation.evaluation import (
    MEASURES,
    Evaluation,
    JudgedQueries,
    System,
    checked_qrels,
    evaluate,
    needed_depth,
    parse_measure,
)
from ..evaluation.regression import (
    ALLOWED,
    check_limits,
    compare_with_baseline,
    read_baseline,
    write_baseline,
)
from ..evaluation.report import rendered, report_format, shown_documents
from ..evaluation.significance import RESAMPLES
from ..families import load_member, member_names
from ..files.formats import document_of, read_corpus, read_run
from ..files.local import replacing
from ..records import Progress, Qrels, Query, Run, silent
from .checks import Feedback, Mode, encoder_for, encodes, modes
from .fusions import FAMILY as FUSIONS
from .hits import fetch_texts
from .rerankers import FAMILY as RERANKERS
from .search import Search
from .settings import SearchSettings

CHECKED_DOCUMENTS, SAMPLE_SEED = 1000, 13
NO_FILES: Mapping[str, Path] = MappingProxyType({})


class Condition(NamedTuple):
    """The definition of a named system: mode, feedback, settings that replace the user's, and re-rankers."""

    mode: Mode
    feedback: Feedback | None = None
    settings: dict[str, Any] | None = None
    own_query: bool = True
    reranked: tuple[str, ...] = ()

    def search_settings(self, user_settings: SearchSettings | None, depth: int) -> SearchSettings:
        """Return the settings of the system, with at least `depth` candidates.

        The user's searched fields apply to every system. The user's own lexical query applies unless the
        system has its own query, or its `own_query` is False.
        """
        user_settings, own_settings = user_settings or SearchSettings(), self.settings or {}
        settings = SearchSettings(**own_settings) if own_settings else user_settings
        template = (settings if "query_template" in own_settings else user_settings).query_template
        values = {
            "query_template": template if self.own_query else None,
            "lexical_fields": user_settings.lexical_fields,
            "depth": max(settings.depth, depth),
        }
        values |= {"rerank": ("none",)} if self.reranked else {}
        return settings.model_copy(update=values)


SYSTEMS = {
    "bm25": Condition("lexical", own_query=False),
    "template": Condition("lexical"),
    "rm3": Condition("lexical", feedback="rm3", own_query=False),
    "hybrid-plain": Condition("hybrid", settings={"tuned": False, "signals": ("none",)}),
    "hybrid-stock": Condition("hybrid", settings={"tuned": False, "fusion": "pipeline"}),
}


def system(name: str) -> Condition:
    """Return the definition of a system by name: one of the table, any retriever, `hybrid-FUSION` for any
    fusion, and `SYSTEM+RERANKER`. Raises SettingsError.
    """
    if "+" in name:
        first, *reranked = name.split("+")
        for reranker in reranked:
            load_member(RERANKERS, reranker)
        return system(first)._replace(reranked=tuple(reranked))
    fusions = {f"hybrid-{name}": name for name in member_names(FUSIONS)}
    if name in fusions:
        return Condition("hybrid", settings={"tuned": False, "fusion": fusions[name]})
    conditions = SYSTEMS | {mode: Condition(mode) for mode in modes()}
    if name not in conditions:
        raise SettingsError(f"unknown system '{name}': {', '.join([*conditions, *fusions])}")
    return conditions[name]


class Compared(NamedTuple):
    """An evaluation: named systems of an index and TREC runs, the first compared with the others.

    `templates` are files of lexical queries, as an application sends them; each is a system, listed after the
    first one. The first of them is also the lexical retriever of all systems, and the system `template` if
    that is named. `measures` are spelled as in ir-measures. The default `baseline` is the first system.
    Intervals and tests draw `resamples` times.

    `write` is a file for the values, with which later evaluations are compared; `against` is such a file. A
    system fails if a mean fell significantly and by more than `allow`, or by more than `at_most`. Nothing is
    written if a system fails.
    """

    systems: Sequence[str] = ("bm25", "dense", "hybrid")
    runs: Mapping[str, Path] = NO_FILES
    measures: Sequence[str] = MEASURES
    baseline: str | None = None
    resamples: int = RESAMPLES
    templates: Mapping[str, Path] = NO_FILES
    write: Path | None = None
    against: Path | None = None
    allow: float = ALLOWED
    at_most: float | None = None

    @property
    def depth(self) -> int:
        """Return how many results of a query the measures look at."""
        return needed_depth([parse_measure(measure) for measure in self.measures])

    def conditions(self) -> dict[str, Condition]:
        """Return the systems' definitions by name. Raises SettingsError for an unknown or repeated name."""
        if repeated := [name for name in self.templates if name in self.systems]:
            raise SettingsError(
                f"two systems are called '{repeated[0]}'", hint="--query-template OTHER-NAME=FILE"
            )
        definitions = {system_name: system(system_name) for system_name in self.systems}
        first = dict(list(definitions.items())[:1])
        templates = {
            name: Condition("lexical", settings={"query_template": file})
            for name, file in self.templates.items()
        }
        return first | templates | definitions


def evaluate_index(
    cluster: Cluster,
    name: str,
    judged_queries: JudgedQueries,
    compared: Compared = Compared(),
    *,
    encoder: Path | None = None,
    settings: SearchSettings | None = None,
    progress: Progress = silent,
) -> Evaluation:
    """Evaluate named systems of one index, and TREC runs, on the judged queries of a BEIR folder.

    Each retriever has as many candidates as the measures look at. Raises SettingsError for an unknown system,
    DataError if the index lacks most of the relevant documents, and what `Search` and `evaluate` raise.
    """
    if compared.templates:
        (_, first_file), *others = compared.templates.items()
        settings = (settings or SearchSettings()).model_copy(update={"query_template": first_file})
        if "template" in compared.systems:  # that system is the first template
            compared = compared._replace(templates=dict(others))
    conditions = compared.conditions()
    if "template" in conditions and not (settings and settings.query_template):
        raise SettingsError("the system 'template' is your own query", hint="--query-template FILE")
    queries, judgements = judged_queries.read()
    info = resolve(cluster, name)
    check_collection(cluster, info, judgements)
    encoded = any(encodes(condition.mode, settings or SearchSettings()) for condition in conditions.values())
    model = encoder_for(info, encoder, progress=progress) if encoded else None
    searches = {}
    for system_name, condition in conditions.items():
        system_settings = condition.search_settings(settings, compared.depth)
        search = Search(cluster, info, model, condition.mode, condition.feedback, settings=system_settings)
        searches[system_name] = with_rerankers(condition, search, settings)
    remarks = [f"{name}: {remark}" for name, search in searches.items() for remark in search.remarks]
    texts = [query.text for query in queries if query.query_id in judgements]
    for system_name, search in searches.items():
        if count := len(search.signals.learnt_from(texts)):
            remarks.append(
                f"{system_name}: {count:,} of {len(texts):,} queries were learnt: by these it looks better "
                "than it is"
            )
    evaluation = evaluate_searches(searches, queries, judgements, compared, progress)
    return replace(evaluation, remarks=(*evaluation.remarks, *remarks))


def with_rerankers(condition: Condition, search: Search, settings: SearchSettings | None) -> Search:
    """Return a search with the re-rankers of its system, and the user's settings of these."""
    if not condition.reranked:
        return search
    fields = {
        name: load_member(RERANKERS, name).own_settings.model_fields for name in member_names(RERANKERS)
    }
    foreign = set().union(*fields.values()).difference(*(fields[name] for name in condition.reranked))
    values = settings.rerank_settings if settings else {}
    own_values = {name: value for name, value in values.items() if name not in foreign}
    return search.reranked(*condition.reranked, **own_values)


def evaluate_systems(
    judged_queries: JudgedQueries,
    compared: Compared,
    *,
    index: tuple[Cluster, str] | None = None,
    encoder: Path | None = None,
    settings: SearchSettings | None = None,
    report: Path | None = None,
    progress: Progress = silent,
) -> Evaluation:
    """Evaluate an index as `evaluate_index` does, or TREC run files alone, and write a report if a file is
    given.

    Run files need no cluster and no query texts. The suffix of the report, .md or .html, sets its format.
    Raises SettingsError for another suffix, and without qrels or runs; DataError with file and line for
    unreadable input; and what `evaluate` raises.
    """
    if report is not None:
        report_format(report)  # raises before anything is searched
    if index is None:
        evaluation = evaluate_searches({}, *judged_queries.read(), compared, progress)
    else:
        evaluation = evaluate_index(
            *index, judged_queries, compared, encoder=encoder, settings=settings, progress=progress
        )
    if report is not None:
        beir = judged_queries.beir
        kind = report_format(report)
        texts: dict[str, str] = {}
        doc_ids = shown_documents(evaluation) if kind == "html" else []
        name = "runs"
        if index:
            cluster, name = index
            texts = fetch_texts(cluster, resolve(cluster, name), doc_ids)
        elif beir and (beir / "corpus.jsonl").is_file():
            needed_ids = set(doc_ids)
            records = (record for record in read_corpus(beir) if record["_id"] in needed_ids)
            texts = {record["_id"]: document_of(record, beir).contents for record in records}
        title = f"{name}: {quantity(evaluation.queries, 'query')}"
        with replacing(report, private=bool(texts)) as temporary:
            temporary.write_text(rendered(evaluation, kind, title, texts), encoding="utf-8")
    return evaluation


def evaluate_searches(
    searches: Mapping[str, System | Run],
    queries: Sequence[Query],
    judgements: Qrels,
    compared: Compared,
    progress: Progress,
) -> Evaluation:
    """Measure searches and runs, compare with a baseline file, and write one. Raises SettingsError for a
    repeated name.
    """
    if repeated := [name for name in compared.runs if name in searches]:
        raise SettingsError(f"two systems are called '{repeated[0]}'", hint="--run OTHER-NAME=FILE")
    check_limits(compared.against, compared.allow, compared.at_most)
    earlier = None
    if compared.against is not None:  # before anything is searched
        measures = dict.fromkeys(str(parse_measure(measure)) for measure in compared.measures)
        names = [*searches, *compared.runs]
        earlier = read_baseline(compared.against, names, measures, checked_qrels(judgements))
    evaluation = evaluate(
        {**searches, **{name: read_run(file) for name, file in compared.runs.items()}},
        queries,
        judgements,
        compared.measures,
        baseline=compared.baseline,
        resamples=compared.resamples,
        progress=progress,
    )
    if earlier is not None:
        changes = compare_with_baseline(earlier, evaluation.per_query, compared.allow, compared.at_most)
        evaluation = replace(evaluation, changes=tuple(changes))
    if compared.write is not None and not evaluation.falls:
        write_baseline(compared.write, evaluation.per_query, evaluation.qrels)
    return evaluation


def check_collection(cluster: Cluster, info: IndexInfo, qrels: Qrels) -> None:
    """Raise DataError if the index lacks most of the relevant documents of the qrels."""
    relevant = sorted({doc for grades in qrels.values() for doc, grade in grades.items() if grade > 0})
    sample = random.Random(SAMPLE_SEED).sample(relevant, min(CHECKED_DOCUMENTS, len(relevant)))
    missing = count_missing(cluster, info, sample)
    if 2 * missing > len(sample):
        raise DataError(
            f"{missing:,} of {len(sample):,} relevant documents of the qrels are not in '{info.name}': "
            "index and qrels are not of the same collection",
            hint="hybridr load FOLDER --index NAME   loads the collection that the qrels judge",
        )
