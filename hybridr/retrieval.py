"""Search: text in, ranked hits out, in mode lexical, dense or hybrid."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any, Literal, get_args

import numpy as np

from .bodies import (
    MAX_NEIGHBOURS,
    dense_query,
    dense_scores_query,
    highlight,
    hybrid_query,
    lexical_query,
    search_pipeline,
)
from .cluster import Cluster
from .destinations import command_for, is_destination, resolve
from .encoder import Encoder
from .errors import ClusterError, DataError, SettingsError
from .expansion import TermFeedback
from .inspection import choose_text_fields
from .known_encoders import check_fingerprint
from .languages import says_something
from .passages import Span, windows_of
from .reading import text_of
from .records import Hit, Query, Run
from .settings import SearchSettings
from .vectors import as_kept, kept_as

Mode = Literal["hybrid", "lexical", "dense"]
LEXICAL, DENSE = "lexical", "dense"
BATCH = 32
INNER_HITS_IN_HYBRID = (3, 0, 0)  # 2.19 leaves them out of the answer without a word


class Search:
    """Rank the documents of an index; one object serves any number of queries.

    `index` may be the source, the alias or the destination of a reindex. Raises NotFound for a missing
    index, DataError when the mode needs vectors and there are none, FingerprintMismatch when the encoder
    is not the one that wrote them. `feedback="rm3"` expands the lexical leg by the words of its best
    documents.
    """

    def __init__(
        self,
        cluster: Cluster,
        index: str,
        encoder: Encoder | None = None,
        mode: Mode = "hybrid",
        feedback: Literal["rm3"] | None = None,
        *,
        settings: SearchSettings | None = None,
    ) -> None:
        if mode not in get_args(Mode):
            raise SettingsError(f"unknown mode '{mode}': {', '.join(get_args(Mode))}")
        self.cluster = cluster
        self.info = resolve(cluster, index)
        self.windows = windows_of(self.info.meta)
        self.mode = mode
        self.encoder = encoder
        self.settings = settings or SearchSettings()
        self.lexical_fields = self._lexical_fields()
        if mode != LEXICAL:
            self._check_vectors(index)
        self.feedback = feedback
        if feedback not in (None, "rm3"):
            raise SettingsError(f"unknown feedback '{feedback}': rm3")
        self.pipeline = search_pipeline(self.settings, cluster.version) if mode == "hybrid" else None

    def using(self, mode: Mode) -> Search:
        """Give the same search in another mode."""
        return Search(self.cluster, self.info.name, self.encoder, mode, self.feedback, settings=self.settings)

    def __call__(self, text: str, k: int = 10) -> list[Hit]:
        """Give the best `k` documents with text, highlighted by `<em>`, and the raw score of each leg.

        The text of a document that the dense leg found by one of several passages is that passage.
        """
        check_request(text, k)
        vectors = self._vectors([text])
        body = self._bodies([text], vectors, k, inner_hits=True)[0]
        body |= {"highlight": highlight(self._shown_fields(), text), "_source": self._shown_fields()}
        answer = self.cluster.search(self.info.name, body, {"include_named_queries_score": "true"})
        hits = self._with_passages(checked(answer), vectors[0])
        return [self._hit(found, rank) for rank, found in enumerate(hits, 1)]

    def run(self, queries: Iterable[Query], k: int = 100) -> Run:
        """Rank the best `k` documents for each query: query id -> document id -> score."""
        queries = list(queries)
        ranked: Run = {}
        for start in range(0, len(queries), BATCH):
            batch = queries[start : start + BATCH]
            texts = [query.text for query in batch]
            bodies = [body | {"_source": False} for body in self._bodies(texts, self._vectors(texts), k)]
            for query, answer in zip(batch, self.cluster.msearch(self.info.name, bodies), strict=True):
                ranked[query.query_id] = {hit["_id"]: hit["_score"] for hit in checked(answer)}
        return ranked

    def dense_leg(self, vector: np.ndarray, filter: dict[str, Any] | None = None) -> dict[str, Any]:
        """Build the query for the neighbours of a query vector `(dim,)` among what matches `filter`."""
        [kept] = as_kept(vector[None], kept_as(self.info.meta))
        return dense_query(
            kept.tolist(), self.info.meta["vector_field"], self.settings.depth,
            passages=self.windows is not None, filter=filter,
        )  # fmt: skip

    @cached_property
    def _term_feedback(self) -> TermFeedback:
        return TermFeedback(self.cluster, self.info.name, self.lexical_fields)

    def _lexical_fields(self) -> tuple[str, ...]:
        recorded = tuple(self.info.meta.get("lexical_fields", ()))
        return (
            self.settings.lexical_fields or recorded or choose_text_fields(self.cluster, self.info.name, ())
        )

    def _shown_fields(self) -> list[str]:
        return list(self.info.meta.get("fields", self.lexical_fields))

    def _check_vectors(self, index: str) -> None:
        if not is_destination(self.info):
            raise DataError(
                f"'{index}' has no vectors for {self.mode} search",
                hint=f"hybridr reindex {index}   writes them, or use --mode lexical",
            )
        if self.info.meta.get("state") != "complete":
            raise DataError(
                f"the vectors of '{index}' are not complete", hint=f"{command_for(self.info)}   goes on"
            )
        if self.encoder is None:
            raise SettingsError(f"{self.mode} search needs an encoder", hint="--encoder FOLDER")
        check_fingerprint(self.encoder, self.info)

    def _vectors(self, texts: Sequence[str]) -> Sequence[np.ndarray | None]:
        if self.mode == LEXICAL or self.encoder is None:
            return [None] * len(texts)
        return list(as_kept(self.encoder.encode_queries(list(texts)), kept_as(self.info.meta)))

    def _bodies(
        self, texts: list[str], vectors: Sequence[np.ndarray | None], k: int, *, inner_hits: bool = False
    ) -> list[dict[str, Any]]:
        legs = self._lexical_legs(texts) if self.mode != DENSE else [{}] * len(texts)
        return [self._body(leg, vector, k, inner_hits) for leg, vector in zip(legs, vectors, strict=True)]

    def _lexical_legs(self, texts: list[str]) -> list[dict[str, Any]]:
        if self.feedback is None:
            return [lexical_query(text, self.lexical_fields, LEXICAL) for text in texts]
        expanded = self._term_feedback.queries(texts)
        return [{"bool": {"must": [query], "_name": LEXICAL}} for query in expanded]

    def _nearest(self, vector: np.ndarray, k: int, *, inner_hits: bool = False) -> dict[str, Any]:
        return dense_query(
            vector.tolist(), self.info.meta["vector_field"], k, DENSE,
            passages=self.windows is not None, inner_hits="passages" if inner_hits else None,
        )  # fmt: skip

    def _body(
        self, lexical: dict[str, Any], vector: np.ndarray | None, k: int, inner_hits: bool
    ) -> dict[str, Any]:
        if vector is None:
            return {"size": k, "query": lexical}
        depth = max(self.settings.depth, k)
        dense = self._nearest(vector, depth, inner_hits=inner_hits)
        if self.mode == DENSE:
            return {"size": k, "query": dense}
        return {"size": k, "query": hybrid_query([lexical, dense], depth), "search_pipeline": self.pipeline}

    def _dense_scores(
        self, vector: np.ndarray, doc_ids: Sequence[str], *, inner_hits: bool = False
    ) -> dict[str, Any]:
        """Ask for the true dense scores of these documents."""
        most = self.windows.most if self.windows else None
        query = dense_scores_query(
            vector.tolist(),
            self.info.meta["vector_field"],
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

    def _hit(self, found: dict[str, Any], rank: int) -> Hit:
        scores = found.get("matched_queries", {})
        text, passage = self._text(found)
        return Hit(
            found["_id"], found["_score"] or 0.0, rank, scores.get(LEXICAL), scores.get(DENSE), text, passage
        )

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


def best_passage(inner_hits: dict[str, Any]) -> Span | None:
    """Read where the best passage begins and ends from the inner hits of a document."""
    inner = [hit for found in inner_hits.values() for hit in found["hits"]["hits"]]
    best = max(inner, key=lambda hit: hit["_score"], default=None)
    return (best["_source"]["start"], best["_source"]["end"]) if best else None


def checked(answer: dict[str, Any]) -> list[dict[str, Any]]:
    """Give the hits; negative scores are the raw markers of a hybrid query that no pipeline combined.

    Raises ClusterError for them, for a time-out and for shards that failed.
    """
    hits: list[dict[str, Any]] = answer["hits"]["hits"]
    if answer.get("timed_out") or answer.get("_shards", {}).get("failed"):
        raise ClusterError("some shards did not answer the search", hint="GET _cat/shards?v")
    if any(hit["_score"] is not None and hit["_score"] < 0 for hit in hits):
        raise ClusterError(
            "the cluster returned raw hybrid scores: no search pipeline combined them",
            hint="is the plugin opensearch-neural-search on every node? hybridr doctor",
        )
    return hits
