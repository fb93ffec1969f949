"""Fusions: how the candidates of several retrievers become one ranking, one file each."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate, chain
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple, Protocol, TypeAlias

import orjson

from ...cluster.retrievers import Retriever
from ..clauses import RANKED
from ..scripts import Scripts
from ..settings import SearchSettings

FAMILY = "search.fusions"
LARGEST_WINDOW = 10_000  # hits of a shard that are rescored, if the index allows so many
MAX_CLAUSES = 1_000  # of a query, if the cluster allows its usual 1,024
SPARE_CLAUSES = 24  # kept free for filters and other parts around a query
CLIENT_SHARE = 0.4
"""Share of a client's own query in the score of words. The plain query has the rest, because a title boosted
five times drowns everything else (chosen on four collections, confirmed on four; benchmarks/README.md)."""
BEYOND = 1e-12
"""Weight of the finding scores. It is too small to matter for rescored hits. Hits beyond the window keep the
order in which they were found, on every page."""
PINNED = 1e9
"""Distance of a pinned document's score from the next one; no boost is as large."""
Scores: TypeAlias = Mapping[str, float]
"""Document id -> score, best first."""


class Scales(NamedTuple):
    """Factors that bring scores to one scale: the idf sum of a query's terms, and the encoder's factor
    (`dense`).

    `unrelated` is the scaled 1 + cosine of a document unrelated to the query. Word scores are divided by the
    root of the idf sum, which includes the square of the index's `gain` over plain BM25. `by_retriever` has
    the factors of retrievers that know the spread of their scores.
    """

    idf_sum: float = 0.0
    dense: float = 1.0
    unrelated: float = 1.3
    gain: float = 1.0
    by_retriever: Mapping[str, float] = MappingProxyType({})

    def of(self, idf_sum: float) -> Scales:
        """Return the scales of a query with this idf sum of its terms."""
        return self._replace(idf_sum=self.gain**2 * idf_sum)


class Weighted(NamedTuple):
    """Queries whose scores add up to a signal, and the signal's weight beside a dense weight of .5.

    `scripted` says that the queries run a script.
    """

    weight: float
    clauses: Sequence[dict[str, Any]]
    scripted: bool = False


class PartWeights(NamedTuple):
    """Factors by which the true scores of retrievers, and the signals, are multiplied, by name."""

    retrievers: Mapping[str, float]
    signals: Mapping[str, float]


NO_SCORES: Mapping[str, tuple[float, Scores]] = MappingProxyType({})


def leaf_clause_count(query: Mapping[str, Any] | list[Any]) -> int:
    """Return the number of clauses of a query that contain no further clause; each of `terms` counts as one.

    Lists of numbers, such as the parameters of a script, have none. A query with soft terms has hundreds of
    parts, so this code is written for speed.
    """
    if isinstance(query, list):
        return sum([leaf_clause_count(part) for part in query if isinstance(part, (dict, list))])
    if "terms" in query:
        return sum([len(terms) for terms in query["terms"].values() if isinstance(terms, list)]) or 1
    if "dis_max" in query:
        return sum(map(leaf_clause_count, query["dis_max"]["queries"]))
    values = [value for value in query.values() if isinstance(value, (dict, list))]
    return sum(map(leaf_clause_count, values)) if values else 1


def cut_to_budget(signals: Mapping[str, Weighted], budget: int) -> dict[str, Weighted]:
    """Return the signals with at most `budget` leaf clauses in all.

    Signals are served in their order, each with its first clauses, which must be the heaviest. A signal that
    loses all its clauses is dropped, and its weight goes to the words; one that never had a clause stays.
    """
    clauses = [part.clauses for part in signals.values()]
    # Every leaf clause of a signal has a quoted name or value, and quotes are faster to count than clauses.
    quotes = orjson.dumps(clauses, option=orjson.OPT_SERIALIZE_NUMPY).count(b'"')
    if quotes <= 2 * budget:
        return dict(signals)
    weighted: dict[str, Weighted] = {}
    for name, part in signals.items():
        totals = list(accumulate(map(leaf_clause_count, part.clauses)))
        count = bisect_right(totals, budget)
        if count or not totals:
            weighted[name] = part._replace(clauses=part.clauses[:count])
        if count:
            budget -= totals[count - 1]
    return weighted


def scaled_query(query: Mapping[str, Any], factor: float) -> dict[str, Any]:
    """Return a query with its scores multiplied by a factor."""
    return dict(query) if factor == 1 else {"bool": {"must": [query], "boost": factor}}


def filtered_query(query: Mapping[str, Any], filter: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return a query restricted by a filter, with unchanged scores."""
    return {"bool": {"must": [query], "filter": [filter]}} if filter else dict(query)


def sum_query(queries: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return a query whose score is the sum of the queries' scores; without queries it matches nothing."""
    if len(queries) == 1:
        return queries[0]
    return {"bool": {"should": list(queries)}} if queries else {"match_none": {}}


class SplitQuery(NamedTuple):
    """A client's own query in two parts: one finds candidates, one scores their words.

    `word_query` is scaled to the plain query; it is None if it equals the plain query. A `finding_scale`
    above 0 says that the client's unscaled query scores words too: its scores are divided by that number, and
    `word_query` is not sent. `leaf_clauses` bounds the clauses that this adds to the scoring query.
    `wrappers` are queries that change the score of the text, innermost first, each with the name of the part
    where the text stands; they expect scores `scale` times those of the plain query. With `only_words_find`,
    no vector finds candidates.
    """

    finding_query: Mapping[str, Any]
    word_query: Mapping[str, Any] | None = None
    leaf_clauses: int = 0
    finding_scale: float = 0.0
    wrappers: tuple[tuple[str, Mapping[str, Any]], ...] = ()
    scale: float = 1.0
    only_words_find: bool = False


@dataclass(frozen=True)
class CompiledQuery:
    """A query with everything that ranks it: for each retriever the `values` it searches by (a text, a query,
    or a vector `(dim,)`), and the fusion.

    Each retriever gives `depth` candidates that match `filter`. `signals` are further parts of the score, by
    name; `boosts` are scores from fields, added unscaled. `client_query` is a client's own query, which finds
    candidates instead of the retrievers that read texts; `finding_share` of its score counts as the score of
    the words; `wrappers` and `client_scale` belong to it too. `display` requests highlights and the scores of
    retrievers, `explained` the score of each signal (named queries cost a second run on the server). The
    words of `text`, which the user typed, become `leaf_clauses` clauses. With `only_words_find`, documents
    that only a vector finds are left out. The index rescores at most `window` hits of a shard, and the
    cluster allows `max_clauses` in a query.
    """

    fusion: Fusion
    retrievers: Mapping[str, Retriever]
    values: Mapping[str, Any]
    depth: int
    filter: dict[str, Any] | None = None
    display: bool = False
    scales: Scales = Scales()
    signals: Mapping[str, Weighted] = field(default_factory=dict)
    boosts: Mapping[str, Weighted] = field(default_factory=dict)
    explained: bool = False
    text: str = ""
    leaf_clauses: int = 0
    client_query: Mapping[str, Any] | None = None
    finding_share: float = 0.0
    wrappers: tuple[tuple[str, Mapping[str, Any]], ...] = ()
    client_scale: float = 1.0
    only_words_find: bool = False
    window: int = LARGEST_WINDOW
    max_clauses: int = MAX_CLAUSES

    @property
    def finding_retrievers(self) -> list[str]:
        """Return the names of the retrievers that find candidates; the others only score them."""
        return [
            name
            for name, retriever in self.retrievers.items()
            if retriever.of_words or not self.only_words_find
        ]

    @cached_property
    def weights(self) -> PartWeights:
        """Return the weight of each part of the score, for a fusion that adds them."""
        return self.fusion.weights(self)

    def with_client_query(self, split_query: SplitQuery) -> CompiledQuery:
        """Return this query extended by a client's own query, which finds candidates instead of the text and
        shares the scoring of words with it.

        If both exceed the clauses that the cluster allows, only the client's query scores words. Signals get
        the remaining clauses.
        """
        budget = self.max_clauses - split_query.leaf_clauses - self.leaf_clauses
        query = replace(
            self,
            client_query=split_query.finding_query,
            wrappers=split_query.wrappers,
            client_scale=split_query.scale,
            only_words_find=self.only_words_find or split_query.only_words_find,
        )
        if split_query.word_query is None:
            return replace(query, signals=cut_to_budget(self.signals, budget))
        share = CLIENT_SHARE if budget >= 0 else 1.0
        word_queries = [] if split_query.finding_scale else [scaled_query(split_query.word_query, share)]
        values = dict(self.values)
        for name, retriever in self.retrievers.items():
            if retriever.of_words:
                plain = [retriever.scoring_clause(self.values[name], 1 - share)] if share < 1 else []
                values[name] = sum_query([*word_queries, *plain])
        return replace(
            query,
            finding_share=share / split_query.finding_scale if split_query.finding_scale else 0.0,
            values=values,
            signals=cut_to_budget(self.signals, budget if budget >= 0 else budget + self.leaf_clauses),
        )

    def among(self, doc_ids: Sequence[str]) -> CompiledQuery:
        """Return this query for the scores of the given documents only, without scripts."""
        return replace(
            self, retrievers={name: retriever.among(doc_ids) for name, retriever in self.retrievers.items()}
        )

    def with_conditions(self, **parts: Sequence[dict[str, Any]]) -> CompiledQuery:
        """Return this query, restricted to candidates that match further parts of a `bool`."""
        conditions = {"filter": [self.filter]} if self.filter else {}
        client_query = filtered_query(self.client_query, {"bool": parts}) if self.client_query else None
        return replace(self, filter={"bool": {**conditions, **parts}}, client_query=client_query)

    def finds_by_client_query(self, name: str) -> bool:
        """Return whether a retriever finds by a client's own query, whose scores are not the retriever's."""
        return self.client_query is not None and self.retrievers[name].of_words

    def query(self, name: str) -> dict[str, Any]:
        """Return the query of one retriever."""
        if self.client_query and self.finds_by_client_query(name):
            return dict(self.client_query)
        return self.retrievers[name].query(
            self.values[name], self.depth, filter=self.filter, explain=self.display
        )

    def body(self, k: int, earlier_ids: Sequence[str] = ()) -> dict[str, Any]:
        """Return the search request for the best `k` documents, excluding `earlier_ids` before rescoring."""
        body = self.fusion.body(self, k)
        if not earlier_ids:
            return body
        exclusion = {"must_not": [{"ids": {"values": list(earlier_ids)}}]}
        conditions = {"must": [body.get("post_filter", {"match_all": {}})], **exclusion}
        return body | {"post_filter": {"bool": conditions}}


class CandidateLists(NamedTuple):
    """Candidates of a query by retriever: the lists they found, and their true scores for all candidates.

    A document without a lexical score matches no word; one without a dense score has no vector. `signals` and
    `boosts` hold weight and scores of each further part.
    """

    listed: Mapping[str, Scores]
    scores: Mapping[str, Scores]
    scales: Scales = Scales()
    signals: Mapping[str, tuple[float, Scores]] = NO_SCORES
    boosts: Mapping[str, tuple[float, Scores]] = NO_SCORES

    @property
    def documents(self) -> list[str]:
        """Return the ids of the documents that any retriever found."""
        return list(dict.fromkeys(chain(*self.listed.values())))

    def scoring_query(self, doc_id: str) -> dict[str, float]:
        """Return the scores that a document has, by retriever, signal and boost."""
        further = {name: scores for name, (_, scores) in [*self.signals.items(), *self.boosts.items()]}
        return {
            name: scores[doc_id] for name, scores in {**self.scores, **further}.items() if doc_id in scores
        }


class Rescoring(NamedTuple):
    """A ranking as two parts of one request: a query that finds candidates, and one that scores the best
    `window` hits of a shard again.

    The finding score counts `finding_weight` times; hits beyond the window follow in the order in which they
    were found.
    """

    finding_query: dict[str, Any]
    scoring_query: dict[str, Any]
    window: int
    finding_weight: float = BEYOND

    def among(self, doc_ids: Sequence[str]) -> Rescoring:
        """Return this rescoring for the given documents only."""
        return self._replace(
            scoring_query={
                "bool": {"filter": [{"ids": {"values": list(doc_ids)}}], "should": [self.scoring_query]}
            }
        )

    def with_pins(self, doc_ids: Collection[str], filter: Mapping[str, Any] | None) -> Rescoring:
        """Return this rescoring with the given documents on top, in their order, if they match `filter`."""
        conditions = [filter] if filter else []
        pins = [
            {
                "constant_score": {
                    "filter": {"bool": {"filter": [{"ids": {"values": [doc_id]}}, *conditions]}},
                    "boost": PINNED * place,
                }
            }
            for place, doc_id in zip(range(len(doc_ids), 0, -1), doc_ids, strict=True)
        ]
        return self._replace(
            finding_query=sum_query([self.finding_query, *pins]),
            scoring_query=sum_query([self.scoring_query, *pins]),
        )

    def body(self) -> dict[str, Any]:
        """Return the parts `query` and `rescore` of the body of a search request."""
        rescored = {
            "query_weight": self.finding_weight,
            "rescore_query_weight": 1.0,
            "rescore_query": self.scoring_query,
        }
        return {"query": self.finding_query, "rescore": {"window_size": self.window, "query": rescored}}

    def as_single_query(self) -> dict[str, Any]:
        """Return a single query without `rescore`, which scores every hit.

        Its form marks it as already ranked, because the cluster sends it again for the hits inside of groups.
        """
        counts_finding_score = self.finding_weight != BEYOND  # boosts have no upper limit
        clauses = (
            {"must": [scaled_query(self.finding_query, self.finding_weight)]}
            if counts_finding_score
            else {"filter": [self.finding_query]}
        )
        return {"query": {"bool": {**clauses, "should": [self.scoring_query], **RANKED}}}


class Grid(NamedTuple):
    """Settings of a fusion, under their own name, that `tune` tries with each of these dense weights."""

    name: str
    settings: dict[str, Any]
    weights: Sequence[float]


class Fusion(Protocol):
    """A way to rank by several retrievers; members subclass this with `name`, `help` and `scores`, the rest
    has defaults.

    With `one_request` a search sends `body`, and `scores` must rank the same: `tune` uses `scores`, and so
    does a search in a cluster that runs no scripts. Without it the search asks each retriever, completes the
    true scores by a further request, and ranks by `scores`. `rescores` says that the request is a
    `Rescoring`, which can be combined with a client's own search. The setting `auto` takes the first fusion
    in `turn` that an index allows, or the one whose own settings are given.

    `lists.listed` is what each retriever found, `lists.scores` are true scores of the union. `pipeline.py`
    has the normalisations; leave out documents without a score, because equal scores all become 1.0. A
    fusion is made once a search; it raises SettingsError for settings that this server version does not
    support. With `needs_scales`, queries and lists have their `Scales`; with `takes_signals`, the signals of
    the index; with `takes_boosts`, the boosts of its fields. `tune` tries the `grids` without boosts, because
    it judges relevance. `scoring_clause` says that a document's score does not depend on the other
    candidates. `needs_scripts` says that the request runs a script, which `scripts` may refuse.
    """

    name: ClassVar[str]
    help: ClassVar[str] = ""
    turn: ClassVar[int] = 9
    own_settings: ClassVar[frozenset[str]] = frozenset()
    one_request: ClassVar[bool] = False
    rescores: ClassVar[bool] = False
    needs_scales: ClassVar[bool] = False
    takes_signals: ClassVar[bool] = False
    takes_boosts: ClassVar[bool] = False
    needs_scripts: ClassVar[bool] = False
    scoring_clause: ClassVar[bool] = False
    grids: ClassVar[Sequence[Grid]] = ()
    settings: SearchSettings
    scripts: Scripts | None

    def __init__(
        self, settings: SearchSettings, version: tuple[int, int, int], scripts: Scripts | None = None
    ) -> None:
        self.settings, self.scripts = settings, scripts

    @property
    def asks_once(self) -> bool:
        """Return whether one request ranks; a fusion with scripts tries them on the cluster first."""
        return self.one_request and not (self.scripts and self.scripts.refused())

    def body(self, query: CompiledQuery, k: int) -> dict[str, Any]:
        """Return the one search request for the best `k` documents."""
        raise NotImplementedError

    def scores(self, lists: CandidateLists) -> dict[str, float]:
        """Return the score of every candidate, in any order, as the request of `body` would give it."""
        raise NotImplementedError

    def order(self, lists: CandidateLists, k: int, earlier_ids: Collection[str] = ()) -> dict[str, float]:
        """Return the best `k` candidates, excluding `earlier_ids`, with their scores, best first."""
        scores, excluded = self.scores(lists), set(earlier_ids)
        order = sorted((doc for doc in scores if doc not in excluded), key=lambda doc: -scores[doc])
        return {doc: scores[doc] for doc in order[:k]}

    def weights(self, query: CompiledQuery) -> PartWeights:
        """Return the weight of each part of a score that is the sum of its parts."""
        raise NotImplementedError

    def rescoring(self, query: CompiledQuery) -> Rescoring:
        """Return the ranking as a Rescoring, for a fusion that `rescores`."""
        raise NotImplementedError

    def sides(self, lists: CandidateLists) -> dict[str, Scores] | None:
        """Return what each retriever adds to each candidate at weight 1; None if scores are not linear in the
        weights.

        With these, `tune` computes the scores of all weights at once.
        """
        return None

    def parts(self, query: CompiledQuery, named: Scores, score: float) -> dict[str, float] | None:
        """Return what each part adds to a hit's score, from the named scores in the answer; None if the score
        is not a sum.
        """
        return None

    def unit(self, query: CompiledQuery) -> float:
        """Return the factor between the sum of all parts and the final score."""
        return 1.0

    def check_page(self, offset: int, k: int) -> None:
        """Raise SettingsError for a page that this fusion cannot rank."""


class SingleRetriever(Fusion):
    """The fusion of a single retriever: its scores are the ranking."""

    name = "alone"
    one_request = True
    scoring_clause = True

    def body(self, query: CompiledQuery, k: int) -> dict[str, Any]:
        """Return the search request of the only retriever."""
        return {"size": k, "query": query.query(*query.retrievers)}
