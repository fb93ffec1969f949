"""Reordering: the re-rankers behind a search, and what they get of its best hits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from ..errors import HybridrError, ModelError, SettingsError
from ..families import member_of
from ..records import Hit
from .calibration import known_scale
from .candidates import HYBRID
from .fusions import Question, Scales
from .opened import Opened
from .rerankers import FAMILY, Behind, Listed, Reranker
from .settings import SearchSettings, tuned_chain

ReadsTexts: TypeAlias = Callable[[Sequence[Sequence[Hit]]], Mapping[str, str]]


@dataclass(frozen=True)
class Reordering:
    """Re-rankers, one after the other, behind a search that was opened; `contents` reads texts of hits."""

    opened: Opened
    contents: ReadsTexts
    members: tuple[Reranker, ...] = ()
    tuned: bool = False
    """They were found by `tune`, nobody asked for them: a request that cannot have them goes without."""
    own: Mapping[str, Any] = field(default_factory=dict)
    """The settings that they were given."""

    @property
    def asked(self) -> list[Any]:
        """Name the re-rankers and their settings."""
        return [[one.name for one in self.members], dict(self.own)]

    @property
    def reach(self) -> int:
        """Count the hits that any of them looks at: those behind keep their places."""
        depth = self.opened.settings.depth
        return min(depth, max(one.reach or depth for one in self.members))

    @classmethod
    def by(
        cls, opened: Opened, contents: ReadsTexts, names: Sequence[str], own: Mapping[str, Any]
    ) -> Reordering:
        """Make re-rankers with their `own` settings, as `rerankers_of`, for scores that they can add to."""
        made = rerankers_of(Behind(opened.cluster, opened.info), names, own)
        if not opened.joining.true_scores and (adding := [one.name for one in made if one.adds]):
            raise SettingsError(
                f"'{adding[0]}' adds to true scores, which the fusion '{opened.fusion}' does not give",
                hint="--fusion absolute",
            )
        return cls(opened, contents, made, own=own if made else {})

    def of(
        self, questions: Sequence[Question], found: Sequence[list[Hit]], *, hurried: bool = True
    ) -> list[list[Hit]]:
        """Order the best `depth` hits of each query anew."""
        depth = self.opened.settings.depth
        best, rest = [hits[:depth] for hits in found], [hits[depth:] for hits in found]
        for one in self.members:
            read = [hits[: one.reach] for hits in best] if one.needs_texts else []
            contents = self.contents(read)
            scales = self.scales(questions) if one.adds else [1.0] * len(questions)
            lists = [
                Listed(question.text, hits, contents, scale, hurried)
                for question, hits, scale in zip(questions, best, scales, strict=True)
            ]
            before, best = best, one.rescored(lists)
            check_reordered(one.name, before, best)
        return [first + others for first, others in zip(best, rest, strict=True)]

    def scales(self, questions: Sequence[Question]) -> list[float]:
        """Give what brings scores of each question's hits to that of (1 + cosine); 1 where a fusion did."""
        opened = self.opened
        if opened.joining.needs_scales:
            return [1 / opened.joining.unit(question) for question in questions]
        [(name, leg)] = opened.legs.items()
        spread = known_scale(opened.encoder) if opened.encoder else 1.0
        read = opened.analysis.of([one.text for one in questions]) if leg.of_words else []
        sums = [Scales(gain=opened.gain).of(one.idf_sum).idf_sum for one in read] or [0.0] * len(questions)
        own = [opened.own_factors(one.asked).get(name, spread) for one in questions]
        return list(map(leg.scale, sums, own))

    def left(self, hits: Sequence[Hit]) -> list[str]:
        """Say which of the hits of a page there was no time to look at."""
        return [said for one in self.members if (said := one.left(hits))]


def chain_behind(opened: Opened, contents: ReadsTexts, given: SearchSettings) -> tuple[Reordering, list[str]]:
    """Make the re-rankers that were asked for, else those that `tune` found for hybrid searches.

    What `tune` found and this machine lacks is left out, and said.
    """
    asked = opened.settings
    if asked.chain or opened.mode != HYBRID:
        return Reordering.by(opened, contents, asked.chain, asked.rerank_settings), []
    try:
        found = tuned_chain(given, opened.info)
        made = Reordering.by(opened, contents, found.chain, found.rerank_settings)
        return replace(made, tuned=bool(made.members)), []
    except HybridrError as error:
        return Reordering(opened, contents), [f"what tune found to re-rank with is left out: {error}"]


def rerankers_of(behind: Behind, names: Sequence[str], own: Mapping[str, Any]) -> tuple[Reranker, ...]:
    """Make re-rankers; each takes those of the `own` settings that it has, one alone all of them.

    Raises SettingsError for one that cannot order hits here, and for settings that none has.
    """
    kinds = [member_of(FAMILY, name) for name in names]
    known = [set(one.own_settings.model_fields) for one in kinds]
    others = own.keys() - set().union(*known)
    made: list[Reranker] = []
    for kind, has in zip(kinds, known, strict=True):
        if obstacle := kind.obstacle(behind):
            raise SettingsError(f"'{kind.name}' cannot order hits here: {obstacle}", hint="--rerank none")
        taken = {name: own[name] for name in own if name in has | others}
        made.append(kind(behind, kind.own_settings(**taken)))
    return tuple(made)


def check_reordered(name: str, before: Sequence[Sequence[Hit]], after: Sequence[Sequence[Hit]]) -> None:
    """Raise ModelError where a re-ranker gives other hits than it was given."""
    for given, found in zip(before, after, strict=True):
        if {hit.doc_id for hit in given} != {hit.doc_id for hit in found} or len(given) != len(found):
            raise ModelError(
                f"the re-ranker '{name}' was given {len(given)} hits and gives {len(found)}, or others",
                hint="--rerank none",
            )
