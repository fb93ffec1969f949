"""What changed since an index learnt: which of the queries that are judged now it knows, and how."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..cluster.connection import Cluster
from ..cluster.destinations import resolve
from ..cluster.record import IndexInfo
from ..encoders.contract import Encoder
from ..evaluation.evaluation import judged_queries
from ..records import Qrels, Query, Reported
from ..search.encoders import encoder_for
from ..search.past_queries import most_relevant, past_like, query_vectors
from ..search.signals.memory import SAME
from .rehearsal import DRAW_SEED

MOST_LOOKED_UP, LOOKED_UP_TOGETHER = 2_000, 200  # queries


@dataclass(frozen=True)
class Changes(Reported):
    """How judged queries differ from the `learnt` ones, of as many as were `compared`, drawn at random.

    `same` were learnt with the same relevant documents, `others` with other ones, `new` not at all.
    """

    learnt: int
    compared: int
    same: int
    others: int
    new: int


def changed_since(
    cluster: Cluster,
    name: str,
    judgements: tuple[Sequence[Query], Qrels],
    *,
    encoder: Path | Encoder | None = None,
) -> Changes | None:
    """Compare judged queries with those that an index has learnt; None where it remembers nothing.

    Raises NotFound, ModelError where its encoder is not to be found.
    """
    info = resolve(cluster, name)
    if not info.record.remembers or info.record.memory is None:
        return None
    if encoder is None or isinstance(encoder, Path):
        encoder = encoder_for(cluster, info, encoder)
    queries = judged_queries(*judgements)
    drawn = random.Random(DRAW_SEED).sample(queries, min(MOST_LOOKED_UP, len(queries)))
    learnt = learnt_documents(cluster, info, encoder, [query.text for query in drawn])
    both = [
        (learnt.get(query.text, []), {doc for doc, _ in most_relevant(judgements[1][query.query_id])})
        for query in drawn
    ]
    same = sum(now in before for before, now in both)
    new = sum(not before for before, _ in both)
    return Changes(info.record.memory.queries, len(drawn), same, len(drawn) - same - new, new)


def learnt_documents(
    cluster: Cluster, info: IndexInfo, encoder: Encoder, texts: Sequence[str]
) -> dict[str, list[set[str]]]:
    """Give for each of these texts that was learnt its relevant documents, each time that it was."""
    documents: dict[str, list[set[str]]] = {}
    for start in range(0, len(texts), LOOKED_UP_TOGETHER):
        part = texts[start : start + LOOKED_UP_TOGETHER]
        past = past_like(cluster, info, part, query_vectors(encoder, part), SAME)
        documents |= {
            text: [{doc.doc_id for doc in past_query.relevant} for past_query in similar]
            for text, similar in past.items()
            if similar
        }
    return documents
