"""The ways to join the legs that tune compares, and their scores from one retrieval a leg."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..errors import SettingsError
from ..search.feedback import ROCCHIO_DOCUMENTS, ROCCHIO_WEIGHT
from ..search.fusions.absolute import absolute_weights
from ..search.fusions.completed import Legs, Scores
from ..search.fusions.pipeline import NORMALIZATIONS, rrf, search_pipeline
from ..search.settings import SearchSettings
from .bm25_scores import Postings, Similarity
from .choice import Landscape
from .evidence import Asked
from .k1_and_b import Words

TENTHS, TWENTIETHS = [i / 10 for i in range(2, 9)], [i / 20 for i in range(1, 20)]
DEPTHS = (20, 50)
ANOTHER_TECHNIQUE = 0.25  # as far from the default as a weight of 0 or 1
ADDITION = 0.05  # feedback or another depth
NEIGHBOURHOOD = 0.15  # of weights: the deviation of a bell
USUAL = SearchSettings()
UNSEEN = 0.5  # the engine score of a document without a vector
Sides: TypeAlias = NDArray[np.float64]
"""What each leg adds to the score of each candidate, at full weight, `(2, n)`; NaN: in neither list."""


def distance(same_technique: bool, weight: float) -> float:
    """Tell how far technique and weight are from the default."""
    return (0.0 if same_technique else ANOTHER_TECHNIQUE) + (weight - USUAL.dense_weight) ** 2


class Variant(NamedTuple):
    """Search settings that differ from the default, and how far they are from it, at least 0."""

    settings: dict[str, Any]
    distance: float

    @property
    def is_default(self) -> bool:
        """Tell whether this is the default."""
        return self.distance == 0

    @property
    def technique(self) -> str:
        """Name how scores are brought to one scale."""
        return str(self.settings.get("normalization", self.settings["fusion"]))

    @property
    def depth(self) -> int:
        """Count the candidates of each leg."""
        return int(self.settings.get("depth", USUAL.depth))

    @property
    def feedback(self) -> str:
        """Name the feedback; none for none."""
        return str(self.settings.get("feedback", USUAL.feedback))

    @property
    def kind(self) -> str:
        """Name all but the weight, for people."""
        named = [self.technique]
        named += [f"depth {self.depth}"] if "depth" in self.settings else []
        named += [self.feedback] if "feedback" in self.settings else []
        return ", ".join(named)

    def __str__(self) -> str:
        """Name the variant for people."""
        return f"{self.kind}, dense weight {self.settings['dense_weight']:g}"


def variants(
    version: tuple[int, int, int], *, absolute: bool, depths: Sequence[int] = (), feedback: Sequence[str] = ()
) -> list[Variant]:
    """List what is tried, the default among it.

    `absolute` tells whether the index can add up scores. Every technique is tried with the usual depth and
    without feedback, and with each of `depths` and of `feedback`.
    """
    techniques = [("absolute", TWENTIETHS)] if absolute else []
    techniques += [("min_max", TENTHS), ("l2", TENTHS), ("z_score", TENTHS), ("rrf", TENTHS)]
    default = techniques[0][0]
    more: list[dict[str, Any]] = [{}, *({"depth": one} for one in depths)]
    more += [{"feedback": one} for one in feedback]
    found = [
        Variant(
            named(technique) | added | {"dense_weight": weight},
            distance(technique == default, weight) + (ADDITION if added else 0.0),
        )
        for added in more
        for technique, weights in techniques
        for weight in weights
    ]
    return [variant for variant in found if is_possible(variant, version)]


def is_possible(variant: Variant, version: tuple[int, int, int]) -> bool:
    """Tell whether a search can carry a variant out on a cluster of this version."""
    if variant.technique == "absolute" and variant.feedback == "rm3":
        return False  # expanded queries have another scale of BM25
    try:
        search_pipeline(SearchSettings(**variant.settings), version)
    except SettingsError:
        return False
    return True


def named(technique: str) -> dict[str, Any]:
    """Give the search settings that a technique stands for."""
    if technique == "absolute":
        return {"fusion": technique}
    return {"fusion": "pipeline", "normalization": technique}


def landscape(tried: Sequence[Variant]) -> Landscape:
    """Say how variants lie to each other: by weight within a kind, not at all between two."""
    weights = np.array([variant.settings["dense_weight"] for variant in tried])
    kinds = np.array([variant.kind for variant in tried])
    bell = np.exp(-0.5 * ((weights[:, None] - weights) / NEIGHBOURHOOD) ** 2)
    near = np.where(kinds[:, None] == kinds, bell, 0.0)
    distances = np.array([variant.distance for variant in tried])
    return Landscape(distances, near / near.sum(axis=1, keepdims=True))


def scores_of(
    variant: Variant, asked: Asked, dense_scale: float, similarity: Similarity | None = None
) -> dict[str, float]:
    """Score the candidates of one query as a search with these settings would; see `score_all`."""
    [row] = score_all([variant], asked, dense_scale, similarity)
    return {doc: score for doc, score in zip(asked.candidates, row.tolist(), strict=True) if score == score}


def score_all(
    tried: Sequence[Variant], asked: Asked, dense_scale: float, similarity: Similarity | None = None
) -> NDArray[np.float64]:
    """Score the candidates of one query by every variant, `(variants, n)`; NaN for what it does not find.

    Another `similarity` than the index's (None) needs `asked.words`, rm3 `expanded`, rocchio `cosines`.
    """
    known: dict[str, tuple[Legs, Sides]] = {}
    rows = []
    for variant in tried:
        if variant.kind not in known:
            legs = legs_for(variant, asked, similarity)
            known[variant.kind] = legs, sides_of(variant, legs, asked, dense_scale)
        legs, sides = known[variant.kind]
        row = joined(variant, sides)
        if variant.feedback == "rocchio":
            row = joined(variant, sides_of(variant, turned(asked, legs, row), asked, dense_scale))
        rows.append(row)
    return np.array(rows)


def score_words(
    variant: Variant, tried: Sequence[Words], asked: Asked, dense_scale: float
) -> NDArray[np.float64]:
    """Score the candidates of one query by one variant with every k1 and b, `(words, n)`."""
    return np.concatenate([score_all([variant], asked, dense_scale, word.similarity) for word in tried])


def joined(variant: Variant, sides: Sides) -> NDArray[np.float64]:
    """Add up what both legs give, `(n,)`."""
    weight = variant.settings["dense_weight"]
    row: NDArray[np.float64] = (1 - weight) * sides[0] + weight * sides[1]
    return row


def legs_for(variant: Variant, asked: Asked, similarity: Similarity | None) -> Legs:
    """Give what both legs say of the candidates before the query vector moves."""
    if variant.feedback == "rm3":
        return reworded(asked, asked.expanded, similarity or asked.similarity)
    return asked.legs if similarity is None else reworded(asked, asked.words, similarity)


def sides_of(variant: Variant, legs: Legs, asked: Asked, dense_scale: float) -> Sides:
    """Bring both legs to one scale, as the variant does, with lists no longer than its depth."""
    lists = [first(scores, variant.depth) for scores in legs.listed]
    found = {*lists[0], *lists[1]}
    if variant.technique == "absolute":
        lexical, dense = absolute_weights(0, asked.idf_sum, dense_scale)[0], 2 * dense_scale
        scaled: list[Scores] = [
            {doc: lexical * legs.lexical.get(doc, 0.0) for doc in found},
            {doc: dense * legs.dense.get(doc, UNSEEN) for doc in found},
        ]
    else:
        scaled = [dict.fromkeys(found, 0.0) | on_scale(variant.technique, scores) for scores in lists]
    return np.array([[side.get(doc, np.nan) for doc in asked.candidates] for side in scaled])


def on_scale(technique: str, scores: Scores) -> dict[str, float]:
    """Normalise one list as a pipeline does."""
    return rrf([scores], [1.0]) if technique == "rrf" else NORMALIZATIONS[technique](scores)


def reworded(asked: Asked, words: Postings | None, similarity: Similarity) -> Legs:
    """Score the candidates' words anew, and list them in that order."""
    if words is None:
        raise ValueError("the words of the candidates were not looked up")
    documents = asked.candidates
    scores = words.scores(similarity, len(documents)).tolist()
    lexical = {doc: score for doc, score in zip(documents, scores, strict=True) if score > 0}
    return asked.legs._replace(listed=(best_first(lexical), asked.legs.listed[1]), lexical=lexical)


def turned(asked: Asked, legs: Legs, row: NDArray[np.float64]) -> Legs:
    """Score the candidates by the query vector moved toward the best of `row`, as `feedback.rocchio` does."""
    if asked.cosines is None:
        raise ValueError("the vectors of the candidates were not compared")
    documents, told = asked.candidates, asked.legs.dense
    own = np.array([2 * told.get(doc, UNSEEN) - 1 for doc in documents])  # cosines, (n,)
    best = np.argsort(-np.nan_to_num(row, nan=-np.inf), kind="stable")[:ROCCHIO_DOCUMENTS]
    chosen = [place for place in best if documents[place] in told]
    if not chosen:
        return legs
    near = asked.cosines[chosen].astype(np.float64)
    squared = 1 + 2 * ROCCHIO_WEIGHT * own[chosen].mean() + ROCCHIO_WEIGHT**2 * near[:, chosen].mean()
    cosines = (own + ROCCHIO_WEIGHT * near.mean(axis=0)) / np.sqrt(squared)
    scores = dict(zip(documents, ((1 + cosines) / 2).tolist(), strict=True))
    dense = {doc: score for doc, score in scores.items() if doc in told}
    return legs._replace(listed=(legs.listed[0], best_first(dense)), dense=dense)


def best_first(scores: Scores) -> dict[str, float]:
    """List the candidates of a leg."""
    return dict(sorted(scores.items(), key=lambda item: -item[1]))


def first(scores: Scores, count: int) -> Scores:
    """Keep the first of a list."""
    return dict(list(scores.items())[:count]) if count < len(scores) else scores
