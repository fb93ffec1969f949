"""An index as one search asks it: what the settings, the mode and the record of the index make of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from ..cluster.connection import Cluster
from ..cluster.fields import choose_text_fields
from ..cluster.limits import clause_limit, result_window
from ..cluster.record import IndexInfo
from ..cluster.retrievers import Retriever
from ..cluster.retrievers.lexical import LexicalRetriever, Template
from ..cluster.word_fields import Searched, searched_fields, shared_similarity, word_fields
from ..encoders.contract import Encoder
from ..errors import SettingsError
from ..families import member_of
from ..indexing.representations import FAMILY as REPRESENTATIONS
from ..indexing.representations import TextReader
from ..indexing.terms.terms import Analysis
from .calibration import (
    MINILM_SPREAD,
    PlainQuery,
    known_scale,
    known_unrelated,
    measured_gain,
    read_template,
    scale_of,
)
from .candidates import HYBRID, Alone, Candidates, Joiner, encodes, legs_of, made_legs
from .checks import Feedback, Mode, check_feedback, checked_encoder, chosen_fusion, weighted_boosts
from .fusions import FAMILY, MAX_CLAUSES, SPARE_CLAUSES, Fusion, Scales, Weighted
from .pieces import word_queries
from .scripts import Scripts
from .settings import SearchSettings, with_tuning
from .signal_set import SignalSet, signals_taken
from .signals import Place


@dataclass(frozen=True)
class SearchContext:
    """What one search ranks by; each part is made when it is first asked, of those that it needs.

    `settings` are those that count: what `tune` found is in them.
    """

    cluster: Cluster
    info: IndexInfo
    mode: Mode
    settings: SearchSettings
    encoder: Encoder | None
    feedback: Feedback | None

    @cached_property
    def searched(self) -> list[Searched]:
        """Give the text fields that are searched by words: the settings', the record's, or all that fit."""
        if fields := self.settings.lexical_fields:
            return searched_fields(self.info, fields)
        names = self.info.record.lexical_fields
        if not names:
            names = word_fields(self.info, choose_text_fields(self.cluster, self.info))
        return [Searched(name) for name in names]

    @cached_property
    def fields(self) -> tuple[str, ...]:
        """Name the text fields that are searched by words."""
        return tuple(field.name for field in self.searched)

    @cached_property
    def max_clauses(self) -> int:
        """Return how many clauses the cluster takes in a query of hybridr."""
        return min(MAX_CLAUSES, max(1, clause_limit(self.cluster) - SPARE_CLAUSES))

    @cached_property
    def words(self) -> LexicalRetriever:
        """Make what asks for the words of a text, without a query of the user's own."""
        return LexicalRetriever.over(self.info, self.searched, self.cluster.version)

    @cached_property
    def fusion(self) -> str | None:
        """Name what joins the legs of a hybrid search; None in other modes."""
        return chosen_fusion(self.settings, self.info) if self.mode == HYBRID else None

    @cached_property
    def joining(self) -> Fusion:
        """Make the fusion; one leg is joined with nothing."""
        kind: type[Fusion] = member_of(FAMILY, self.fusion) if self.fusion else Alone
        return kind(self.settings, self.cluster.version)

    @cached_property
    def scales(self) -> Scales:
        """Give what holds for the scores of every query, where cosines are added to other scores."""
        if not (self.encoder and self.joining.needs_scales):
            return Scales()
        return Scales(0.0, known_scale(self.encoder), known_unrelated(self.encoder), self.gain)

    @cached_property
    def gain(self) -> float:
        """Tell how much larger the index scores words than plain BM25: by its k1, else as measured."""
        if (similarity := shared_similarity(self.info, self.fields)) is not None:
            plain_since = self.cluster.dialect.plain_scores
            return similarity.gain(old=plain_since is None or self.cluster.version < plain_since)
        return measured_gain(self.cluster, self.info, PlainQuery(self.fields, self.plain), self.analysis)

    @cached_property
    def analysis(self) -> Analysis:
        """Read the words of texts as the index does."""
        return Analysis(self.cluster, self.info, self.fields)

    @cached_property
    def signals(self) -> SignalSet:
        """Make the signals that are taken up."""
        if self.encoder is None or not self.joining.takes_signals:
            return SignalSet({}, {})
        return signals_taken(Place(self.cluster, self.info, self.fields, self.encoder), self.settings.signals)

    @cached_property
    def boosts(self) -> Mapping[str, Weighted]:
        """Give what fields add by the settings."""
        return weighted_boosts(self.info, self.settings.boost) if self.joining.takes_boosts else {}

    def boosts_of(self, formula: str | None) -> Mapping[str, Weighted]:
        """Give what a formula adds; None: that of the settings. Raises SettingsError where nothing can."""
        if formula is None:
            return self.boosts
        if formula and not self.joining.takes_boosts:
            ranks = f"the fusion '{self.fusion}'" if self.fusion else f"mode {self.mode}"
            raise SettingsError(f"{ranks} adds no boosts", hint="leave the boost out")
        return weighted_boosts(self.info, formula)

    @cached_property
    def legs(self) -> dict[str, Retriever]:
        """Make the legs by name."""
        retrievers = made_legs(self.mode, self.settings, self.info.record, self.fields)
        for name, leg in retrievers.items():
            if isinstance(leg, LexicalRetriever):
                fields, as_one = self.words.fields, self.words.as_one
                template = None if self.joining.rescores else self.template
                retrievers[name] = replace(leg, fields=fields, as_one=as_one, template=template)
        return retrievers

    def plain(self, texts: Sequence[str]) -> list[dict[str, Any]]:
        """Ask for the words of texts, without a query of the user's own."""
        if self.words.in_pieces:
            return word_queries(self.words, texts, self.analysis.of(texts))
        return [self.words.query(text, self.settings.depth) for text in texts]

    @cached_property
    def template(self) -> Template | None:
        """Return the user's own lexical query, on the scale of the plain one if a leg asks it as it is."""
        of_words = any(leg.of_words for leg in legs_of(self.mode, self.settings))
        measured = self.cluster if of_words and not self.joining.rescores else None
        return read_template(
            self.settings.query_template, self.info, PlainQuery(self.fields, self.plain), measured
        )

    @cached_property
    def scripts(self) -> Scripts | None:
        """Tell whether the cluster runs scripts, where the fusion needs them."""
        return Scripts(self.cluster, self.info.name) if self.joining.needs_scripts else None

    @cached_property
    def joiner(self) -> Joiner:
        """Query the retrievers and fuse their hits into one ranking."""
        return Joiner(Candidates(self.cluster, self.info, self.legs), self.joining, self.scripts)

    def own_factors(self, query: Mapping[str, Any]) -> dict[str, float]:
        """Give the factor of each leg that knows how its scores of a query spread."""
        spreads = {name: leg.spread_of(query[name]) for name, leg in self.legs.items()}
        return {
            name: scale_of(spread, MINILM_SPREAD) for name, spread in spreads.items() if spread is not None
        }

    @cached_property
    def readers(self) -> dict[str, TextReader]:
        """Give what makes of texts what the legs of representations are asked by."""
        record, settings = self.info.record, self.settings
        names = [name for name, leg in self.legs.items() if leg.reads == "representation"]
        return {name: member_of(REPRESENTATIONS, name).reader(record, settings) for name in names}

    @cached_property
    def remarks(self) -> list[str]:
        """Say what ranks otherwise than the settings would have it."""
        if self.mode != HYBRID and self.settings.boost:
            return [f"the boost is left out: mode {self.mode} ranks by one leg"]
        if not (self.scripts and (refused := self.scripts.refused())):
            return []
        lost = [name for name, signal in self.signals.members.items() if signal.needs_scripts]
        return [f"ranked in several requests{' without ' * bool(lost)}{', '.join(lost)}: {refused}"]


def open_for_search(
    cluster: Cluster,
    info: IndexInfo,
    mode: Mode,
    search_settings: SearchSettings,
    *,
    feedback: Feedback | None,
    encoder: Encoder | None,
    name: str,
) -> SearchContext:
    """Check what is asked of an index that somebody called `name`, and open it; raises as `Search` does."""
    settings = with_tuning(search_settings, info)
    if encodes(mode, settings):
        encoder = checked_encoder(cluster, info, name, mode, encoder)
    else:
        encoder = None
    check_feedback(feedback, mode, settings)
    depth = min(settings.depth, result_window(info))
    settings = settings.model_copy(update={"depth": depth})
    return SearchContext(cluster, info, mode, settings, encoder, feedback)
