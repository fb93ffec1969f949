"""What a search asks its legs for a text: its words and its vector, with scales and signals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..cluster.limits import rescore_window
from ..cluster.retrievers import Retriever
from ..cluster.retrievers.dense import as_kept
from ..cluster.retrievers.lexical import LexicalRetriever, lexical_root
from ..encoders.contract import Reading
from ..indexing.terms.terms import Analysed
from .feedback import TermFeedback
from .fusions import MAX_CLAUSES, CompiledQuery, Scales, Weighted, leaves_of, that_fit
from .opened import SearchContext
from .pieces import word_queries
from .signals import QueryReading


class QueryCompiler:
    """How one search makes questions of texts, by what it opened.

    `expanded` makes the query of the lexical leg in place of the text.
    """

    def __init__(self, opened: SearchContext) -> None:
        self.opened, self.info, self.legs, self.joiner = opened, opened.info, opened.legs, opened.joiner
        self.analysis, self.signals, self.readers = opened.analysis, opened.signals, opened.readers
        expands = opened.feedback is not None
        self.expanded = TermFeedback(opened.cluster, opened.info, opened.fields) if expands else None

    def questions(
        self,
        texts: Sequence[str],
        depth: int,
        readings: Sequence[Reading] | None = None,
        filter: dict[str, Any] | None = None,
    ) -> list[CompiledQuery]:
        """Ask each text as the legs read it; `readings` None has the encoder read the texts."""
        filter = self.info.scope.both(filter)
        if readings is None and self.opened.encoder is not None:
            readings = self.signals.read(self.opened.encoder, texts)
        queries = {name: self.values_for(leg, texts, readings) for name, leg in self.legs.items()}
        scales, read = [Scales()] * len(texts), [Analysed()] * len(texts)
        by_leg = [dict(zip(self.legs, each, strict=True)) for each in zip(*queries.values(), strict=True)]
        if self.joiner.fusion.needs_scales:
            read = self.analysis.of(texts)
            own, scale = map(self.opened.own_factors, by_leg), self.opened.scales
            scales = [
                scale.of(analysis.idf_sum)._replace(own=spread)
                for analysis, spread in zip(read, own, strict=True)
            ]
        parts = self._signals(texts, read, readings, scales)
        representations = any(leg.reads == "representation" for leg in self.legs.values())
        max_clauses = self.opened.max_clauses if representations or self.signals.members else MAX_CLAUSES
        if representations or max_clauses < MAX_CLAUSES:
            rooms = map(self.room_beside, by_leg, read)
            parts = list(map(that_fit, parts, rooms))
        return [
            CompiledQuery(
                self.legs,
                each,
                depth,
                filter,
                scales=scale,
                signals=part,
                text=text,
                leaves=self.leaves_of(words),
                words_find=self.words_find(text, words),
                window=rescore_window(self.info),
                max_clauses=max_clauses,
            )
            for each, scale, part, text, words in zip(by_leg, scales, parts, texts, read, strict=True)
        ]

    def leaves_of(self, words: Analysed) -> int:
        """Bound what a cluster makes of words."""
        legs = (leg for leg in self.legs.values() if isinstance(leg, LexicalRetriever))
        return max((leg.clauses_of(len(words.words)) for leg in legs), default=0)

    def room_beside(self, query: Mapping[str, Any], words: Analysed) -> int:
        """Count the clauses that a cluster takes beside those of the words and of representations."""
        legs = (leg.query(query[name], 1) for name, leg in self.legs.items() if leg.reads == "representation")
        return self.opened.max_clauses - sum(map(leaves_of, legs)) - len(words.words)

    def words_find(self, text: str, words: Analysed) -> bool:
        """Tell whether words alone find what a text looks for: by the settings, or since it is a part number
        or the like that the index has. Neighbours of that are other parts."""
        fusion = self.joiner.fusion
        is_exact = fusion.settings.recall == "lexical" or (words.known and is_identifier(text))
        return fusion.true_scores and len(self.legs) > 1 and is_exact

    def _signals(
        self,
        texts: Sequence[str],
        analysed: Sequence[Analysed],
        readings: Sequence[Reading] | None,
        scales: Sequence[Scales],
    ) -> list[dict[str, Weighted]]:
        if not self.signals.members or readings is None:
            return [{} for _ in texts]
        roots = [lexical_root(scale.idf_sum) for scale in scales]
        weighted = self.signals.of(list(map(QueryReading, texts, analysed, readings, roots)))
        if self.joiner.scripts is None or not self.joiner.scripts.refused():
            return weighted
        return [{name: part for name, part in parts.items() if not part.scripted} for parts in weighted]

    def values_for(
        self, leg: Retriever, texts: Sequence[str], readings: Sequence[Reading] | None
    ) -> Sequence[Any]:
        """Give what a leg is asked by for each text."""
        if self.expanded and leg.of_words:
            return self.expanded.queries(texts)
        if isinstance(leg, LexicalRetriever) and leg.in_pieces:
            return word_queries(leg, texts, self.analysis.of(texts))
        if leg.reads == "text":
            return texts
        if leg.reads == "representation":
            return self.readers[leg.name](texts)
        assert readings is not None
        return list(as_kept(np.stack([reading.vector for reading in readings]), self.info.record.vectors))


def is_identifier(text: str) -> bool:
    """Tell whether a text is one word of letters and digits, as part numbers and error codes are."""
    letters = {letter.isalpha() for letter in text if letter.isalnum()}
    return len(text.split()) == 1 and letters == {True, False}
