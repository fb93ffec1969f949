"""Pages: the hits that people look at; which rank a document has does not depend on the page."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import Any

from ..cluster.limits import RESULT_WINDOW, index_put, result_window
from ..cluster.reading import sources_by_id, text_of
from ..cluster.retrievers.dense import MAX_NEIGHBOURS
from ..cluster.retrievers.lexical import highlight
from ..cluster.routing import same_copies
from ..errors import SettingsError
from ..records import Hit, Hits
from .candidates import check_without_scripts, groups_of, unseen
from .fusions import CompiledQuery
from .hits import checked_hits, named_scores, shown_text
from .opened import SearchContext

READ_AT_ONCE = 500  # documents


@dataclass(frozen=True)
class Pages:
    """The pages of a search."""

    opened: SearchContext

    @property
    def shown_fields(self) -> list[str]:
        """Name the fields whose text is shown."""
        return list(self.opened.info.record.fields or self.opened.fields)

    def depth(self, k: int) -> int:
        """Give how many candidates of each leg a list of this length needs."""
        return max(self.opened.settings.depth, k)

    def hits(self, page: range, question: CompiledQuery) -> Hits:
        """Give the hits of a page."""
        if not self.in_pieces(page.stop):
            return self.page_of(page, replace(question, depth=self.depth(page.stop)), [])
        pieces = list(self.pieces(page, question))
        return Hits(chain(*pieces), pieces[0].best)

    def in_pieces(self, stop: int) -> bool:
        """Tell whether a list of this length is put together of lists of several depths."""
        of_words = all(leg.of_words for leg in self.opened.legs.values())
        return not of_words and self.opened.joining.true_scores and stop > self.opened.settings.depth

    def pieces(self, page: range, question: CompiledQuery) -> Iterator[Hits]:
        """Give a page that reaches beyond the first `depth` hits; the first piece knows the best of all.

        After them come the best of twice as many candidates that are not among them, and so on.
        """
        seen: list[str] = []
        depth = self.opened.settings.depth
        while True:
            part, first = replace(question, depth=depth), len(seen)
            if page.start < depth:
                yield self.page_of(range(max(page.start, first), min(page.stop, depth)), part, seen)
            if page.stop <= depth:
                return
            [scores] = self.opened.joiner.best([replace(part, shown=False)], depth - first, seen)
            yield Hits(best=first_score(scores.values()))
            seen += scores
            if len(seen) < depth:
                return
            name, window = self.opened.info.name, result_window(self.opened.info)
            reach = window + len(seen) if self.opened.joiner.asks_once else window
            if reach <= depth:
                raise SettingsError(
                    f"hits from {depth + 1} on are beyond {RESULT_WINDOW} of '{name}' ({window})",
                    hint=index_put(name, RESULT_WINDOW, str(page.stop)),
                )
            depth = min(2 * depth, MAX_NEIGHBOURS, reach)

    def page_of(self, page: range, question: CompiledQuery, seen: Sequence[str]) -> Hits:
        """Ask for hits as people look at them; the first ranks are those of `seen`.

        A cluster tells the best score of all hits on every page, after it has scored them again.
        """
        joiner, info, fields = self.opened.joiner, self.opened.info, self.shown_fields
        if not joiner.asks_once:
            return self.joined_here(page, replace(question, shown=False), seen)
        offset = page.start - len(seen)
        body = unseen(joiner.fusion.body(question, offset + len(page)), seen)
        needed = fields if info.record.passages else False  # a text may have megabytes
        body |= {"highlight": highlight(info, fields, question.text, self.opened.fields), "_source": needed}
        body |= {"size": len(page), "from": offset}
        params = same_copies(question.text) | {"include_named_queries_score": "true"}
        answer = self.opened.cluster.search(info, body, params)
        hits = joiner.candidates.with_passages(checked_hits(answer), question)
        shown_hits = [
            self.hit(Hit(hit["_id"], hit["_score"] or 0.0, rank), question, named_scores(hit), hit)
            for rank, hit in enumerate(hits, page.start + 1)
        ]
        return Hits(shown_hits, answer["hits"].get("max_score"))

    def joined_here(self, page: range, question: CompiledQuery, seen: Sequence[str]) -> Hits:
        """Ask the legs, join them in this process, and look up the texts of the page."""
        check_without_scripts(question)
        joiner, first = self.opened.joiner, len(seen)
        [legs] = joiner.candidates.find([question])
        ranked = joiner.ranked(legs, page.stop - first, seen)
        scores = dict(islice(ranked.items(), page.start - first, None))
        sources = joiner.candidates.looked_up(list(scores), question, self.shown_fields, self.opened.fields)
        hits = [
            self.hit(Hit(doc, score, rank), question, legs.scores_of(doc), sources.get(doc, {}))
            for rank, (doc, score) in enumerate(scores.items(), page.start + 1)
        ]
        return Hits(hits, first_score(ranked.values()))

    def pinned(self, pins: Mapping[str, str], question: CompiledQuery) -> list[Hit]:
        """Give of these documents those that the question's filter and the index's scope show, in their
        order, each with the rule that pins it; 0 is the score of one that the search would not have found."""
        among, fields = question.narrowed(must=[{"ids": {"values": list(pins)}}]), self.shown_fields
        hits = {hit.doc_id: hit for hit in self.hits(range(len(pins)), among)}
        if missing := [doc for doc in pins if doc not in hits]:
            sources = self.opened.joiner.candidates.looked_up(missing, question, fields, self.opened.fields)
            hits |= {doc: self.hit(Hit(doc, 0.0, 0), question, {}, source) for doc, source in sources.items()}
        there = [doc for doc in pins if doc in hits]
        return [hits[doc]._replace(rank=rank, rule=pins[doc]) for rank, doc in enumerate(there, 1)]

    def contents(self, lists: Sequence[Sequence[Hit]]) -> dict[str, str]:
        """Read the whole texts of hits, as the encoder reads them."""
        info, fields = self.opened.info, self.shown_fields
        doc_ids = list(dict.fromkeys(hit.doc_id for hits in lists for hit in hits))
        texts: dict[str, str] = {}
        for group in groups_of(doc_ids, READ_AT_ONCE):
            sources = sources_by_id(self.opened.cluster, info, group)
            texts |= {doc_id: text_of(source, fields) for doc_id, source in sources.items()}
        return texts

    def hit(
        self, bare: Hit, question: CompiledQuery, confidence: Mapping[str, float], hit: dict[str, Any]
    ) -> Hit:
        """Complete a hit by the scores of its legs, what each part adds, and the text that is found."""
        text, passage = shown_text(hit, self.shown_fields)
        parts = self.opened.joining.parts(question, confidence, bare.score) if question.explained else None
        scores = {name: confidence.get(name) for name in (*self.opened.settings.shares, *question.legs)}
        return bare._replace(scores=scores, text=text, passage=passage, parts=parts)


def first_score(scores: Iterable[float]) -> float | None:
    """Give the first of scores that come best first; None where there is none."""
    return next(iter(scores), None)
