"""Search: text in, ranked hits out, in mode lexical, dense or hybrid.

Composed of the legs of the mode (`candidates`), a fusion that joins them, and feedback before it; re-rankers
may look at the hits once more.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import replace
from typing import Any, Literal

from ..cluster.connection import Cluster
from ..cluster.destinations import resolve
from ..cluster.fields import choose_text_fields
from ..cluster.legs import Leg
from ..cluster.legs.dense import MAX_NEIGHBOURS, DenseLeg, as_kept
from ..cluster.legs.lexical import LexicalLeg, Template, highlight
from ..cluster.record import IndexInfo
from ..cluster.routing import same_copies
from ..encoding.contract import Encoder, Reading, Vectors
from ..errors import SettingsError
from ..files.family import member_of
from ..records import Hit, Query, Run
from ..vocabulary.terms import Analysis
from .calibration import known_scale, read_template
from .candidates import DENSE, HYBRID, LEXICAL, Alone, Candidates, Joiner, legs_of, modes, unseen
from .checks import (
    Feedback,
    Mode,
    Scripts,
    check_feedback,
    check_request,
    checked_encoder,
    chosen_fusion,
    rerankers_of,
    weighted_boosts,
)
from .feedback import TermFeedback
from .fusions import FAMILY, Fusion, Legs, Question, Weighted
from .hits import checked_hits, hit_of, named_scores
from .questions import Asking, TowardBest
from .rerankers import Behind
from .settings import SearchSettings, with_tuning
from .signal_set import SignalSet, signals_taken
from .signals import Place

BATCH = 32


class Search:
    """Rank the documents of an index; one object serves any number of queries.

    `index` may be the source, the alias or the destination of a reindex. Raises NotFound for a missing
    index, DataError when the mode needs vectors and there are none, FingerprintMismatch when the encoder
    is not the one that wrote them; without one the search finds it itself. `feedback="rm3"` expands the
    lexical leg by the words of its best documents, "rocchio" moves the query vector toward the best of a
    hybrid search. `fusion` names how a hybrid search joins its legs; None in other modes. Where the cluster
    runs no scripts, a fusion whose request needs one ranks here, by scores that are asked by ids.

    >>> search = hybridr.Search(cluster, "docs", encoder)
    >>> [hit.rank for hit in search("basket", k=2)]
    [1, 2]
    """

    def __init__(
        self,
        cluster: Cluster,
        index: str | IndexInfo,
        encoder: Encoder | None = None,
        mode: Mode = "hybrid",
        feedback: Feedback | None = None,
        *,
        settings: SearchSettings | None = None,
    ) -> None:
        if mode not in modes():
            raise SettingsError(f"unknown mode '{mode}': {', '.join(modes())}")
        self.cluster, self.mode, self.given_feedback = cluster, mode, feedback
        self.info = index if isinstance(index, IndexInfo) else resolve(cluster, index)
        self.windows = self.info.record.passages
        self.settings = with_tuning(settings or SearchSettings(), self.info, feedback=feedback)
        self.lexical_fields = self._lexical_fields()
        self.encoder = encoder
        if self._needs_readings:
            asked = index if isinstance(index, str) else index.name
            self.encoder = checked_encoder(cluster, self.info, asked, mode, encoder)
        self.feedback = feedback or self._usual_feedback()
        check_feedback(self.feedback, mode, self.info, self.settings)
        self.fusion = chosen_fusion(self.settings, self.info, self.feedback) if mode == HYBRID else None
        joining: type[Fusion] = member_of(FAMILY, self.fusion) if self.fusion else Alone
        self._joining = joining(self.settings, cluster.version)
        scaled = self.encoder if joining.needs_scales else None
        self.dense_scale = known_scale(scaled) if scaled else 1.0
        self.analysis = Analysis(cluster, self.info, self.lexical_fields)
        self.signals = self._signals()
        self.boosts = weighted_boosts(self.info, self.settings.boost) if joining.takes_boosts else {}
        self.template = self._template()
        self._scripts = Scripts(cluster, self.info.name) if joining.needs_scripts else None
        self._candidates = Candidates(cluster, self.info, self._legs())
        self._joiner = Joiner(self._candidates, self._joining, self._scripts)
        self._asking = self._asked_so()
        self.remarks = self._remarks()
        behind, named = Behind(cluster, self.info, self.settings), self.settings.rerank
        self._rerankers = rerankers_of(behind, () if named == "none" else (named,))

    def using(self, mode: Mode, *, feedback: Feedback | Literal["same"] | None = "same") -> Search:
        """Give the same search in another mode, or with another feedback."""
        chosen, settings = self.given_feedback, self.settings
        if feedback != "same":
            chosen, settings = feedback, settings.model_copy(update={"feedback": "none"})
        return Search(self.cluster, self.info, self.encoder, mode, chosen, settings=settings)

    def reranked(self, *names: str) -> Search:
        """Give the same search, whose best `depth` hits these re-rankers order anew, one after the other."""
        found = copy(self)
        found._rerankers = rerankers_of(Behind(self.cluster, self.info, self.settings), names)
        return found

    def __call__(
        self,
        text: str,
        k: int = 10,
        *,
        offset: int = 0,
        filter: dict[str, Any] | None = None,
        reading: Reading | None = None,
        explain: bool = False,
        boost: str | None = None,
    ) -> list[Hit]:
        """Give the best `k` documents with text, highlighted by `<em>`, and the raw score of each leg.

        The text of a document that the dense leg found by one of several passages is that passage. `offset`
        skips the best ones: a page. `filter` is a query that every document has to match. `reading` is the
        text as the encoder reads it, where that is there already. `explain` has hits tell what each part adds
        to their score. `boost` is a formula of boosts in place of the settings' own.
        """
        check_request(text, k + offset)
        self._joining.check_page(offset, k)
        readings = None if reading is None else [reading]
        [question] = self._questions([text], self.settings.depth, filter, readings)
        question = replace(question, shown=True, explained=explain, boosts=self._boosts(boost))
        page = range(offset, offset + k)
        if not self._rerankers:
            return self._hits(page, question)
        hits = self._hits(range(self._depth(page.stop)), question)
        best, rest = hits[: self.settings.depth], hits[self.settings.depth :]
        for one in self._rerankers:
            best = one.rescore(text, best)
        return (best + rest)[page.start : page.stop]

    def request(
        self, text: str, k: int = 10, *, offset: int = 0, filter: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Give the body that asks for this page through plain REST, to be extended by aggregations.

        Raises SettingsError where one request cannot rank so.
        """
        self._joining.check_page(offset, k)
        if offset and self._pieces(offset + k):
            raise SettingsError(
                f"hits {offset + 1} to {offset + k} are beyond the {self.settings.depth} candidates of each "
                "leg: one request does not join the pages before it",
                hint=f"--depth {offset + k} for all pages",
            )
        return self.body(text, k + offset, filter=filter) | {"size": k, "from": offset}

    def body(
        self,
        text: str,
        k: int = 10,
        *,
        filter: dict[str, Any] | None = None,
        reading: Reading | None = None,
        matched: Mapping[str, Any] | None = None,
        boost: str | None = None,
    ) -> dict[str, Any]:
        """Give the body that ranks the best `k`, by `query` and `rescore` where the fusion is absolute.

        `matched` is a client's own query for the text, filter included: what it matches is found in place of
        what matches the text, and scored as ever; `boost` takes the place of the settings' own. Raises
        SettingsError where one request cannot rank so.
        """
        if self._rerankers or not self._joining.one_request:
            ranks = "a re-ranker" if self._rerankers else f"the fusion '{self.fusion}'"
            raise SettingsError(f"{ranks} ranks here: there is no one request", hint="--fusion absolute")
        if self._scripts and (reason := self._scripts.refused()):
            raise SettingsError(reason, hint="--fusion pipeline")
        check_request(text, k)
        [question] = self._questions([text], self._depth(k), filter, None if reading is None else [reading])
        return self._joining.body(replace(question, matched=matched, boosts=self._boosts(boost)), k)

    def at_hand(self, text: str) -> bool:
        """Tell whether the body for a text takes no request: words are remembered, nothing else is due."""
        due = self._scripts is not None and self._scripts.due
        return not due and self.feedback is None and self.analysis.remembers(text)

    def knows(self, text: str) -> bool:
        """Tell whether any word of a text is in the index."""
        return self.analysis.of([text])[0].known

    def run(self, queries: Iterable[Query], k: int = 100) -> Run:
        """Rank the best `k` documents for each query: query id -> document id -> score."""
        queries = list(queries)
        ranked: Run = {}
        for start in range(0, len(queries), BATCH):
            batch = queries[start : start + BATCH]
            found = self._ranked([query.text for query in batch], k)
            ranked.update(zip([query.query_id for query in batch], found, strict=True))
        return ranked

    def legs(self, texts: Sequence[str]) -> list[Legs]:
        """Give what both legs say about each query: one retrieval per leg, and what each one missed."""
        return self._candidates.found(self._questions(texts, self.settings.depth))

    def scores(self, bodies: Sequence[dict[str, Any]]) -> list[dict[str, float]]:
        """Send several searches in one request: document id -> score, best first, of each."""
        return self._candidates.scores(bodies)

    def dense_leg(self, vector: Vectors, filter: dict[str, Any] | None = None) -> dict[str, Any]:
        """Build the query for the neighbours of a query vector `(dim,)` among what matches `filter`."""
        [kept] = as_kept(vector[None], self.info.record.vectors)
        return self._candidates.legs[DENSE].query(
            kept, self.settings.depth, filter=self.info.scope.both(filter)
        )

    def idf_sums(self, texts: Sequence[str]) -> list[float]:
        """Give how much the terms of each query weigh in the fields of the lexical leg."""
        return [self._asking.idf_sum(one) for one in self.analysis.of(texts)]

    def _hits(self, page: range, question: Question) -> list[Hit]:
        if not self._pieces(page.stop):
            return self._shown(page, replace(question, depth=self._depth(page.stop)), [])
        return [hit for piece in self._pieced(page, question) for hit in piece]

    def _pieces(self, stop: int) -> bool:
        """Tell whether a list of this length is put together of lists of several depths."""
        return self.mode != LEXICAL and self._joining.true_scores and stop > self.settings.depth

    def _pieced(self, page: range, question: Question) -> Iterator[list[Hit]]:
        """Give a page that reaches beyond the first `depth` hits.

        After them come the best of twice as many candidates that are not among them, and so on: which rank a
        document has does not depend on the page that shows it.
        """
        seen: list[str] = []
        depth = self.settings.depth
        while True:
            part, first = replace(question, depth=depth), len(seen)
            if page.start < depth:
                yield self._shown(range(max(page.start, first), min(page.stop, depth)), part, seen)
            if page.stop <= depth:
                return
            seen += self._joiner.best([replace(part, shown=False)], depth - first, seen)[0]
            if len(seen) < depth:
                return
            depth = min(2 * depth, MAX_NEIGHBOURS)

    def _shown(self, page: range, question: Question, seen: Sequence[str]) -> list[Hit]:
        """Ask for hits as people look at them; the first ranks are those of `seen`."""
        if not self._joiner.asks_once:
            return self._joined_here(page, replace(question, shown=False), seen)
        offset = page.start - len(seen)
        body = unseen(self._joining.body(question, offset + len(page)), seen)
        needed = self._shown_fields if self.windows else False  # a text may have megabytes
        body |= {"highlight": highlight(self.info, self._shown_fields, question.text), "_source": needed}
        body |= {"size": len(page), "from": offset}
        params = same_copies(question.text) | {"include_named_queries_score": "true"}
        answer = self.cluster.search(self.info, body, params)
        hits = self._candidates.with_passages(checked_hits(answer), question)
        return [self._hit(found, rank, question) for rank, found in enumerate(hits, page.start + 1)]

    def _hit(self, found: dict[str, Any], rank: int, question: Question) -> Hit:
        parts = self._joining.parts(question, named_scores(found)) if question.explained else None
        return hit_of(found, rank, parts, self._shown_fields)

    def _joined_here(self, page: range, question: Question, seen: Sequence[str]) -> list[Hit]:
        """Ask the legs, join them in this process, and look up the texts of the page."""
        [legs] = self._candidates.found([question])
        first = len(seen)
        scores = self._joiner.ranked(legs, range(page.start - first, page.stop - first), seen)
        texts = self._candidates.texts(list(scores), question, self._shown_fields)
        hits = []
        for rank, (doc, score) in enumerate(scores.items(), page.start + 1):
            told, (text, passage) = legs.told(doc), texts.get(doc, ("", None))
            parts = self._joining.parts(question, told) if question.explained else None
            hits.append(Hit(doc, score, rank, told.get(LEXICAL), told.get(DENSE), text, passage, parts))
        return hits

    def _ranked(self, texts: Sequence[str], k: int) -> list[dict[str, float]]:
        if self._rerankers:
            return [{hit.doc_id: 1 / hit.rank for hit in self(text, k)} for text in texts]
        return self._joiner.best(self._questions(texts, self._depth(k)), k)

    def _questions(
        self,
        texts: Sequence[str],
        depth: int,
        filter: dict[str, Any] | None = None,
        readings: Sequence[Reading] | None = None,
    ) -> list[Question]:
        filter = self.template.within(filter) if self.template else filter
        questions = self._asking.questions(texts, depth, readings, filter)
        return [replace(one, boosts=self.boosts) for one in questions]

    def _remarks(self) -> list[str]:
        """Say what ranks otherwise than the settings would have it."""
        if self.mode != HYBRID and self.settings.boost:
            return [f"the boost is left out: mode {self.mode} ranks by one leg"]
        if not (self._scripts and (refused := self._scripts.refused())):
            return []
        lost = [name for name, signal in self.signals.members.items() if signal.needs_scripts]
        return [f"ranked in several requests{' without ' * bool(lost)}{', '.join(lost)}: {refused}"]

    def _boosts(self, formula: str | None) -> Mapping[str, Weighted]:
        """Give what a formula adds; None: that of the settings."""
        if formula is None:
            return self.boosts
        if formula and not self._joining.takes_boosts:
            ranks = f"the fusion '{self.fusion}'" if self.fusion else f"mode {self.mode}"
            raise SettingsError(f"{ranks} adds no boosts", hint="leave the boost out")
        return weighted_boosts(self.info, formula)

    def _asked_so(self) -> Asking:
        """Say how texts become questions."""
        terms = TermFeedback(self.cluster, self.info, self.lexical_fields) if self.feedback == "rm3" else None
        first = self._first_search() if self.feedback == "rocchio" else None
        return Asking(
            self.info,
            self._candidates.legs,
            self._joiner,
            self.analysis,
            self.signals,
            encoder=self.encoder if self._needs_readings else None,
            dense_scale=self.dense_scale,
            expanded=terms,
            moved=TowardBest(self.cluster, first._asking, first.settings.depth) if first else None,
        )

    def _first_search(self) -> Search:
        """Give the hybrid search that feedback looks at: of a fusion that asks once, whatever comes after."""
        plain: dict[str, Any] = {"feedback": "none", "boost": "", "rerank": "none"}
        if self.fusion and not self._joining.one_request:
            plain["fusion"] = "auto"
        settings = self.settings.model_copy(update=plain)
        return Search(self.cluster, self.info, self.encoder, settings=settings)

    def _legs(self) -> dict[str, Leg]:
        made = {leg.name: leg.of(self.info.record, self.lexical_fields) for leg in legs_of(self.mode)}
        dense, lexical = made.get(DENSE), made.get(LEXICAL)
        if isinstance(lexical, LexicalLeg):
            made[LEXICAL] = replace(lexical, template=self.template)
        if self.mode == DENSE and self.settings.exact and isinstance(dense, DenseLeg):
            made[DENSE] = replace(dense, exact=True)
        return made

    def _template(self) -> Template | None:
        cluster = None if self.mode == DENSE else self.cluster
        return read_template(self.settings.query_template, self.info, self.lexical_fields, cluster)

    def _signals(self) -> SignalSet:
        if self.encoder is None or not self._joining.takes_signals:
            return SignalSet({}, {})
        place = Place(self.cluster, self.info, self.lexical_fields, self.encoder)
        return signals_taken(place, self.settings.signals)

    def _depth(self, k: int) -> int:
        return max(self.settings.depth, k)

    def _usual_feedback(self) -> Feedback | None:
        usual = self.settings.feedback
        return usual if self.mode == HYBRID and usual != "none" else None

    def _lexical_fields(self) -> tuple[str, ...]:
        given = self.settings.lexical_fields or self.info.record.lexical_fields
        return given or choose_text_fields(self.cluster, self.info)

    @property
    def _needs_readings(self) -> bool:
        return any(leg.reads == "vector" for leg in legs_of(self.mode))

    @property
    def _shown_fields(self) -> list[str]:
        return list(self.info.record.fields or self.lexical_fields)
