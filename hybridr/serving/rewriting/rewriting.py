"""Bodies: what a client's whole search asks for, what becomes of it, and the body that ranks its text."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from ...cluster.connection import Cluster, path_of
from ...cluster.destinations import resolve_complete
from ...cluster.fields import types_of
from ...cluster.limits import narrow_windows, rescore_window
from ...cluster.record import IndexInfo
from ...encoders.contract import Reading
from ...errors import ClusterError
from ...families import member_of
from ...indexing.planning import added_fields
from ...search.checks import stored_fusion
from ...search.clauses import REASONS, NotRanked, ParsedQuery
from ...search.client_query import MOST_CHARACTERS, ClientQueries, filter_of
from ...search.fusions import FAMILY as FUSIONS
from ...search.fusions import LARGEST_WINDOW, OwnQuery
from ...search.search import Search
from ...search.settings import Finds, SearchSettings
from ...search.shapes import Shapes, with_text
from .requested import OF_BODY, HiddenField, as_sent, reason_of_path, source_of, without_field_inside

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


class BodyRanking:
    """Ranks searches of one index for one text as `Search` does, and leaves all others as they are.

    A text may have `most` characters. Where bodies are only judged, `search` may be a lexical one, and
    `fusion` names what joins the legs of hybrid searches. `shapes` bring clients' own queries to its scale.
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
        self.search, self.recall, self.fusion = search, recall, fusion
        scales = shapes or Shapes(search.cluster, search.info, search.context.plain)
        self.queries = ClientQueries(search.info, search.lexical_fields, search.analysis, scales, limit)
        self.window = rescore_window(search.info)
        self.hidden = hidden_fields(search.info, types_of(search.info))

    def read(self, body: Any) -> ParsedQuery | NotRanked:
        """Read the text that a body, as OpenSearch writes it, looks for, or say why it stays as it is.

        Raises TypeError, ValueError or AttributeError for a body that is odd in some way.
        """
        parsed = self.parse(body)
        return parsed if isinstance(parsed, NotRanked) else self.reason_of_words(body, parsed) or parsed

    def reason_of_words(self, body: Mapping[str, Any], parsed: ParsedQuery) -> NotRanked | None:
        """Say what of the words of a text keeps it from being ranked: nothing is found by them, neither by
        neighbours nor by a client's own query, or they are too many for a query that asks for them twice."""
        pinned = parsed.ruling is not None and parsed.ruling.pins
        is_known = (
            self.recall == "all" or parsed.words is not None or pinned or self.search.knows(parsed.text)
        )
        if not is_known:
            return NotRanked("unknown_words")
        if not takes_no_rescore(body):
            return None
        words = self.queries.words(parsed.text) if parsed.words is None else ()
        plain = self.search.context.words.clauses_of(len(words))
        leaves = self.own_query(body, parsed).leaves + plain
        return NotRanked("clauses") if leaves > self.search.context.max_clauses else None

    def parse(self, body: Any) -> ParsedQuery | NotRanked:
        """Judge a body without a look at the words of the index. Raises what `judged` raises."""
        fusion = self.fusion or self.search.fusion
        if fusion is None or self.search.reranked_by or not member_of(FUSIONS, fusion).rescores:
            return NotRanked("fusion")
        if reason := self.reason_of_parts(body):
            return reason
        return self.queries.parse(body["query"], self.recall)

    def ruled_already(self, body: Mapping[str, Any]) -> ParsedQuery | None:
        """Return what a query without a scale yet asks, its words scored by the plain query alone; None
        without a rule for its text. Pins and bans hold from the first request."""
        parsed = self.queries.reader.read(body["query"])
        if isinstance(parsed, NotRanked) or not self.search.ruling(parsed.text).names:
            return None
        return parsed._replace(words=None)

    def ruled(self, body: dict[str, Any], parsed: ParsedQuery) -> tuple[dict[str, Any], ParsedQuery]:
        """Add what rules make of a text, with their text in its place where the body has it as it was typed.

        Raises what `wanted` raises.
        """
        ruling = self.search.ruling(parsed.text)
        if ruling.text != parsed.text:
            changed = {**body, "query": with_text(body["query"], parsed.text, ruling.text)}
            again = self.parse(changed)
            again = self.ruled_already(changed) or again if again == NotRanked("calibrating") else again
            if isinstance(again, ParsedQuery) and again.text == ruling.text:
                body, parsed = changed, again
        return body, parsed._replace(ruling=ruling if ruling.names else None)

    def reason_of_parts(self, body: Mapping[str, Any]) -> NotRanked | None:
        """Say what beside the query keeps its hits from being ranked by their score and a `rescore`."""
        if "query" not in body:
            return NotRanked("no_query")
        if is_by_query(body):
            return NotRanked("by_query")
        if not is_best_first(body):
            return NotRanked("sort")
        allowed = KEPT | {"search_after"} if parts_ties(body) else KEPT
        allowed |= (
            {"ext"} if body.get("ext", {}).keys() <= {"rerank"} else set()
        )  # what a later processor reads
        if unknown := next((name for name in body if name not in allowed), None):
            return NotRanked(unknown) if unknown in REASONS else NotRanked("part", unknown)
        if body.get("profile"):  # it shows all clauses, so words of documents that an alias or rights hide
            return NotRanked("part", "profile")
        if "min_score" in body and (self.recall == "all" or takes_no_rescore(body)):
            return NotRanked("min_score")
        if body.get("size") == 0 and ("aggregations" not in body or self.recall == "lexical"):
            return NotRanked("counting")
        start, size = page_of(body)
        return NotRanked("window") if size > self.window or start + size > LARGEST_WINDOW else None

    def reach(self, body: Mapping[str, Any]) -> int:
        """Give how many candidates of each leg a page needs.

        They hang on the size of a page, not on where it begins: all pages of one size are parts of one list.
        """
        _, size = page_of(body)
        return max(size, self.search.settings.depth)

    @property
    def asks_once(self) -> bool:
        """Tell whether one request ranks; where it is due it is tried whether the cluster runs scripts."""
        return self.search.context.fusion.asks_once

    def finding(
        self, body: Mapping[str, Any], parsed: ParsedQuery, reading: Reading
    ) -> dict[str, Any] | NotRanked:
        """Write what finds the documents that `body` then scores `among`, where the cluster runs no scripts;
        or say what of a search needs one."""
        if parsed.around or takes_no_rescore(body):
            return NotRanked("scripts")
        rewritten = self.body(body, parsed, reading, among=())
        shards = int(self.search.info.settings.get("index.number_of_shards", 1))
        parts = {name: body[name] for name in FINDING if name in body}
        size = min(shards * rewritten["rescore"]["window_size"], self.window)
        return {
            **parts,
            "query": rewritten["query"],
            "size": size,
            "_source": False,
            "track_total_hits": False,
        }

    def body(
        self,
        body: Mapping[str, Any],
        parsed: ParsedQuery,
        reading: Reading,
        boost: str | None = None,
        among: Sequence[str] | None = None,
    ) -> dict[str, Any]:
        """Write a body anew: the client's own query finds by words, and everything else is as it was.

        `boost` is what fields add beside relevance, `among` what is scored without a script. Raises
        SettingsError for a boost that cannot be.
        """
        own, filter = self.own_query(body, parsed), filter_of(parsed)
        if parsed.ruling:
            filter = parsed.ruling.within(filter)
        rescoring = self.search.rescoring(
            parsed.text, self.reach(body), own, filter=filter, reading=reading, boost=boost, among=among
        )
        query = rescoring.found if self.recall == "all" else body["query"]
        rescoring = rescoring._replace(found=query)
        if parsed.ruling:
            rescoring = rescoring._replace(found=parsed.ruling.around(query)).pinning(
                parsed.ruling.pins, filter
            )
        minimum = {} if boost or parsed.ruling else self.least_of(body, parsed)
        if not (minimum or takes_no_rescore(body)):
            return self.without_vector({**body, **rescoring.body()})
        return self.without_vector({**body, **marking_own_words(body), **rescoring.within(), **minimum})

    def least_of(self, body: Mapping[str, Any], parsed: ParsedQuery) -> dict[str, float]:
        """Give what hits need to score by `[search] at_least`, of a plain query without wishes of its own."""
        own, search = parsed.words or parsed.around or "min_score" in body, self.search
        return {} if own else search.answers.least(search.at_least)

    def own_query(self, body: Mapping[str, Any], parsed: ParsedQuery) -> OwnQuery:
        """Return what a client asks, and how it scores words; both on the scale of the plain query."""
        return self.queries.own_query(body["query"], parsed, recall=self.recall, whole=takes_no_rescore(body))

    def without_vector(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Leave what hybridr added to documents out of an answer, unless the client names it or may write
        documents back."""
        changed = dict(body)
        if is_by_query(body) or not self.search.info.record.vector_field:
            return changed
        for hidden in self.hidden:
            changed = without_field_inside(hidden, changed)
        return changed


def hidden_fields(info: IndexInfo, types: Collection[str]) -> list[HiddenField]:
    """Return what hybridr added to documents, each with the names of all fields that hits may show."""
    added = added_fields(info.record)
    names = {*types, *info.mappings.get("runtime", ()), *info.mappings.get("derived", ())}
    prefixes = tuple(f"{field}." for field in added)
    others = tuple(sorted(name for name in names if not f"{name}.".startswith(prefixes)))
    return [HiddenField(field, others) for field in added]


def page_of(body: Mapping[str, Any]) -> tuple[int, int]:
    """Give where a body's page begins, and how many hits it has. Raises ValueError."""
    try:
        start, size = int(body.get("from", 0)), int(body.get("size", 10))
    except OverflowError:  # of an infinite number, which Python reads in JSON
        raise ValueError("a page begins and ends somewhere") from None
    if start < 0 or size < 0:
        raise ValueError("a page begins at 0 or later, and has 0 hits or more")
    return start, size


def is_by_query(body: Mapping[str, Any]) -> bool:
    """Tell whether a body may come of `_delete_by_query`, `_update_by_query` or `_reindex`.

    Nothing in a body says so: these sort, by `_doc` unless they are told otherwise, ask for the sequence
    numbers of what they change, or go on in large pages.
    """
    sort = body.get("sort")
    by_place = isinstance(sort, list) and sort[:1] == [{"_doc": {"order": "asc"}}]
    numbered = bool(body.get("seq_no_primary_term")) or body.get("size") == BY_QUERY_SIZE
    return by_place or (sort is not None and numbered)


def is_best_first(body: Mapping[str, Any]) -> bool:
    """Tell whether hits are sorted by their score; what parts ties may follow, where no view of the index is
    read page by page."""
    sort = body.get("sort", BEST_FIRST)
    by_place = "pit" in body or any(PLACES.intersection(key) for key in sort)
    return bool(sort[:1] == BEST_FIRST and not (len(sort) > 1 and by_place))


def parts_ties(body: Mapping[str, Any]) -> bool:
    """Tell whether hits are sorted by more than one value."""
    return len(body.get("sort", BEST_FIRST)) > 1


def takes_no_rescore(body: Mapping[str, Any]) -> bool:
    """Tell whether OpenSearch takes no `rescore` in a search: its query has to score all that it finds."""
    return "collapse" in body or parts_ties(body)


def marking_own_words(body: Mapping[str, Any]) -> dict[str, Any]:
    """Have the words of a client's own query marked, whatever else scores."""
    if not isinstance(marking := body.get("highlight"), Mapping):
        return {}
    return {"highlight": {"highlight_query": body["query"], **marking}}


def limits_of(cluster: Cluster, info: IndexInfo) -> list[str]:
    """Say what of an index or its cluster keeps searches from being ranked, or fails beside it."""
    windows = narrow_windows(info)
    field, dim = info.record.vector_field, info.record.dim
    others = [name for name, dims in dimensions_of(cluster, field).items() if dims != dim]
    if others:
        named = ", ".join(others[:3]) + ", …" * (len(others) > 3)
        windows.append(f"searched along with it, these fail, whose {field} has not {dim} dimensions: {named}")
    return windows


def dimensions_of(cluster: Cluster, field: str) -> dict[str, int]:
    """Give the dimensions of a vector field in every index that has it."""
    mappings = cluster.request("GET", path_of("_all", "_mapping", "field", field))
    last = field.rpartition(".")[2]
    mapped = {
        name: mapped_fields["mappings"].get(field, {}).get("mapping", {}).get(last, {})
        for name, mapped_fields in mappings.items()
    }
    return {
        name: field_mapping["dimension"]
        for name, field_mapping in sorted(mapped.items())
        if "dimension" in field_mapping
    }


@dataclass(frozen=True)
class Fate:
    """What becomes of a request: whether it is ranked anew, if not by which of REASONS, and a remark."""

    ranked: bool
    reason: str | None
    why: str


def fates_of(
    cluster: Cluster,
    name: str,
    requests: Iterable[Mapping[str, Any]],
    settings: SearchSettings,
    recall: Finds = "all",
) -> list[Fate]:
    """Say what a deployment of `--way transparent` makes of an application's requests; nothing is changed.

    A request is a search body, or `{"path": "/docs/_search?from=10", "body": {…}}`. Raises NotFound, and
    DataError for an index without complete vectors: what becomes of its requests is not known yet.
    """
    info = resolve_complete(cluster, name, whole=False)
    searching = Search(cluster, info, mode="lexical", settings=settings)
    fusion, _ = stored_fusion(cluster, searching.settings, info)
    ranking = BodyRanking(searching, recall, fusion=fusion)
    return [fate_of(ranking, request) for request in requests]


def fate_of(ranking: BodyRanking, request: Mapping[str, Any]) -> Fate:
    """Say what becomes of one request."""
    address = urlsplit(str(request.get("path", "_search")))
    params = dict(parse_qsl(address.query)) | dict(request.get("params") or {})
    sent_body = request.get("body") or {} if {"path", "body"} & request.keys() else request
    source = None if sent_body else source_of(params)
    params = params if source is None else {name: params[name] for name in params if name not in OF_BODY}
    path = address.path.removesuffix("/template")
    parsed: ParsedQuery | NotRanked | None = reason_of_path(path.rpartition("/")[2], params)
    if parsed is None:
        try:
            sent_body = sent_body if source is None else json.loads(source)
            if path != address.path:
                sent_body = ranking.search.cluster.request("POST", "/_render/template", sent_body)[
                    "template_output"
                ]
            parsed = ranking.read(as_sent(sent_body, params))
        except (TypeError, ValueError, AttributeError, RecursionError, ClusterError):
            parsed = NotRanked("unreadable")
    if isinstance(parsed, ParsedQuery) and "scroll" not in params:
        return Fate(True, None, ranked_by(parsed))
    left = parsed if isinstance(parsed, NotRanked) else NotRanked("scroll")
    return Fate(False, left.reason, left.why)


def ranked_by(parsed: ParsedQuery) -> str:
    """Say for people what ranks a request."""
    own = "by its own query, with what hybridr search adds to words"
    ranked = f"ranked {'as hybridr search does' if parsed.words is None else own}"
    return f"{ranked}; its own functions and wishes act on that" if parsed.around else ranked
