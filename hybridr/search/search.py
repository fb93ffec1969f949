"""Search: text in, ranked hits out, in mode lexical, dense or hybrid."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any, Literal, get_args

import numpy as np

from ..cluster.connection import Cluster
from ..cluster.destinations import check_fingerprint, command_for, is_destination, resolve
from ..cluster.fields import choose_text_fields
from ..cluster.legs.dense import (
    MAX_NEIGHBOURS,
    as_kept,
    as_numbers,
    dense_query,
    dense_scores_query,
    exact_query,
)
from ..cluster.legs.lexical import highlight, lexical_leg, lexical_query
from ..cluster.reading import text_of
from ..encoding.contract import Encoder
from ..encoding.passages import Span
from ..errors import DataError, SettingsError
from ..languages import says_something
from ..records import Hit, Query, Run
from .feedback import ROCCHIO_DOCUMENTS, TermFeedback, rocchio
from .fusions.absolute import (
    LARGEST_WINDOW,
    WINDOW,
    absolute_obstacle,
    absolute_query,
    absolute_weights,
    dense_scale,
    dense_script,
    true_dense_score,
)
from .fusions.pipeline import hybrid_query, search_pipeline
from .hits import best_passage, checked
from .settings import NAMES_A_PIPELINE, SearchSettings, mapped, with_tuning
from .terms import IdfSums

Mode = Literal["hybrid", "lexical", "dense"]
Feedback = Literal["rm3", "rocchio"]
LEXICAL, DENSE = "lexical", "dense"
ABSOLUTE, PIPELINE = "absolute", "pipeline"
BATCH = 32
INNER_HITS_IN_HYBRID = (3, 0, 0)  # 2.19 leaves them out of the answer without a word


class Search:
    """Rank the documents of an index; one object serves any number of queries.

    `index` may be the source, the alias or the destination of a reindex. Raises NotFound for a missing
    index, DataError when the mode needs vectors and there are none, FingerprintMismatch when the encoder
    is not the one that wrote them. `feedback="rm3"` expands the lexical leg by the words of its best
    documents, "rocchio" moves the query vector toward the best of a hybrid search. `fusion` says how a hybrid
    search joins its legs: "absolute" or "pipeline".
    """

    def __init__(
        self,
        cluster: Cluster,
        index: str,
        encoder: Encoder | None = None,
        mode: Mode = "hybrid",
        feedback: Feedback | None = None,
        *,
        settings: SearchSettings | None = None,
    ) -> None:
        if mode not in get_args(Mode):
            raise SettingsError(f"unknown mode '{mode}': {', '.join(get_args(Mode))}")
        self.cluster = cluster
        self.info = resolve(cluster, index)
        self.windows = self.info.record.passages
        self.mode = mode
        self.encoder = encoder
        self.settings = with_tuning(settings or SearchSettings(), self.info, feedback=feedback)
        self.lexical_fields = self._lexical_fields()
        if mode != LEXICAL:
            self.encoder = self._checked_encoder(index)
        self.given_feedback = feedback
        self.feedback = feedback or self._usual_feedback()
        self._check_feedback()
        self.fusion = self._fusion()
        self.pipeline = search_pipeline(self.settings, cluster.version) if self.fusion == PIPELINE else None
        self.dense_scale = (
            dense_scale(self.encoder) if self.fusion == ABSOLUTE and self.encoder is not None else 1.0
        )
        self.query_terms = IdfSums(cluster, self.info.name, self.lexical_fields)
        self._first = self.using("hybrid", feedback=None) if self.feedback == "rocchio" else None

    def using(self, mode: Mode, *, feedback: Feedback | Literal["same"] | None = "same") -> Search:
        """Give the same search in another mode, or with another feedback."""
        chosen, settings = self.given_feedback, self.settings
        if feedback != "same":
            chosen, settings = feedback, settings.model_copy(update={"feedback": "none"})
        return Search(self.cluster, self.info.name, self.encoder, mode, chosen, settings=settings)

    def __call__(
        self, text: str, k: int = 10, *, offset: int = 0, filter: dict[str, Any] | None = None
    ) -> list[Hit]:
        """Give the best `k` documents with text, highlighted by `<em>`, and the raw score of each leg.

        The text of a document that the dense leg found by one of several passages is that passage. `offset`
        skips the best ones: a page. `filter` is a query that every document has to match.
        """
        self._check_page(text, k, offset)
        vectors = self._vectors([text])
        body = self._bodies([text], vectors, k + offset, filter, shown=True)[0]
        body |= {"highlight": highlight(self._shown_fields(), text), "_source": self._shown_fields()}
        body |= {"size": k, "from": offset}
        answer = self.cluster.search(self.info.name, body, {"include_named_queries_score": "true"})
        hits = self._with_passages(checked(answer), vectors[0])
        return [self._hit(found, rank, body) for rank, found in enumerate(hits, offset + 1)]

    def request(
        self, text: str, k: int = 10, *, offset: int = 0, filter: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Give the body that asks for this page through plain REST, to be extended by aggregations."""
        self._check_page(text, k, offset)
        vectors = self._vectors([text])
        return self._bodies([text], vectors, k + offset, filter)[0] | {"size": k, "from": offset}

    def run(self, queries: Iterable[Query], k: int = 100) -> Run:
        """Rank the best `k` documents for each query: query id -> document id -> score."""
        queries = list(queries)
        ranked: Run = {}
        for start in range(0, len(queries), BATCH):
            batch = queries[start : start + BATCH]
            texts = [query.text for query in batch]
            found = self.scores(self._bodies(texts, self._vectors(texts), k))
            ranked.update(zip([query.query_id for query in batch], found, strict=True))
        return ranked

    def scores(self, bodies: Sequence[dict[str, Any]]) -> list[dict[str, float]]:
        """Send several searches in one request: document id -> score, best first, of each."""
        answers = self.cluster.msearch(self.info.name, [body | {"_source": False} for body in bodies])
        return [{hit["_id"]: hit["_score"] for hit in checked(answer)} for answer in answers]

    def dense_leg(self, vector: np.ndarray, filter: dict[str, Any] | None = None) -> dict[str, Any]:
        """Build the query for the neighbours of a query vector `(dim,)` among what matches `filter`."""
        [kept] = as_kept(vector[None], self.info.record.vectors)
        return dense_query(
            as_numbers(kept),
            self.info.record.vector_field,
            self.settings.depth,
            passages=self.windows is not None,
            filter=filter,
        )

    @cached_property
    def _term_feedback(self) -> TermFeedback:
        return TermFeedback(self.cluster, self.info.name, self.lexical_fields)

    def _usual_feedback(self) -> Feedback | None:
        usual = self.settings.feedback
        return usual if self.mode == "hybrid" and usual != "none" else None

    def _fusion(self) -> str | None:
        """Choose how the legs are joined: None where there is only one."""
        if self.mode != "hybrid":
            return None
        obstacle = absolute_obstacle(self.info, self.feedback)
        if self.settings.fusion == ABSOLUTE and obstacle:
            raise SettingsError(f"the absolute fusion needs one cosine a document: {obstacle}")
        if self.settings.fusion == "auto":
            named = self.settings.model_fields_set & NAMES_A_PIPELINE
            return PIPELINE if obstacle or named else ABSOLUTE
        return self.settings.fusion

    def _check_feedback(self) -> None:
        if self.feedback not in (None, *get_args(Feedback)):
            raise SettingsError(f"unknown feedback '{self.feedback}': {', '.join(get_args(Feedback))}")
        if self.feedback == "rocchio" and self.mode == LEXICAL:
            raise SettingsError(
                "rocchio moves a query vector, lexical search has none", hint="--feedback rm3"
            )
        if self.windows is not None and (self.feedback == "rocchio" or self.settings.exact):
            raise SettingsError("rocchio and exact need one vector a document: this index has passages")

    def _check_page(self, text: str, k: int, offset: int) -> None:
        check_request(text, k + offset)
        if self.fusion == PIPELINE and offset and offset + k > self.settings.depth:
            raise SettingsError(
                f"hits {offset + 1} to {offset + k} are beyond the {self.settings.depth} candidates that are "
                "normalised together: with more of them every score would change",
                hint=f"--depth {offset + k} for all pages",
            )

    def _lexical_fields(self) -> tuple[str, ...]:
        recorded = self.info.record.lexical_fields
        return (
            self.settings.lexical_fields or recorded or choose_text_fields(self.cluster, self.info.name, ())
        )

    def _shown_fields(self) -> list[str]:
        return list(self.info.record.fields or self.lexical_fields)

    def _checked_encoder(self, index: str) -> Encoder:
        if not is_destination(self.info):
            raise DataError(
                f"'{index}' has no vectors for {self.mode} search",
                hint=f"hybridr reindex {index}   writes them, or use --mode lexical",
            )
        if self.info.record.state != "complete":
            raise DataError(
                f"the vectors of '{index}' are not complete", hint=f"{command_for(self.info)}   goes on"
            )
        if self.encoder is None:
            raise SettingsError(f"{self.mode} search needs an encoder", hint="--encoder FOLDER")
        check_fingerprint(self.encoder.fingerprint, self.info)
        return mapped(self.encoder, self.info, self.settings)

    def _vectors(self, texts: Sequence[str]) -> Sequence[np.ndarray | None]:
        if self.mode == LEXICAL or self.encoder is None:
            return [None] * len(texts)
        vectors = self.encoder.encode_queries(list(texts))
        if self.feedback == "rocchio":
            vectors = self._moved(list(texts), vectors)
        return list(as_kept(vectors, self.info.record.vectors))

    def _moved(self, texts: list[str], vectors: np.ndarray) -> np.ndarray:
        """Move query vectors `(n, dim)` toward the best documents of a hybrid search."""
        field = self.info.record.vector_field
        first = self._first
        assert first is not None
        asked = list(as_kept(vectors, self.info.record.vectors))
        bodies = [body | {"_source": [field]} for body in first._bodies(texts, asked, ROCCHIO_DOCUMENTS)]
        found = [checked(answer) for answer in self.cluster.msearch(self.info.name, bodies)]
        best = [[hit["_source"][field] for hit in hits if field in hit["_source"]] for hits in found]
        return np.stack([rocchio(*pair) for pair in zip(vectors, best, strict=True)])

    def _bodies(
        self,
        texts: list[str],
        vectors: Sequence[np.ndarray | None],
        k: int,
        filter: dict[str, Any] | None = None,
        *,
        shown: bool = False,
    ) -> list[dict[str, Any]]:
        """Build a body for each text; `shown` asks for the scores of the legs and the best passages too.

        The server runs a named query once more to tell its scores: nothing is named where nobody looks.
        """
        queries = self._lexical_queries(texts) if self.mode != DENSE else [{}] * len(texts)
        sums = self.idf_sums(texts) if self.fusion == ABSOLUTE else [0.0] * len(texts)
        return [
            self._body(query, vector, k, filter, idf_sum, shown)
            for query, vector, idf_sum in zip(queries, vectors, sums, strict=True)
        ]

    def _lexical_queries(self, texts: list[str]) -> list[dict[str, Any]]:
        if self.feedback != "rm3":
            return [lexical_query(text, self.lexical_fields) for text in texts]
        return self._term_feedback.queries(texts)

    def _nearest(
        self,
        vector: np.ndarray,
        k: int,
        filter: dict[str, Any] | None = None,
        *,
        shown: bool = False,
        boost: float | None = None,
    ) -> dict[str, Any]:
        return dense_query(
            as_numbers(vector),
            self.info.record.vector_field,
            k,
            DENSE if shown else None,
            passages=self.windows is not None,
            inner_hits="passages" if shown else None,
            filter=filter,
            boost=boost,
        )

    def _body(
        self,
        query: dict[str, Any],
        vector: np.ndarray | None,
        k: int,
        filter: dict[str, Any] | None,
        idf_sum: float,
        shown: bool,
    ) -> dict[str, Any]:
        leg = lexical_leg(query, LEXICAL if shown else None, filter)
        if vector is None:
            return {"size": k, "query": leg}
        depth = max(self.settings.depth, k)
        if self.fusion == ABSOLUTE:
            return {"size": k, **self._absolute(query, leg, vector, depth, filter, idf_sum)}
        if self.mode == DENSE and self.settings.exact:
            record = self.info.record
            name = DENSE if shown else None
            exact = exact_query(as_numbers(vector), record.vector_field, record.similarity, name, filter)
            return {"size": k, "query": exact}
        dense = self._nearest(vector, depth, filter, shown=shown)
        if self.mode == DENSE:
            return {"size": k, "query": dense}
        return {"size": k, "query": hybrid_query([leg, dense], depth), "search_pipeline": self.pipeline}

    def _absolute(
        self,
        query: dict[str, Any],
        leg: dict[str, Any],
        vector: np.ndarray,
        depth: int,
        filter: dict[str, Any] | None,
        idf_sum: float,
    ) -> dict[str, Any]:
        weights = self.weights(idf_sum)
        return absolute_query(
            query,
            leg,
            lambda boost: self._nearest(vector, depth, filter, boost=boost),
            dense_script(as_numbers(vector), self.info.record.vector_field, weights),
            weights,
            min(WINDOW * depth, LARGEST_WINDOW),
        )

    def idf_sums(self, texts: Sequence[str]) -> list[float]:
        """Give how much the terms of each query weigh in the fields of the lexical leg."""
        return [len(self.lexical_fields) * one for one in self.query_terms.of(texts)]

    def weights(self, idf_sum: float) -> tuple[float, float]:
        """Give what the absolute fusion multiplies BM25 and the engine's cosine score (0 to 1) by."""
        return absolute_weights(self.settings.dense_weight, idf_sum, self.dense_scale)

    def _dense_scores(
        self, vector: np.ndarray, doc_ids: Sequence[str], *, inner_hits: bool = False
    ) -> dict[str, Any]:
        """Ask for the true dense scores of these documents."""
        most = self.windows.most if self.windows else None
        query = dense_scores_query(
            as_numbers(vector),
            self.info.record.vector_field,
            doc_ids,
            most_passages=most,
            inner_hits=inner_hits,
        )
        return {"size": len(doc_ids), "query": query, "_source": False}

    def _with_passages(self, hits: list[dict[str, Any]], vector: np.ndarray | None) -> list[dict[str, Any]]:
        """Ask for the best passages of dense hits where the answer of a hybrid search lacks them."""
        supported = self.mode != "hybrid" or self.cluster.version >= INNER_HITS_IN_HYBRID
        if self.windows is None or vector is None or supported:
            return hits
        doc_ids = [hit["_id"] for hit in hits if DENSE in hit.get("matched_queries", {})]
        inner = self._best_passages(vector, doc_ids)
        return [hit | {"inner_hits": inner.get(hit["_id"], {})} for hit in hits]

    def _best_passages(self, vector: np.ndarray, doc_ids: Sequence[str]) -> dict[str, Any]:
        if not doc_ids:
            return {}
        body = self._dense_scores(vector, doc_ids, inner_hits=True)
        return {hit["_id"]: hit["inner_hits"] for hit in checked(self.cluster.search(self.info.name, body))}

    def _hit(self, found: dict[str, Any], rank: int, body: dict[str, Any]) -> Hit:
        scores = found.get("matched_queries", {})
        text, passage = self._text(found)
        lexical, dense, score = scores.get(LEXICAL), scores.get(DENSE), found["_score"] or 0.0
        if self.fusion == ABSOLUTE:
            dense = true_dense_score(score, lexical, body)
        return Hit(found["_id"], score, rank, lexical, dense, text, passage)

    def _text(self, found: dict[str, Any]) -> tuple[str, Span | None]:
        """Choose what to show: the best of several passages, and where it stands, or marked fragments."""
        whole = text_of(found.get("_source", {}), self._shown_fields())
        span = best_passage(found.get("inner_hits", {}))
        # A text that a client has changed since may be shorter than its passages were.
        if span and span != (0, len(whole)) and whole[slice(*span)]:
            return whole[slice(*span)], span
        marked = found.get("highlight", {})
        return " … ".join(part for field in self._shown_fields() for part in marked.get(field, ())), None


def check_request(text: str, k: int) -> None:
    """Raise DataError for a query without a visible character, SettingsError for a `k` out of range."""
    if not says_something(text):
        raise DataError("the query is empty", hint="a query needs at least one visible character")
    if not 1 <= k <= MAX_NEIGHBOURS:
        raise SettingsError(f"k is 1 to {MAX_NEIGHBOURS:,}, got {k:,}")
