"""The ways to join two legs that one stock request can carry out, scored here from one retrieval per leg."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ..bodies import search_pipeline
from ..calibration import absolute_weights
from ..completion import CompletedSearch, Legs
from ..errors import SettingsError
from ..fusion import fuse
from ..progress import Progress, silent
from ..records import Query
from ..settings import SearchSettings
from .choice import Landscape

DEPTH = 100
AT_ONCE = 32
TENTHS, TWENTIETHS = [i / 10 for i in range(2, 9)], [i / 20 for i in range(1, 20)]
ANOTHER_TECHNIQUE = 0.25  # as far from the default as a weight of 0 or 1
NEIGHBOURHOOD = 0.15  # of weights: the deviation of a bell
DEFAULT_WEIGHT = SearchSettings().dense_weight


class Asked(NamedTuple):
    """A judged query with what both legs say about its candidates, and the weight of its terms."""

    query: Query
    legs: Legs
    idf_sum: float


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

    def __str__(self) -> str:
        """Name the variant for people."""
        return f"{self.technique}, dense weight {self.settings['dense_weight']:g}"


def variants(version: tuple[int, int, int], *, absolute: bool) -> list[Variant]:
    """List what is tried, the default among it; `absolute` tells whether the index can add up scores."""
    techniques = [("absolute", TWENTIETHS)] if absolute else []
    techniques += [("min_max", TENTHS), ("l2", TENTHS), ("z_score", TENTHS), ("rrf", TENTHS)]
    default = techniques[0][0]
    found = [
        Variant(named(technique) | {"dense_weight": weight}, distance(technique == default, weight))
        for technique, weights in techniques
        for weight in weights
    ]
    return [variant for variant in found if is_possible(variant, version)]


def is_possible(variant: Variant, version: tuple[int, int, int]) -> bool:
    """Tell whether a cluster of this version takes the pipeline of a variant."""
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


def distance(same_technique: bool, weight: float) -> float:
    """Tell how far a variant is from the default."""
    return (0.0 if same_technique else ANOTHER_TECHNIQUE) + (weight - DEFAULT_WEIGHT) ** 2


def landscape(tried: Sequence[Variant]) -> Landscape:
    """Say how variants lie to each other: by weight within a technique, not at all between two."""
    weights = np.array([variant.settings["dense_weight"] for variant in tried])
    techniques = np.array([variant.technique for variant in tried])
    bell = np.exp(-0.5 * ((weights[:, None] - weights) / NEIGHBOURHOOD) ** 2)
    near = np.where(techniques[:, None] == techniques, bell, 0.0)
    distances = np.array([variant.distance for variant in tried])
    return Landscape(distances, near / near.sum(axis=1, keepdims=True))


def ask(search: CompletedSearch, queries: Sequence[Query], progress: Progress = silent) -> list[Asked]:
    """Retrieve once with each leg for every query, and complete the scores of the candidates."""
    asked: list[Asked] = []
    progress("ask", 0, len(queries))
    for start in range(0, len(queries), AT_ONCE):
        batch = list(queries[start : start + AT_ONCE])
        texts = [query.text for query in batch]
        found = zip(batch, search.legs(texts), search.idf_sums(texts), strict=True)
        asked += [Asked(*one) for one in found]
        progress("ask", len(asked), len(queries))
    return asked


def scores_of(variant: Variant, asked: Asked, dense_scale: float) -> dict[str, float]:
    """Fuse the candidates of one query as the server would with these settings."""
    weight = variant.settings["dense_weight"]
    if variant.settings["fusion"] == "pipeline":
        lists, weights = list(asked.legs.listed), [1 - weight, weight]
        return fuse(lists, normalization=variant.settings["normalization"], weights=weights)
    lexical, dense = absolute_weights(weight, asked.idf_sum, dense_scale)
    unseen = 0.5  # the engine score of a document without a vector
    documents = dict.fromkeys([*asked.legs.listed[0], *asked.legs.listed[1]])
    return {
        doc: lexical * asked.legs.lexical.get(doc, 0.0) + dense * asked.legs.dense.get(doc, unseen)
        for doc in documents
    }
