"""Labels that nobody gave (GPL, Wang et al. 2022): queries of an index's own documents, or of its log.

A query that was made of a document stands where searches find that document again among their best hits. One
of a log takes the best hit: a teacher's margins say what that is worth. Negatives are further hits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from ..cluster.connection import Cluster
from ..cluster.destinations import is_destination, resolve
from ..cluster.fields import choose_text_fields
from ..cluster.reading import documents_in_pages
from ..errors import DataError
from ..evaluation.label_free import draw_probes
from ..files.atomic import staged_folder
from ..files.formats import fits_word, write_beir
from ..files.manifest import fingerprint, read_manifest, write_manifest
from ..files.remembered import remember_text
from ..records import Document, Progress, Query, Run, silent
from ..relevance.corpus import draw_sample, titled
from ..search.search import Search
from .judged import FILE, Judged, line_of, read_judged_beir

LABELS_VERSION = 1
LEAST_LABELS, FETCHED_TEXTS = 10, 200
FOUND_AMONG = 10  # hits, of which a query's own document has to be one
GIVE_OTHERS = "--queries FILE gives those of a log, one per line"


class Made(NamedTuple):
    """Labels that were made, and the file of their negatives."""

    judgements: Judged
    negatives: Path


@dataclass(frozen=True)
class LabelSource:
    """What labels are made of: at most so many queries, each with so many negatives, in a folder."""

    out: Path
    queries: int = 1_000
    negatives: int = 50
    seed: int = 0
    log: tuple[str, ...] = ()


def make_labels(cluster: Cluster, name: str, making: LabelSource, progress: Progress = silent) -> Made:
    """Make labels from an index, as a BEIR folder with a file of negatives; what was made before is read.

    Its vectors take part where it has some, else BM25 alone. Raises DataError where searches find fewer than
    10 queries' documents again, or documents hold fewer than 40 texts.
    """
    info = resolve(cluster, name)
    fields = tuple(choose_text_fields(cluster, info, info.record.fields))
    drawn = draw_sample(
        (cluster, info.name), max(100, making.queries), seed=making.seed, fields=fields, progress=progress
    )
    if making.log:
        made_queries = [MadeQuery(text, None) for text in making.log]
    else:
        probes = draw_probes(drawn.documents, making.queries, making.seed)
        made_queries = [MadeQuery(probe.text, drawn.documents[probe.position].doc_id) for probe in probes]
    made_queries = made_queries[: making.queries]
    inputs = [info.uuid, info.record.encoder, drawn.fingerprint, making.negatives, made_queries]
    key = fingerprint([LABELS_VERSION, *inputs])
    if (read_manifest(making.out) or {}).get("key") != key:
        mode = "hybrid" if is_destination(info) else "lexical"
        progress("find negatives", 0, len(made_queries))
        run = Search(cluster, info, mode=mode).run(
            [Query(str(number), query.text) for number, query in enumerate(made_queries)],
            making.negatives + FOUND_AMONG,
        )
        progress("find negatives", len(made_queries), len(made_queries))
        matches = round_trips(made_queries, run)
        if len(matches) < LEAST_LABELS:
            raise DataError(
                f"{len(matches)} of {len(made_queries)} queries find their document again among "
                f"{FOUND_AMONG} hits, {LEAST_LABELS} are needed",
                hint=GIVE_OTHERS,
            )
        texts = {number: made_queries[int(number)].text for number in matches}
        doc_ids = list(dict.fromkeys(doc_id for ranked in matches.values() for doc_id in ranked))
        documents = {}
        for page in documents_in_pages(cluster, info, doc_ids, page=FETCHED_TEXTS):
            for document in page:
                documents[document.doc_id] = titled(document.doc_id, document.source, fields)
        write_labels(making, key, texts, matches, documents)
        remember_text(making.out, "made queries", name)
    return Made(read_judged_beir(making.out), making.out / FILE)


class MadeQuery(NamedTuple):
    """A query, and the document that it was made of; None of a log's."""

    text: str
    made_of: str | None


def round_trips(queries: list[MadeQuery], run: Run) -> dict[str, list[str]]:
    """Return of each query that finds its document again: that document, then all other hits, best first.

    Documents whose ids have blanks in them are left out: no file of negatives can hold them.
    """
    matches: dict[str, list[str]] = {}
    for number, query in enumerate(queries):
        ranked = list(run.get(str(number), {}))
        own = query.made_of or next(iter(ranked), None)
        if own in ranked[:FOUND_AMONG] and fits_word(own):
            matches[str(number)] = [own, *(doc for doc in ranked if doc != own and fits_word(doc))]
    return matches


def write_labels(
    making: LabelSource,
    key: str,
    texts: Mapping[str, str],
    matches: Mapping[str, list[str]],
    documents: Mapping[str, Document],
) -> None:
    """Write queries, documents, labels and negatives as a BEIR folder, whole or not at all."""
    there = {number: [doc for doc in ranked if doc in documents] for number, ranked in matches.items()}
    queries = [Query(number, texts[number]) for number in there]
    with staged_folder(making.out) as folder:
        write_beir(folder, list(documents.values()), queries, {q: {r[0]: 1} for q, r in there.items()})
        (folder / "qrels" / "test.tsv").rename(folder / "qrels" / "train.tsv")
        lines = [line_of(number, ranked[1 : making.negatives + 1]) for number, ranked in there.items()]
        (folder / FILE).write_text("".join(lines), encoding="utf-8")
        write_manifest(
            folder,
            stage="labels",
            settings={"queries": making.queries, "negatives": making.negatives, "seed": making.seed},
            inputs={"log": len(making.log)},
            outputs=[FILE, "corpus.jsonl", "queries.jsonl", "qrels/train.tsv"],
            extra={"key": key},
        )
