"""Runs the re-rankers of a search over its best hits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from ..errors import HybridrError, ModelError, SettingsError
from ..families import member_of
from ..records import Hit
from .calibration import cosine_scale
from .checks import HYBRID
from .context import SearchContext, own_factors
from .fusions import CompiledQuery, Scales
from .rerankers import FAMILY, IndexAccess, Listed, Reranker
from .settings import SearchSettings, tuned_chain

ReadsTexts: TypeAlias = Callable[[Sequence[Sequence[Hit]]], Mapping[str, str]]


@dataclass(frozen=True)
class Reordering:
    """Re-rankers that follow a search, one after the other; `contents` reads the texts of hits."""

    context: SearchContext
    contents: ReadsTexts
    members: tuple[Reranker, ...] = ()
    tuned: bool = False
    """`tune` chose them, no user: a request that cannot have them goes without."""
    own: Mapping[str, Any] = field(default_factory=dict)
    """The settings that they got."""

    @property
    def names(self) -> list[Any]:
        """Return the names of the re-rankers, and their settings."""
        return [[reranker.name for reranker in self.members], dict(self.own)]

    @property
    def reach(self) -> int:
        """Return how many of the best hits the re-rankers look at; later hits keep their places."""
        depth = self.context.settings.depth
        return min(depth, max(reranker.reach or depth for reranker in self.members))

    @classmethod
    def by(
        cls, context: SearchContext, contents: ReadsTexts, names: Sequence[str], own: Mapping[str, Any]
    ) -> Reordering:
        """Return the named re-rankers for a search; each takes those of the `own` settings that it has.

        Raises SettingsError for a re-ranker that cannot order hits here, for unknown settings, and for one
        that adds to scores if the fusion gives no true scores.
        """
        behind = IndexAccess(context.cluster, context.info)
        kinds: list[type[Reranker]] = [member_of(FAMILY, name) for name in names]
        unknown = own.keys() - {name for kind in kinds for name in kind.own_settings.model_fields}
        rerankers = []
        for kind in kinds:
            if obstacle := kind.obstacle(behind):
                raise SettingsError(f"'{kind.name}' cannot order hits here: {obstacle}", hint="--rerank none")
            fields = unknown | kind.own_settings.model_fields.keys()
            values = {name: value for name, value in own.items() if name in fields}
            rerankers.append(kind(behind, kind.own_settings(**values)))
        adding = [reranker.name for reranker in rerankers if reranker.adds]
        if adding and not context.fusion.true_scores:
            raise SettingsError(
                f"'{adding[0]}' adds to true scores, which the fusion '{context.fusion.name}' does not give",
                hint="--fusion absolute",
            )
        return cls(context, contents, tuple(rerankers), own=own if rerankers else {})

    @classmethod
    def set_or_tuned(
        cls, context: SearchContext, contents: ReadsTexts, settings: SearchSettings
    ) -> tuple[Reordering, list[str]]:
        """Return the re-rankers of the settings, else those that `tune` chose for hybrid searches, with
        remarks.

        What `tune` chose and this machine lacks is left out, with a remark.
        """
        if context.settings.chain or context.mode != HYBRID:
            own = context.settings.rerank_settings
            return cls.by(context, contents, context.settings.chain, own), []
        try:
            tuned = tuned_chain(settings, context.info)
            chain = cls.by(context, contents, tuned.chain, tuned.rerank_settings)
            return replace(chain, tuned=bool(chain.members)), []
        except HybridrError as error:
            return cls(context, contents), [f"what tune found to re-rank with is left out: {error}"]

    def of(
        self, queries: Sequence[CompiledQuery], hit_lists: Sequence[list[Hit]], *, hurried: bool = True
    ) -> list[list[Hit]]:
        """Return the hits of each query with their best `depth` reordered. Raises ModelError if a re-ranker
        adds or drops hits.
        """
        depth = self.context.settings.depth
        best, rest = [hits[:depth] for hits in hit_lists], [hits[depth:] for hits in hit_lists]
        for reranker in self.members:
            read = [hits[: reranker.reach] for hits in best] if reranker.needs_texts else []
            contents = self.contents(read)
            scales = self.scales(queries) if reranker.adds else [1.0] * len(queries)
            lists = [
                Listed(query.text, hits, contents, scale, hurried)
                for query, hits, scale in zip(queries, best, scales, strict=True)
            ]
            before, best = best, reranker.rescored(lists)
            for old, new in zip(before, best, strict=True):
                if {hit.doc_id for hit in old} != {hit.doc_id for hit in new} or len(old) != len(new):
                    raise ModelError(
                        f"the re-ranker '{reranker.name}' was given {len(old)} hits and gives {len(new)}, "
                        "or others",
                        hint="--rerank none",
                    )
        return [first + others for first, others in zip(best, rest, strict=True)]

    def scales(self, queries: Sequence[CompiledQuery]) -> list[float]:
        """Return for each query the factor that brings scores of its hits to the scale of (1 + cosine)."""
        context = self.context
        if context.fusion.needs_scales:
            return [1 / context.fusion.unit(query) for query in queries]
        [(name, retriever)] = context.retrievers.items()
        cosines = context.info.record.cosines
        factor = cosine_scale(context.encoder, cosines).factor if context.encoder else 1.0
        sums = [0.0] * len(queries)
        if retriever.of_words:
            read = context.analysis.of([query.text for query in queries])
            sums = [Scales(gain=context.gain).of(words.idf_sum).idf_sum for words in read]
        own = [own_factors(context.retrievers, query.values).get(name, factor) for query in queries]
        return list(map(retriever.scale, sums, own))

    def left(self, hits: Sequence[Hit]) -> list[str]:
        """Return remarks for hits of a page that there was no time to re-rank."""
        return [said for reranker in self.members if (said := reranker.left(hits))]
