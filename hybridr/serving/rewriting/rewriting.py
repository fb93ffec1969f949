"""Reads a client's whole search body, and builds the body that ranks its text with vectors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import orjson

from ...cluster.fields import types_of
from ...cluster.limits import rescore_window
from ...cluster.record import IndexInfo
from ...encoders.contract import Reading
from ...families import member_of
from ...indexing.planning import added_fields
from ...search.clauses import REASONS, NotRanked, ParsedQuery
from ...search.client_query import MOST_CHARACTERS, ClientQueries, filter_of
from ...search.fusions import FAMILY as FUSIONS
from ...search.fusions import LARGEST_WINDOW, OwnQuery
from ...search.search import Search
from ...search.settings import Finds
from ...search.shapes import Shapes, with_text
from .requested import HiddenField, strict_json, without_field_inside

BEST_FIRST = [{"_score": {"order": "desc"}}]
PLACES = frozenset(("_doc", "_shard_doc"))
"""By what a search sorts that goes on and on, page by page."""
KEPT = frozenset(
    "query from size _source sort aggregations highlight post_filter track_total_hits timeout pit "
    "terminate_after collapse min_score explain profile version seq_no_primary_term "
    "include_named_queries_score track_scores stats suggest stored_fields docvalue_fields fields "
    "script_fields".split()
)
"""What a search may say and still mean where its hits are ranked by `rescore`."""
FINDING = ("post_filter", "pit", "timeout", "terminate_after", "min_score")
"""What of a search says which documents there are to be scored again."""
BY_QUERY_SIZE = 1000  # of the pages in which documents are changed or copied by query


class ReadBody(NamedTuple):
    """A client's body, its parsed query, and the encoder's reading of its text, if made.

    `whole` says that OpenSearch allows no `rescore` in the body, so the query has to score all hits.
    """

    body: Mapping[str, Any]
    query: ParsedQuery
    whole: bool
    reading: Reading | None = None


class RankedRequest(NamedTuple):
    """The search body that ranks a text.

    If the cluster runs no scripts, the body `only_finds` documents, and a second request scores them.
    """

    body: dict[str, Any]
    only_finds: bool = False


class BodyRanking:
    """Ranks searches of one index that search for one text, as `Search` does, and leaves others unchanged.

    A text may have `limit` characters. If bodies are only judged, `search` may be lexical, and `fusion` names
    the fusion of hybrid searches. `shapes` know the scales of clients' own queries.
    """

    def __init__(
        self,
        search: Search,
        recall: Finds = "all",
        *,
        limit: int = MOST_CHARACTERS,
        fusion: str | None = None,
        shapes: Shapes | None = None,
    ) -> None:
        self.search, self.recall = search, recall
        fusion = fusion or search.fusion
        self.rescores = fusion is not None and member_of(FUSIONS, fusion).rescores
        scales = shapes or Shapes(search.cluster, search.info, search.context.plain)
        self.queries = ClientQueries(search.info, search.lexical_fields, search.analysis, scales, limit)
        self.window = rescore_window(search.info)
        self.hidden = hidden_fields(search.info)

    def read(self, body: Any) -> ReadBody | NotRanked:
        """Return the parsed body, with the rules that match its text, or why it is not ranked.

        The body is normalised as by OpenSearch. Raises TypeError, ValueError or AttributeError for a
        malformed body.
        """
        if not self.rescores or self.search.reranked_by:
            return NotRanked("fusion")
        if "query" not in body:
            return NotRanked("no_query")
        whole = "collapse" in body or parts_ties(body)
        if reason := self.reason_of_parts(body, whole):
            return reason
        parsed = self.parse(body["query"])
        if isinstance(parsed, NotRanked):
            return parsed
        ruling = self.search.ruling(parsed.text)
        if ruling.text != parsed.text:  # it takes the place of what was typed, where the query can be told
            query = with_text(body["query"], parsed.text, ruling.text)
            replaced = self.parse(query)
            if isinstance(replaced, ParsedQuery) and replaced.text == ruling.text:
                body, parsed = {**body, "query": query}, replaced
        return ReadBody(body, parsed._replace(ruling=ruling if ruling.names else None), whole)

    def parse(self, query: Mapping[str, Any]) -> ParsedQuery | NotRanked:
        """Return the parsed query, or why it is not ranked. Raises as `read`.

        A query without a known scale is scored by the plain query if a rule matches its text, so that pins
        and bans work from the first request.
        """
        parsed = self.queries.parse(query, self.recall)
        if parsed != NotRanked("calibrating"):
            return parsed
        unscaled = self.queries.reader.read(query)
        if isinstance(unscaled, ParsedQuery) and self.search.ruling(unscaled.text).names:
            return unscaled._replace(words=None)
        return parsed

    def reason_of_parts(self, body: Mapping[str, Any], whole: bool) -> NotRanked | None:
        """Return the part of a body, beside its query, that prevents ranking by score and `rescore`; None if
        none does.
        """
        if is_by_query(body):
            return NotRanked("by_query")
        sort = body.get("sort", BEST_FIRST)
        by_place = "pit" in body or any(PLACES.intersection(key) for key in sort)
        if sort[:1] != BEST_FIRST or (len(sort) > 1 and by_place):
            return NotRanked("sort")  # what parts ties may follow, where no view is read page by page
        allowed = KEPT | {"search_after"} if parts_ties(body) else KEPT
        if body.get("ext", {}).keys() <= {"rerank"}:  # what a later processor reads
            allowed |= {"ext"}
        if unknown := next((name for name in body if name not in allowed), None):
            return NotRanked(unknown) if unknown in REASONS else NotRanked("part", unknown)
        if body.get("profile"):  # it shows all clauses, so words of documents that an alias or rights hide
            return NotRanked("part", "profile")
        if "min_score" in body and (self.recall == "all" or whole):
            return NotRanked("min_score")
        if body.get("size") == 0 and ("aggregations" not in body or self.recall == "lexical"):
            return NotRanked("counting")
        start, size = page_of(body)
        return NotRanked("window") if size > self.window or start + size > LARGEST_WINDOW else None

    def reason_of_words(self, request: ReadBody) -> NotRanked | None:
        """Return why the words of a text prevent its ranking; None if they do not.

        Either nothing would be found by words, neighbours or the client's query, or they make too many
        clauses.
        """
        parsed = request.query
        pinned = parsed.ruling is not None and parsed.ruling.pins
        finds = self.recall == "all" or parsed.words is not None or pinned
        if not (finds or self.search.knows(parsed.text)):
            return NotRanked("unknown_words")
        if not request.whole:
            return None
        words = self.queries.words(parsed.text) if parsed.words is None else ()
        plain = self.search.context.words.clauses_of(len(words))
        leaves = self.own_query(request).leaves + plain
        return NotRanked("clauses") if leaves > self.search.context.max_clauses else None

    def rank(
        self, request: ReadBody, boost: str | None = None, among: Sequence[str] | None = None
    ) -> RankedRequest | NotRanked:
        """Return the body that ranks a client's search, or why its words prevent that.

        If the cluster runs no scripts, the first body only finds documents; called again with their ids as
        `among`, the second body ranks them. `boost` is a boost formula. May ask the cluster for words and
        scripts. Raises SettingsError for an impossible boost.
        """
        if among is not None:
            return RankedRequest(self.body(request, boost, among))
        if reason := self.reason_of_words(request):
            return reason
        if self.search.context.fusion.asks_once:
            return RankedRequest(self.body(request, boost))
        if request.query.around or request.whole:
            return NotRanked("scripts")
        body = self.body(request, boost, among=())
        shards = int(self.search.info.settings.get("index.number_of_shards", 1))
        parts = {name: request.body[name] for name in FINDING if name in request.body}
        size = min(shards * body["rescore"]["window_size"], self.window)
        unshown = {"_source": False, "track_total_hits": False}
        return RankedRequest({**parts, "query": body["query"], "size": size, **unshown}, only_finds=True)

    def body(
        self, request: ReadBody, boost: str | None = None, among: Sequence[str] | None = None
    ) -> dict[str, Any]:
        """Return the client's body with a query that also finds by vector and a `rescore`; other parts are
        unchanged.

        `among` are the documents to score without a script.
        """
        body, parsed, whole, reading = request
        filter, ruling = filter_of(parsed), parsed.ruling
        if ruling:
            filter = ruling.within(filter)
        rescoring = self.search.rescoring(
            parsed.text,
            self.reach(body),
            self.own_query(request),
            filter=filter,
            reading=reading,
            boost=boost,
            among=among,
        )
        query = rescoring.found if self.recall == "all" else body["query"]
        if ruling:
            rescoring = rescoring._replace(found=ruling.around(query)).pinning(ruling.pins, filter)
        else:
            rescoring = rescoring._replace(found=query)
        unrated = boost or ruling or parsed.words or parsed.around or "min_score" in body
        minimum = {} if unrated else self.search.answers.least(self.search.at_least)
        if not (minimum or whole):
            return self.without_vector({**body, **rescoring.body()})
        changed = {**body, **rescoring.within(), **minimum}
        if isinstance(marking := body.get("highlight"), Mapping):  # the client's words, whatever else scores
            changed["highlight"] = {"highlight_query": body["query"], **marking}
        return self.without_vector(changed)

    def reach(self, body: Mapping[str, Any]) -> int:
        """Return how many candidates of each retriever a page needs.

        This depends on the size of a page, not on its start, so that pages of one size fit together.
        """
        _, size = page_of(body)
        return max(size, self.search.settings.depth)

    def own_query(self, request: ReadBody) -> OwnQuery:
        """Return the client's query split into what finds hits and what scores words, both divided by the
        query's scale.
        """
        return self.queries.own_query(
            request.body["query"], request.query, recall=self.recall, whole=request.whole
        )

    def unranked(self, raw: bytes) -> bytes:
        """Return a client's raw body, changed only to keep vectors out of the answer; a malformed one
        unchanged.
        """
        try:
            return orjson.dumps(self.without_vector(strict_json(raw)))
        except (TypeError, ValueError, AttributeError, RecursionError):
            return raw

    def without_vector(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return a body that leaves hybridr's fields out of the hits, unless the client names them or may
        write documents back.
        """
        changed = dict(body)
        if is_by_query(body) or not self.search.info.record.vector_field:
            return changed
        for hidden in self.hidden:
            changed = without_field_inside(hidden, changed)
        return changed


def hidden_fields(info: IndexInfo) -> list[HiddenField]:
    """Return the fields that hybridr added to documents, each with all other fields of the index."""
    added = added_fields(info.record)
    names = {*types_of(info), *info.mappings.get("runtime", ()), *info.mappings.get("derived", ())}
    prefixes = tuple(f"{field}." for field in added)
    others = tuple(sorted(name for name in names if not f"{name}.".startswith(prefixes)))
    return [HiddenField(field, others) for field in added]


def page_of(body: Mapping[str, Any]) -> tuple[int, int]:
    """Return start and size of a body's page. Raises ValueError."""
    try:
        start, size = int(body.get("from", 0)), int(body.get("size", 10))
    except OverflowError:  # of an infinite number, which Python reads in JSON
        raise ValueError("a page begins and ends somewhere") from None
    if start < 0 or size < 0:
        raise ValueError("a page begins at 0 or later, and has 0 hits or more")
    return start, size


def is_by_query(body: Mapping[str, Any]) -> bool:
    """Return whether a body may come from `_delete_by_query`, `_update_by_query` or `_reindex`.

    Nothing in the body says so: these sort by `_doc`, request sequence numbers, or read large pages.
    """
    sort = body.get("sort")
    by_place = isinstance(sort, list) and sort[:1] == [{"_doc": {"order": "asc"}}]
    numbered = bool(body.get("seq_no_primary_term")) or body.get("size") == BY_QUERY_SIZE
    return by_place or (sort is not None and numbered)


def parts_ties(body: Mapping[str, Any]) -> bool:
    """Return whether hits are sorted by more than one value."""
    return len(body.get("sort", BEST_FIRST)) > 1
