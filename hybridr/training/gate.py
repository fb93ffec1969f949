"""The do-no-harm gate: may the adapted encoder take the place of the old one? No labels are used.

It can reject disasters; it cannot certify small gains (measured: findings.md, "Gate"). So it only vetoes.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from ..cluster.record import Record
from ..cluster.retrievers.dense import engine_scores
from ..encoders.contract import Encoder, Vectors
from ..evaluation.bm25 import Bm25, best
from ..evaluation.label_free import (
    BeforeAfter,
    Rankings,
    compare_kept,
    compare_overlap,
    compare_own_documents,
    make_probes,
    objections,
)
from ..files.atomic import replacing, storing
from ..files.foreign import most_bytes, read_within
from ..files.remembered import remember_text
from ..records import Document, Progress, silent
from ..search.calibration import known_scale
from ..search.checks import usual_fusion
from ..search.fusions import CandidateLists, Scales
from ..search.fusions.pipeline import ranking
from ..search.settings import SearchSettings
from .corpus import clipped, text_hash
from .token_cache import scattered, tokenizable

CORPUS_CAP = 600  # documents that are encoded by both encoders, those of the probes among them
DOCUMENT_TOKENS = 128  # of each; enough to compare, and half the time
QUERY_CAP = 500  # queries of the user's log
BEST = 100  # candidates of each leg


@dataclass(frozen=True)
class GateReport:
    """What was compared, and why the new encoder is vetoed; no reasons means it may be promoted."""

    rows: tuple[BeforeAfter, ...]
    reasons: tuple[str, ...]
    held_out: int
    documents: int
    judged: int = 0
    """Judged queries that decided; 0: those made from documents did."""

    @property
    def passed(self) -> bool:
        """Tell whether nothing speaks against the new encoder."""
        return not self.reasons

    def record(self) -> dict[str, Any]:
        """Give the report as JSON for a manifest."""
        return {"passed": self.passed, **asdict(self)}


def compare_encoders(
    old: Encoder,
    new: Encoder,
    held_out: Sequence[Document],
    others: Sequence[Document],
    *,
    queries: Sequence[str] = (),
    seed: int = 0,
    progress: Progress = silent,
) -> GateReport:
    """Compare two encoders on queries made from `held_out`, and on `queries` from the user's log.

    The corpus is `held_out` filled up with `others` to 600 documents. Vetoes when the dense lists move
    away from BM25's, when the fused lists change too much, or when known documents are found much worse.
    """
    probes, texts = make_probes(held_out, seed)
    texts = [*texts, *(document.contents for document in others[: max(0, CORPUS_CAP - len(texts))])]
    all_queries = [probe.text for probe in probes] + list(queries[:QUERY_CAP])
    bm25 = Bm25(texts)
    before = rank_all(old, texts, all_queries, bm25, progress, "gate: old encoder")
    after = rank_all(new, texts, all_queries, bm25, progress, "gate: new encoder")
    made_numbers = range(len(probes))
    rows = compare_own_documents(
        before.of(made_numbers), after.of(made_numbers), [str(probe.position) for probe in probes]
    )
    real = range(len(probes), len(all_queries)) if queries else made_numbers
    rows += [row(before.of(real), after.of(real)) for row in (compare_overlap, compare_kept)]
    return GateReport(tuple(rows), tuple(objections(rows)), len(held_out), len(texts))


def rank_all(
    encoder: Encoder,
    texts: Sequence[str],
    queries: Sequence[str],
    bm25: Bm25,
    progress: Progress,
    stage: str,
) -> Rankings:
    """Search every query exactly by words, by vectors, and by both as a search without signals does."""
    vectors = encode_in_parts(encoder, texts, progress, stage)
    compared = encoder.encode_queries(queries) @ vectors.T
    dense = engine_scores(encoder.similarity, compared.astype(np.float64))
    settings, scale = SearchSettings(), known_scale(encoder)
    usual = usual_fusion(settings, Record(similarity=encoder.similarity))
    fusion = usual(settings, (3, 0, 0))  # what they compute is no matter of version
    words = ((bm25.scores(query) / bm25.gain, bm25.idf_sum(query)) for query in queries)
    legs = [
        both_legs(lexical, row, Scales(idf_sum, scale))
        for (lexical, idf_sum), row in zip(words, dense, strict=True)
    ]
    lexical_lists, dense_lists = (
        [list(legs_of_query.listed[leg]) for legs_of_query in legs] for leg in ("lexical", "dense")
    )
    return Rankings(lexical_lists, dense_lists, [ranking(fusion.scores(leg)) for leg in legs])


def both_legs(lexical: NDArray[np.float64], dense: NDArray[np.float64], scales: Scales) -> CandidateLists:
    """Give the best of both legs by the scores of all texts `(texts,)`, and their true scores by both."""
    listed = {"lexical": best(lexical, BEST), "dense": best(dense, BEST)}
    both = {doc: int(doc) for scores in listed.values() for doc in scores}
    words = {doc: float(lexical[place]) for doc, place in both.items() if lexical[place] > 0}
    near = {doc: float(dense[place]) for doc, place in both.items()}
    return CandidateLists(listed, {"lexical": words, "dense": near}, scales)


def encode_in_parts(encoder: Encoder, texts: Sequence[str], progress: Progress, stage: str) -> Vectors:
    """Encode documents to `(n, dim)`, reporting every quarter."""
    part = max(1, -(-len(texts) // 4))
    limit = min(DOCUMENT_TOKENS, encoder.max_tokens)
    vectors = []
    for start in range(0, len(texts), part):
        progress(stage, start, len(texts))
        vectors.append(encoder.encode_documents(texts[start : start + part], max_tokens=limit))
    progress(stage, len(texts), len(texts))
    return np.concatenate(vectors)


class GateDocuments:
    """The first documents in the order of the token cache, so that those it holds out come first.

    They lie in a file that only its owner can read: a run that goes on does not read the source again.
    """

    def __init__(self, file: Path, seed: int) -> None:
        self.file = file
        self.seed = seed

    def passing(self, documents: Iterable[Document]) -> Iterator[Document]:
        """Yield all documents, and write the chosen ones at the end."""
        drawn: dict[int, Document] = {}
        lowest: list[int] = []
        for document in documents:
            yield document
            place = self.place(document)
            if not document.contents.strip() or place in drawn:
                continue
            heapq.heappush(lowest, -place)
            drawn[place] = clipped(document)
            if len(drawn) > CORPUS_CAP:
                del drawn[-heapq.heappop(lowest)]
        self.write([drawn[place] for place in sorted(drawn)])

    def place(self, document: Document) -> int:
        """Give a document's place in the order of the cache."""
        text = np.asarray([text_hash(tokenizable(document.contents))], dtype=np.uint64)
        return int(scattered(text, self.seed)[0])

    def write(self, documents: list[Document]) -> None:
        """Write the file, whole or not at all."""
        with storing(self.file), replacing(self.file, private=True) as temporary:
            remember_text(self.file, "documents held out for the gate")
            temporary.write_bytes(b"".join(orjson.dumps(list(document)) + b"\n" for document in documents))

    def read(self) -> list[Document]:
        """Read the chosen documents."""
        return [Document(*orjson.loads(line)) for line in read_within(self.file, most_bytes()).splitlines()]
