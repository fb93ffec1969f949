"""Teaching: a cross-encoder reads each query with its documents once, and its scores are kept."""

from __future__ import annotations

import json
from pathlib import Path

from ..encoders.graph_folders import PairScorer
from ..files.atomic import storing
from ..files.folders import below
from ..files.manifest import fingerprint, sha256_of
from ..records import Progress
from .judged import Judged, read_negatives, whole_lines

PAIRS = 64  # between two writes


def taught(teacher: Path, judgements: Judged, negatives: Path, out: Path, progress: Progress) -> Path:
    """Have the folder of a cross-encoder score the relevant documents and the negatives of all queries.

    Gives a file of scores in `out`; a killed run goes on. Raises ModelError for no such folder, DataError as
    `read_negatives`.
    """
    scorer, pairs = PairScorer(teacher), pairs_of(judgements, negatives)
    key = fingerprint(
        [scorer.fingerprint, scorer.details.precision, judgements.fingerprint, sha256_of(negatives)]
    )
    file, doc_ids = below(out, f"teacher-{key[:16]}.jsonl"), {doc_id for _, doc_id in pairs}
    texts = {
        document.doc_id: document.contents
        for document in judgements.documents()
        if document.doc_id in doc_ids
    }
    with storing(out):
        out.mkdir(parents=True, exist_ok=True)
        done = whole_lines(file)
        with file.open("a", encoding="utf-8") as lines:
            for start in range(done, len(pairs), PAIRS):
                progress("teacher reads", start, len(pairs))
                part = pairs[start : start + PAIRS]
                scores = scorer.score([(judgements.queries[query], texts[doc_id]) for query, doc_id in part])
                lines.writelines(map(score_line, part, scores.tolist()))
                lines.flush()
    progress("teacher reads", len(pairs), len(pairs))
    return file


def pairs_of(judgements: Judged, negatives: Path) -> list[tuple[str, str]]:
    """Give (query id, document id) of all that is scored, query by query."""
    ids = [document.doc_id for document in judgements.documents()]
    places = {doc_id: place for place, doc_id in enumerate(ids)}
    judgements.require_documents(places)
    return [
        (query_id, doc_id)
        for query_id, others in read_negatives(negatives, judgements, places)
        for doc_id in (*judgements.positives[query_id], *(ids[place] for place in others))
    ]


def score_line(pair: tuple[str, str], score: float) -> str:
    """Write a score as a teacher's file holds it."""
    query_id, doc_id = pair
    return json.dumps({"query-id": query_id, "corpus-id": doc_id, "score": round(score, 6)}) + "\n"
