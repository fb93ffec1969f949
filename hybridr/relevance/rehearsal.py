"""Measures the effect of learnt queries: each judged query is asked as if it were new and all others were
past.

`again` is the gain if needs return as often as among the judged queries; `new` the gain for needs that nobody
judged, which excludes all queries that share a relevant document. Judgements cannot tell which of both
resembles the traffic.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..encoders.contract import Vectors
from ..evaluation.significance import BoundedMean, bounded_mean
from ..families import member_of
from ..records import Progress, Qrels, Query
from ..search.calibration import MOST_LIKENESS
from ..search.past_queries import NEAREST, Past, Relevant, credits_by, query_vectors
from ..search.search import Search
from ..search.signals import FAMILY
from .judgement import QueryCandidates, ask, measured

MOST_ASKED = 1_000
DRAW_SEED = 13
MEASURE = "nDCG@10"
ONE_OF_FIVE, DOUBT = 0.2, 3.0
"""Of near pairs, and how many of the same need are thought to be there before any is seen."""


@dataclass(frozen=True)
class Rehearsal:
    """The effect of learnt queries on a measure: its mean `before`, and the mean changes `again` and `new`.

    `returning` counts queries that share a relevant document with another judged query.
    """

    asked: int
    returning: int
    measure: str
    before: float
    again: BoundedMean
    new: BoundedMean

    @property
    def advice(self) -> list[str]:
        """Return lines on what was tried and what a gain would need; empty if a gain is certain."""
        if self.again.low > 0:
            return []
        lines = [
            f"nothing is gained for certain: {self.asked:,} judged queries were each asked with what all "
            "others remember"
        ]
        if not self.returning:
            lines.append(
                "no two of them share a relevant document: a memory helps needs that return; judge more "
                "queries of your log (hybridr clicks), or the same needs in other words"
            )
        elif self.again.mean > 0:
            needed = math.ceil(self.asked * ((self.again.mean - self.again.low) / self.again.mean) ** 2)
            lines.append(f"the mean is above 0: about {needed:,} such queries would tell it from chance")
        else:
            lines.append(
                f"{self.returning:,} share a relevant document, and are found as well without a memory; it "
                "helps where users word one need in ways that the texts do not"
            )
        return lines

    def to_json(self) -> dict[str, Any]:
        """Return the result as JSON values."""
        return {**asdict(self), "advice": self.advice}


def rehearse(
    search: Search,
    queries: Sequence[Query],
    relevant: Mapping[str, Sequence[Relevant]],
    qrels: Qrels,
    threshold: float,
    progress: Progress,
) -> Rehearsal:
    """Measure judged queries, at most 1,000, each with the credits of all others whose cosine reaches the
    threshold.
    """
    encoder = search.encoder
    assert encoder is not None
    needs = needs_of([[doc.doc_id for doc in relevant[query.query_id]] for query in queries])
    vectors = query_vectors(encoder, [query.text for query in queries])
    chosen = np.sort(np.random.default_rng(DRAW_SEED).permutation(len(queries))[:MOST_ASKED])
    places = {queries[place].query_id: int(place) for place in chosen}
    plain, weight = without_memory(search), member_of(FAMILY, "memory").weight

    def score(answer: QueryCandidates) -> NDArray[np.float64]:
        """Score a query's candidates without a memory, with one, and with one of other needs, `(3, n)`."""
        before = plain.context.fusion.scores(answer.lists)
        documents = answer.lists.documents
        rows = [np.array([before.get(doc, np.nan) for doc in documents])]
        place = places[answer.query.query_id]
        for left_out in (place, needs == needs[place]):
            cosines = vectors @ vectors[place]
            cosines[left_out] = -1.0
            past = [
                Past(float(cosines[similar]), relevant[queries[similar].query_id])
                for similar in np.argsort(-cosines)[:NEAREST]
            ]
            credits = {doc: credit.worth for doc, credit in credits_by(past, threshold).items()}
            rows.append(rows[0] + weight * np.array([credits.get(doc, 0.0) for doc in documents]))
        return np.array(rows)

    answers = ask(plain, [queries[place] for place in chosen], progress)
    values = measured(answers, qrels, MEASURE, score)  # (queries, 3)
    gains = [bounded_mean(values[:, row] - values[:, 0]) for row in (1, 2)]
    counts = np.bincount(needs)
    return Rehearsal(
        len(answers),
        int((counts[needs[chosen]] > 1).sum()),
        MEASURE,
        float(values[:, 0].mean()),
        *gains,
    )


def without_memory(search: Search) -> Search:
    """Return the same search without learnt signals, which must not be used to judge."""
    if not any(signal.learnt for signal in search.signals.members.values()):
        return search
    taken = tuple(name for name, signal in search.signals.members.items() if not signal.learnt)
    settings = search.settings.model_copy(update={"signals": taken or ("none",)})
    return Search(search.cluster, search.info, search.encoder, settings=settings)


def least_likeness(vectors: Vectors, needs: NDArray[np.int64], usual: float) -> float:
    """Return the cosine from which on judged queries, `(n, dim)` of length 1, count as similar.

    That is the usual one, or a higher one above which at least one pair of five has the same need. If no pair
    has the same need, as with commands that differ by a word, nearness says nothing.
    """
    pairs = np.triu_indices(len(vectors), 1)
    cosines, same = (vectors @ vectors.T)[pairs], (needs[:, None] == needs)[pairs]
    near = np.flatnonzero(cosines >= usual)
    near = near[np.argsort(-cosines[near], kind="stable")]
    shares = (np.cumsum(same[near]) + DOUBT) / (np.arange(len(near)) + 1 + DOUBT)
    fine = np.flatnonzero(shares >= ONE_OF_FIVE)
    if not len(near) or fine[-1] == len(near) - 1:
        return usual
    return float(min(MOST_LIKENESS, cosines[near[fine[-1]]]))


def needs_of(documents: Sequence[Sequence[str]]) -> NDArray[np.int64]:
    """Return the number of each query's need `(n,)`: queries that share a document, directly or through
    others, have the same need.
    """
    needs: dict[str, int] = {}
    leads = list(range(len(documents)))

    def first(number: int) -> int:
        """Return the number that stands for a group of connected queries (union-find)."""
        while leads[number] != number:
            leads[number] = number = leads[leads[number]]
        return number

    for number, named in enumerate(documents):
        for doc in named:
            leads[first(number)] = first(needs.setdefault(doc, number))
    return np.array([first(number) for number in range(len(documents))], dtype=np.int64)
