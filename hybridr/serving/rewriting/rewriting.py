"""Bodies: what a client's whole search asks for, and the body that ranks its text."""

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
    """A client's body, the text that it looks for, and what the encoder reads of that, if it has done so.

    `whole` says that OpenSearch takes no `rescore` in it: its query has to score all that it finds.
    """

    body: Mapping[str, Any]
    query: ParsedQuery
    whole: bool
    reading: Reading | None = None


class RankedRequest(NamedTuple):
    """The body of a search that ranks a text.

    Where the cluster runs no scripts it `only_finds` documents: `rank` scores them by a second request.
    """

    body: dict[str, Any]
    only_finds: bool = False


class BodyRanking:
    """Ranks searches of one index for one text as `Search` does, and leaves all others as they are.

    A text may have `limit` characters. Where bodies are only judged, `search` may be a lexical one, and
    `fusion` names what joins the retrievers of hybrid searches. `shapes` bring clients' own queries to its
    scale.
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
        """Return what a body, as OpenSearch writes it, looks for, or why it is not ranked.

        The rules of the index hold; its words are not looked at.
        Raises TypeError, ValueError or AttributeError for a body that is odd in some way.
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
        """Return the text that a query looks for, or why it is not ranked. Raises as `read`.

        A query without a scale yet is scored by the plain query where a rule holds for its text: pins and
        bans hold from the first request.
        """
        parsed = self.queries.parse(query, self.recall)
        if parsed != NotRanked("calibrating"):
            return parsed
        unscaled = self.queries.reader.read(query)
        if isinstance(unscaled, ParsedQuery) and self.search.ruling(unscaled.text).names:
            return unscaled._replace(words=None)
        return parsed

    def reason_of_parts(self, body: Mapping[str, Any], whole: bool) -> NotRanked | None:
        """Return which part beside the query keeps hits from being ranked by their score and a `rescore`."""
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
        """Return what of the words of a text keeps it from being ranked.

        Either nothing is found by them, by neighbours or by a client's own query, or they are too many for a
        query that asks for them twice.
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
        """Return the body that ranks a client's search, or why its words keep it as it is.

        Where the cluster runs no scripts, the first body only finds documents; with their ids as `among` the
        second one ranks. `boost` is what fields add beside relevance. Asks the cluster for words and scripts
        that it does not remember. Raises SettingsError for a boost that cannot be.
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
        """Return a body in which the client's own query finds by words; all else of it is as it was.

        `among` are the documents that are scored without a script.
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

        They hang on the size of a page, not on where it begins: all pages of one size are parts of one list.
        """
        _, size = page_of(body)
        return max(size, self.search.settings.depth)

    def own_query(self, request: ReadBody) -> OwnQuery:
        """Return the client's query as it finds hits, and the part of it that scores words.

        The scores of both are divided by the query's scale, so that they compare with the plain query's.
        """
        return self.queries.own_query(
            request.body["query"], request.query, recall=self.recall, whole=request.whole
        )

    def unranked(self, raw: bytes) -> bytes:
        """Return a search as its client wrote it, but for the vectors in its answer; an odd one unchanged."""
        try:
            return orjson.dumps(self.without_vector(strict_json(raw)))
        except (TypeError, ValueError, AttributeError, RecursionError):
            return raw

    def without_vector(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Leave what hybridr added to documents out of an answer, unless the client names it or may write
        documents back."""
        changed = dict(body)
        if is_by_query(body) or not self.search.info.record.vector_field:
            return changed
        for hidden in self.hidden:
            changed = without_field_inside(hidden, changed)
        return changed


def hidden_fields(info: IndexInfo) -> list[HiddenField]:
    """Return what hybridr added to documents, each with the names of all fields that hits may show."""
    added = added_fields(info.record)
    names = {*types_of(info), *info.mappings.get("runtime", ()), *info.mappings.get("derived", ())}
    prefixes = tuple(f"{field}." for field in added)
    others = tuple(sorted(name for name in names if not f"{name}.".startswith(prefixes)))
    return [HiddenField(field, others) for field in added]


def page_of(body: Mapping[str, Any]) -> tuple[int, int]:
    """Return where a body's page begins, and how many hits it has. Raises ValueError."""
    try:
        start, size = int(body.get("from", 0)), int(body.get("size", 10))
    except OverflowError:  # of an infinite number, which Python reads in JSON
        raise ValueError("a page begins and ends somewhere") from None
    if start < 0 or size < 0:
        raise ValueError("a page begins at 0 or later, and has 0 hits or more")
    return start, size


def is_by_query(body: Mapping[str, Any]) -> bool:
    """Return whether a body may come of `_delete_by_query`, `_update_by_query` or `_reindex`.

    Nothing in a body says so: these sort, by `_doc` unless they are told otherwise, ask for the sequence
    numbers of what they change, or go on in large pages.
    """
    sort = body.get("sort")
    by_place = isinstance(sort, list) and sort[:1] == [{"_doc": {"order": "asc"}}]
    numbered = bool(body.get("seq_no_primary_term")) or body.get("size") == BY_QUERY_SIZE
    return by_place or (sort is not None and numbered)


def parts_ties(body: Mapping[str, Any]) -> bool:
    """Return whether hits are sorted by more than one value."""
    return len(body.get("sort", BEST_FIRST)) > 1
