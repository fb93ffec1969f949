"""Chains of re-rankers behind a hybrid search: their weights and depths, by judged queries.

What a re-ranker adds is linear in its weight, so each is asked once a query, about the most hits, and every
chain is computed here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain as joined
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import SettingsError
from ..evaluation.evaluation import parse_measure
from ..families import member_of
from ..records import Progress, Qrels, Query, silent
from ..search.rerankers import FAMILY
from ..search.search import Search
from .evidence import QUERIES_AT_ONCE
from .judgement import ADDITION, Choice, Landscape, chosen_among, measured_runs

WEIGHTS, DEPTHS = (0.25, 0.5, 1.0), (10, 20, 50)
USUAL_WEIGHT, LONGEST_LIST = 0.5, max(DEPTHS)


class Step(NamedTuple):
    """One re-ranker of a chain: it adds to the scores of so many hits, with a weight."""

    name: str
    weight: float
    depth: int

    @property
    def settings(self) -> dict[str, Any]:
        """Give them by the re-ranker's own names."""
        weight, depth = member_of(FAMILY, self.name).tuned_by
        return {weight: self.weight, depth: self.depth}

    def __str__(self) -> str:
        """Name it for people."""
        return f"{self.name} of {self.depth}, weight {self.weight:g}"


class Chain(NamedTuple):
    """Re-rankers, one after the other; none is the default."""

    steps: tuple[Step, ...] = ()

    @property
    def settings(self) -> dict[str, Any]:
        """Give them as an index's record has them."""
        own = dict(joined.from_iterable(step.settings.items() for step in self.steps))
        return {"rerank": [step.name for step in self.steps], "rerank_settings": own}

    @property
    def distance(self) -> float:
        """Tell how far it is from none."""
        return sum(ADDITION + (step.weight - USUAL_WEIGHT) ** 2 for step in self.steps)

    @property
    def is_default(self) -> bool:
        """Tell whether there is none."""
        return not self.steps

    def __str__(self) -> str:
        """Name it for people."""
        return "; then ".join(map(str, self.steps)) or "no re-ranker"


class Looked(NamedTuple):
    """A query's hits `(n,)`, their scores, and what each re-ranker adds at weight 1; NaN: not looked at."""

    documents: list[str]
    scores: NDArray[np.float64]
    added: dict[str, NDArray[np.float64]]


def chains_of(names: Sequence[str]) -> list[Chain]:
    """List what is tried: none first, and each re-ranker at every weight and depth, alone and after others.

    Raises SettingsError for one that has no weight.
    """
    for name in names:
        if member_of(FAMILY, name).tuned_by is None:
            raise SettingsError(f"the re-ranker '{name}' has no weight to be tuned", hint="--rerank none")
    steps = [[None, *(Step(name, *setting) for setting in product(WEIGHTS, DEPTHS))] for name in names]
    return [Chain(tuple(step for step in steps if step)) for steps in product(*steps)]


def choose_chain(
    search: Search,
    names: Sequence[str],
    judgements: tuple[Sequence[Query], Qrels],
    measure: str,
    progress: Progress = silent,
) -> Choice:
    """Choose the chain behind a search that ranks judged queries best; none where no gain is shown.

    Raises SettingsError for a re-ranker that has no weight, or that cannot order hits of this index.
    """
    queries, qrels = judgements
    tried, own = chains_of(names), search.settings.rerank_settings
    progress("re-rank", 0, len(queries))
    seen: list[Looked] = []
    for start in range(0, len(queries), QUERIES_AT_ONCE):
        seen += look(search, names, own, [query.text for query in queries[start : start + QUERIES_AT_ONCE]])
        progress("re-rank", len(seen), len(queries))
    ids = [query.query_id for query in queries]
    runs = ({ids[at]: ordered(look, chain) for at, look in enumerate(seen)} for chain in tried)
    values = measured_runs(runs, qrels, parse_measure(measure), ids)
    distances = np.array([chain.distance for chain in tried])
    return chosen_among(tried, Landscape.alone(distances), values, measure)


def look(search: Search, names: Sequence[str], own: Mapping[str, Any], texts: Sequence[str]) -> list[Looked]:
    """Ask each re-ranker about the best hits of every query, as if it stood alone."""
    questions, lists = search.unordered(texts, LONGEST_LIST)
    looked = [
        Looked([hit.doc_id for hit in hits], np.array([hit.score for hit in hits]), {}) for hits in lists
    ]
    for name in names:
        settings = {**known_to(name, own), **Step(name, 1.0, LONGEST_LIST).settings}
        ordered_anew = search.reranked(name, **settings).reordering.of(questions, lists, hurried=False)
        for look, hits in zip(looked, ordered_anew, strict=True):
            after = {hit.doc_id: hit for hit in hits}
            seen = [after[doc] for doc in look.documents]
            scores = [hit.score if hit.scores.get(name) is not None else np.nan for hit in seen]
            look.added[name] = np.array(scores) - look.scores
    return looked


def known_to(name: str, own: Mapping[str, Any]) -> dict[str, Any]:
    """Keep the settings that a re-ranker has."""
    fields = member_of(FAMILY, name).own_settings.model_fields
    return {key: value for key, value in own.items() if key in fields}


def ordered(look: Looked, chain: Chain) -> dict[str, float]:
    """Order a query's hits by a chain, as the re-rankers would, one after the other: document -> -rank."""
    order, scores = np.arange(len(look.documents)), look.scores.copy()
    for step in chain.steps:
        first = order[: step.depth]
        raw = look.added[step.name][first]
        lowest = np.nanmin(raw) if not np.isnan(raw).all() else 0.0
        scores[first] += step.weight * np.nan_to_num(raw - lowest)
        order = np.concatenate([first[np.argsort(-scores[first], kind="stable")], order[step.depth :]])
    return {look.documents[place]: -float(rank) for rank, place in enumerate(order)}
