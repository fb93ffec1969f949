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
from .fusions import CompiledQuery, Scales
from .opened import SearchContext
from .rerankers import FAMILY, IndexAccess, Listed, Reranker
from .settings import SearchSettings, tuned_chain

ReadsTexts: TypeAlias = Callable[[Sequence[Sequence[Hit]]], Mapping[str, str]]


@dataclass(frozen=True)
class Reordering:
    """Re-rankers, one after the other, behind a search that was opened; `contents` reads texts of hits."""

    opened: SearchContext
    contents: ReadsTexts
    members: tuple[Reranker, ...] = ()
    tuned: bool = False
    """They were found by `tune`, nobody asked for them: a request that cannot have them goes without."""
    own: Mapping[str, Any] = field(default_factory=dict)
    """The settings that they were given."""

    @property
    def names(self) -> list[Any]:
        """Name the re-rankers and their settings."""
        return [[reranker.name for reranker in self.members], dict(self.own)]

    @property
    def reach(self) -> int:
        """Count the hits that any of them looks at: those behind keep their places."""
        depth = self.opened.settings.depth
        return min(depth, max(reranker.reach or depth for reranker in self.members))

    @classmethod
    def by(
        cls, opened: SearchContext, contents: ReadsTexts, names: Sequence[str], own: Mapping[str, Any]
    ) -> Reordering:
        """Make re-rankers with their `own` settings, as `rerankers_of`, for scores that they can add to."""
        rerankers = rerankers_of(IndexAccess(opened.cluster, opened.info), names, own)
        if not opened.joining.true_scores and (
            adding := [reranker.name for reranker in rerankers if reranker.adds]
        ):
            raise SettingsError(
                f"'{adding[0]}' adds to true scores, which the fusion '{opened.fusion}' does not give",
                hint="--fusion absolute",
            )
        return cls(opened, contents, rerankers, own=own if rerankers else {})

    def of(
        self, questions: Sequence[CompiledQuery], hit_lists: Sequence[list[Hit]], *, hurried: bool = True
    ) -> list[list[Hit]]:
        """Order the best `depth` hits of each query anew."""
        depth = self.opened.settings.depth
        best, rest = [hits[:depth] for hits in hit_lists], [hits[depth:] for hits in hit_lists]
        for reranker in self.members:
            read = [hits[: reranker.reach] for hits in best] if reranker.needs_texts else []
            contents = self.contents(read)
            scales = self.scales(questions) if reranker.adds else [1.0] * len(questions)
            lists = [
                Listed(question.text, hits, contents, scale, hurried)
                for question, hits, scale in zip(questions, best, scales, strict=True)
            ]
            before, best = best, reranker.rescored(lists)
            check_reordered(reranker.name, before, best)
        return [first + others for first, others in zip(best, rest, strict=True)]

    def scales(self, questions: Sequence[CompiledQuery]) -> list[float]:
        """Give what brings scores of each question's hits to that of (1 + cosine); 1 where a fusion did."""
        opened = self.opened
        if opened.joining.needs_scales:
            return [1 / opened.joining.unit(question) for question in questions]
        [(name, leg)] = opened.legs.items()
        spread = known_scale(opened.encoder) if opened.encoder else 1.0
        read = opened.analysis.of([question.text for question in questions]) if leg.of_words else []
        sums = [Scales(gain=opened.gain).of(analysis.idf_sum).idf_sum for analysis in read] or [0.0] * len(
            questions
        )
        own = [opened.own_factors(question.asked).get(name, spread) for question in questions]
        return list(map(leg.scale, sums, own))

    def left(self, hits: Sequence[Hit]) -> list[str]:
        """Say which of the hits of a page there was no time to look at."""
        return [said for reranker in self.members if (said := reranker.left(hits))]


def chain_behind(
    opened: SearchContext, contents: ReadsTexts, settings: SearchSettings
) -> tuple[Reordering, list[str]]:
    """Make the re-rankers that were asked for, else those that `tune` found for hybrid searches.

    What `tune` found and this machine lacks is left out, and said.
    """
    own_settings = opened.settings
    if own_settings.chain or opened.mode != HYBRID:
        return Reordering.by(opened, contents, own_settings.chain, own_settings.rerank_settings), []
    try:
        tuned = tuned_chain(settings, opened.info)
        chain = Reordering.by(opened, contents, tuned.chain, tuned.rerank_settings)
        return replace(chain, tuned=bool(chain.members)), []
    except HybridrError as error:
        return Reordering(opened, contents), [f"what tune found to re-rank with is left out: {error}"]


def rerankers_of(behind: IndexAccess, names: Sequence[str], own: Mapping[str, Any]) -> tuple[Reranker, ...]:
    """Make re-rankers; each takes those of the `own` settings that it has, one alone all of them.

    Raises SettingsError for one that cannot order hits here, and for settings that none has.
    """
    kinds = [member_of(FAMILY, name) for name in names]
    fields = [set(kind.own_settings.model_fields) for kind in kinds]
    others = own.keys() - set().union(*fields)
    rerankers: list[Reranker] = []
    for kind, has in zip(kinds, fields, strict=True):
        if obstacle := kind.obstacle(behind):
            raise SettingsError(f"'{kind.name}' cannot order hits here: {obstacle}", hint="--rerank none")
        taken = {name: own[name] for name in own if name in has | others}
        rerankers.append(kind(behind, kind.own_settings(**taken)))
    return tuple(rerankers)


def check_reordered(name: str, before: Sequence[Sequence[Hit]], after: Sequence[Sequence[Hit]]) -> None:
    """Raise ModelError where a re-ranker gives other hits than it was given."""
    for old, new in zip(before, after, strict=True):
        if {hit.doc_id for hit in old} != {hit.doc_id for hit in new} or len(old) != len(new):
            raise ModelError(
                f"the re-ranker '{name}' was given {len(old)} hits and gives {len(new)}, or others",
                hint="--rerank none",
            )
