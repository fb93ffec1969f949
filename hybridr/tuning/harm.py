"""Looks for harm that a query map does, without labels."""

from __future__ import annotations

from collections.abc import Sequence

from ..completion import CompletedSearch
from ..encoder import Encoder
from ..label_free import (
    Comparison,
    Rankings,
    compare_kept,
    compare_overlap,
    compare_own_documents,
)
from ..map_fitting import sampled
from ..probes import draw_probes
from ..progress import Progress, silent
from ..records import Query
from ..retrieval import Search
from ..settings import MapSettings, SearchSettings

PROBES, LOG_CAP, TOP = 200, 500, 20


def compare_maps(
    search: CompletedSearch, new: Encoder, log: Sequence[str], seed: int, progress: Progress = silent
) -> list[Comparison]:
    """Compare searching without and with a map on queries made from documents, and on a log of real ones.

    The documents are other ones than the map was fitted on, where the index has enough.
    """
    documents = sampled(search, MapSettings(queries=PROBES, seed=seed + 1), progress)
    probes = draw_probes(documents, PROBES, seed + 1)
    made = [Query(str(i), probe.text) for i, probe in enumerate(probes)]
    answers = [documents[probe.position].doc_id for probe in probes]
    real = [Query(f"log {i}", text) for i, text in enumerate(log[:LOG_CAP])] or made
    assert search.encoder is not None
    before, after = (ranked(search, model, made) for model in (search.encoder, new))
    rows = compare_own_documents(before, after, answers)
    if real is not made:
        before, after = (ranked(search, model, real) for model in (search.encoder, new))
    return [*rows, compare_overlap(before, after), compare_kept(before, after)]


def ranked(search: Search, encoder: Encoder, queries: Sequence[Query]) -> Rankings:
    """Rank queries by words, by an encoder's vectors, and by both."""
    settings = SearchSettings(tuned=False, query_map="none")
    runs = [
        Search(search.cluster, search.info.name, encoder, mode, settings=settings).run(queries, TOP)
        for mode in ("lexical", "dense", "hybrid")
    ]
    lists = ([list(run[query.query_id]) for query in queries] for run in runs)
    return Rankings(*lists)
