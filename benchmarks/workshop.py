"""Models that studies of training make, each of them once, and what they rank exactly in this process."""

from __future__ import annotations

import json
import platform
import random
import sys
import time
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hybridr import Document, Query, load_encoder
from hybridr.encoders.export.exporting import minilm_encoder
from hybridr.encoders.export.fetched_models import minilm
from hybridr.encoders.machine import read_cpu
from hybridr.evaluation.label_free import Bm25, best_scores
from hybridr.files.local import replacing
from hybridr.files.programs import locked
from hybridr.records import Qrels, Run
from hybridr.training.settings import DamSettings, RemSettings
from rankings import as_run, completed
from study import Record

DEPTH = 100
TAUGHT = 30.0
"""What cosines are multiplied by as a teacher's scores: a margin of .3 is 9, as of cross-encoders."""
Form: TypeAlias = dict[str, Any]
Encode: TypeAlias = Any


class Workshop:
    """Makes the models of a form in a folder, each of them once."""

    def __init__(self, collections: Path, work: Path, form: Form) -> None:
        self.collections, self.work, self.form = collections, work, form
        self.source: str = form["source"]
        backbone = form["backbone"]
        self.backbone = str(minilm()) if backbone == "minilm" else backbone
        self.seconds: dict[str, float] = {}

    def dam(self, stage: str, collection: str, base: str, name: str, **changes: Any) -> str:
        """Fit a DAM to a collection, by masked-LM unless `changes` say otherwise."""
        from hybridr.relevance.corpus import CorpusFile
        from hybridr.training.dam import fit_dam

        settings = DamSettings(base=base, out=self.work / name, **self.form[stage] | changes)
        corpus = CorpusFile(self.collections / collection)
        fit = fit_dam(corpus, settings, progress=reporter(name))
        self.seconds[name] = fit.seconds
        return str(fit.folder)

    def relevance(self, name: str, dam: str, stage: str = "rem", target: Any = None, **changes: Any) -> str:
        """Train a REM (or with `full` all weights) on the source's labels."""
        from hybridr.training.judged import mine_negatives, read_judged_beir
        from hybridr.training.rem import train_rem

        judged = read_judged_beir(self.collections / self.source)
        given = self.form[stage] | changes
        clusters = given.pop("clusters", None)  # a form names them for whichever method takes them
        if given.get("method") in ("idro", "groupdro"):
            given["method_settings"] = {"clusters": clusters}
        settings = RemSettings(dam=dam, out=self.work / name, **given)
        asked = judged.sample(settings.max_queries, settings.seed)
        # Once for all trainings, in whose time it is not.
        folder = self.work / f"negatives-{settings.mined}-{len(asked.queries)}"
        mined = mine_negatives(asked, folder, settings.mined, progress=reporter(name))
        settings = settings.model_copy(update={"negatives": mined})
        if settings.loss == "distil":
            with locked(self.work / "teacher.lock"):  # two processes would score the same pairs
                settings = settings.model_copy(update={"teacher": self.teacher(asked, mined)})
        trained = train_rem(judged, settings, target=target, progress=reporter(name))
        self.seconds[name] = trained.seconds
        return str(trained.folder)

    def teacher(self, judged: Any, negatives: Path) -> Path:
        """Score the relevant documents and the negatives of all queries by the packaged MiniLM, once."""
        from hybridr.training.judged import read_negatives

        file = negatives.parent / "minilm.jsonl"
        if file.is_file():
            return file
        ids = [document.doc_id for document in judged.documents()]
        listed = read_negatives(negatives, judged, {doc_id: place for place, doc_id in enumerate(ids)})
        pairs = [
            (query_id, doc_id)
            for query_id, others in listed
            for doc_id in (*judged.positives[query_id], *(ids[place] for place in others))
        ]
        encoder = load_encoder(minilm_encoder())
        needed = {doc_id for _, doc_id in pairs}
        texts = {one.doc_id: one.contents for one in judged.documents() if one.doc_id in needed}
        documents = dict(zip(texts, encoder.encode_documents(list(texts.values())), strict=True))
        queries = dict(zip(judged.queries, encoder.encode_queries([*judged.queries.values()]), strict=True))
        lines = []
        for query, doc_id in pairs:
            score = round(TAUGHT * float(queries[query] @ documents[doc_id]), 6)
            lines.append(json.dumps({"query-id": query, "corpus-id": doc_id, "score": score}) + "\n")
        with replacing(file) as temporary:
            temporary.write_text("".join(lines), encoding="utf-8")
        return file


class Vectors(NamedTuple):
    """What an encoder makes of a collection, `(n, dim)` each."""

    documents: NDArray[np.float32]
    queries: NDArray[np.float32]


def encoded(encoder: Encode, corpus: list[Document], queries: list[Query], max_tokens: int) -> Vectors:
    """Encode documents and queries."""
    limit = min(max_tokens, encoder.max_tokens)
    return Vectors(
        encoder.encode_documents([document.contents for document in corpus], max_tokens=limit),
        encoder.encode_queries([query.text for query in queries], max_tokens=limit),
    )


def chosen(queries: list[Query], qrels: Qrels, most: int) -> list[Query]:
    """Keep the judged queries, a random choice of `most`."""
    judged = [query for query in queries if query.query_id in qrels]
    return random.Random(0).sample(judged, most) if len(judged) > most else judged


@lru_cache(maxsize=16)
def lexical_index(texts: tuple[str, ...]) -> Bm25:
    """Return BM25 over texts, made once for all rows."""
    return Bm25(texts)


def lexical_run(corpus: list[Document], queries: list[Query]) -> Run:
    """Rank by BM25 (S-stemmer, k1 1.2, b 0.75)."""
    index = lexical_index(tuple(document.contents for document in corpus))
    return as_run((index.search(query.text, DEPTH) for query in queries), corpus, queries)


def dense_run(vectors: Vectors, corpus: list[Document], queries: list[Query]) -> Run:
    """Rank exactly by the inner product of vectors."""
    return as_run((nearest(row) for row in vectors.queries @ vectors.documents.T), corpus, queries)


def hybrid_run(vectors: Vectors, corpus: list[Document], queries: list[Query]) -> Run:
    """Fuse the true scores of BM25 and vectors over the best of both (score completion)."""
    index = lexical_index(tuple(document.contents for document in corpus))

    def fused(query: Query, dense: NDArray[np.float32]) -> dict[str, float]:
        lexical = index.scores(query.text)
        places = list(nearest(dense) | best_scores(lexical, DEPTH))
        scores = ({place: float(one[int(place)]) for place in places} for one in (lexical, dense))
        return completed(*scores)

    scores = vectors.queries @ vectors.documents.T  # (queries, documents)
    return as_run(map(fused, queries, scores), corpus, queries)


def nearest(scores: NDArray[np.float32]) -> dict[str, float]:
    """Give the best positions, with scores shifted above 0: `best_scores` keeps no others."""
    return best_scores(scores - scores.min() + 1.0, DEPTH)


def reporter(name: str) -> Callable[..., None]:
    """Report long stages to the screen, a line every half minute."""
    last = [time.monotonic()]

    def report(stage: str, done: int, total: int | None = None, note: str = "") -> None:
        if time.monotonic() - last[0] > 30:
            last[0] = time.monotonic()
            print(f"{name}: {stage} {done}/{total or '?'} {note}", file=sys.stderr, flush=True)

    return report


def device() -> Any:
    """Choose where vectors are computed."""
    import torch

    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def machine() -> Record:
    """Describe where this runs."""
    import torch

    gpu = torch.cuda.get_device_name(0) if torch.cuda.is_available() else None
    return {
        "system": platform.system(),
        "cpu": read_cpu().model,
        "threads": torch.get_num_threads(),
        "gpu": gpu,
    }


def backbone_of(form: Record) -> str:
    """Say what the backbone was."""
    if form["backbone"] != "minilm":
        return f"`{Path(form['backbone']).name}`"
    return "the packaged MiniLM with a masked-LM head tied to its embeddings"


def time_of(record: Record) -> str:
    """Say how long the trainings took."""
    seconds = ", ".join(f"{name} {value:.0f} s" for name, value in record["training_s"].items())
    return f"Training, wall-clock time: {seconds}."
