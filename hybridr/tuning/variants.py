"""The ways to join two legs that a search can carry out, and how they lie to each other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ..bodies import search_pipeline
from ..errors import SettingsError
from ..settings import SearchSettings
from .choice import Landscape

TENTHS, TWENTIETHS = [i / 10 for i in range(2, 9)], [i / 20 for i in range(1, 20)]
DEPTHS = (20, 50)
ANOTHER_TECHNIQUE = 0.25  # as far from the default as a weight of 0 or 1
ADDITION = 0.05  # feedback or another depth
NEIGHBOURHOOD = 0.15  # of weights: the deviation of a bell
USUAL = SearchSettings()


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


def distance(same_technique: bool, weight: float) -> float:
    """Tell how far technique and weight are from the default."""
    return (0.0 if same_technique else ANOTHER_TECHNIQUE) + (weight - USUAL.dense_weight) ** 2


def landscape(tried: Sequence[Variant]) -> Landscape:
    """Say how variants lie to each other: by weight within a kind, not at all between two."""
    weights = np.array([variant.settings["dense_weight"] for variant in tried])
    kinds = np.array([variant.kind for variant in tried])
    bell = np.exp(-0.5 * ((weights[:, None] - weights) / NEIGHBOURHOOD) ** 2)
    near = np.where(kinds[:, None] == kinds, bell, 0.0)
    distances = np.array([variant.distance for variant in tried])
    return Landscape(distances, near / near.sum(axis=1, keepdims=True))
