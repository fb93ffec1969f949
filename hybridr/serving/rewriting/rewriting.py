"""Reads a client's whole search request, normalises its body as OpenSearch does, and ranks its text."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from functools import partial
from typing import Any, NamedTuple

import orjson

from ...cluster.mappings import rescore_window
from ...encoders.contract import Reading
from ...families import load_member
from ...indexing.planning import added_fields
from ...search.clauses import REASONS, NotRanked, ParsedQuery
from ...search.client_query import (
    MAX_CHARACTERS,
    RELATIVES,
    ClientQueries,
    Shapes,
    change_parts,
    dense_filter,
    with_text,
)
from ...search.context import is_wordless
from ...search.fusions import FAMILY as FUSIONS
from ...search.fusions import LARGEST_WINDOW, SplitQuery
from ...search.search import Search
from ...search.settings import RecallMode

QUERY_STRING = ("analyzer", "analyze_wildcard", "lenient")  # parameters that go with `q`
SOURCE_PARAMETERS = ("_source", "_source_includes", "_source_excludes")
OTHER_PARAMETERS = ("q", "df", "default_operator", "from", "size", "sort", "stored_fields")
MOVED_PARAMETERS = frozenset((*OTHER_PARAMETERS, *QUERY_STRING, *SOURCE_PARAMETERS))
"""Parameters that `normalised_body` moves into the body."""
BODY_PARAMETERS = ("source", "source_content_type")
"""A body in the address, for clients that cannot send one with GET."""
UNRANKABLE = {"search_pipeline": "pipeline", "source": "unreadable", "pit": "part"}
"""Parameters that leave a search unranked -> reason."""
PARTS_INSTEAD_OF_SOURCE = frozenset({"stored_fields", "script_fields"})
"""Parts of a request whose answers omit `_source` unless it is requested."""
OLD_NAMES = {"include": "includes", "exclude": "excludes"}
"""Old names of source filters. If a body has both names, the cluster uses the last."""
MAX_PATTERNS = 20  # replaced in one search; each may match all fields
AGGREGATION_KEYS = ("aggregations", "aggs")


def reason_of_path(api: str, params: Mapping[str, Any]) -> NotRanked | None:
    """Return why a request to this API with these URL parameters is not ranked; None if it may be."""
    if api in ("_delete_by_query", "_update_by_query", "_reindex"):
        return NotRanked("by_query")
    if api != "_search":
        return NotRanked("counting" if api == "_count" else "no_search")
    return next((NotRanked(UNRANKABLE[name]) for name in params if name in UNRANKABLE), None)


def source_parameter(params: Mapping[str, Any]) -> str | None:
    """Return the JSON body given in the URL parameter `source`; None without one."""
    kind = str(params.get("source_content_type", ""))
    return params["source"] if "source" in params and "json" in kind and "ndjson" not in kind else None


def normalised_body(body: Mapping[str, Any], params: Mapping[str, Any]) -> dict[str, Any]:
    """Return a client's body as OpenSearch normalises it: with URL parameters and long forms of sorts."""
    names = {{"aggs": "aggregations"}.get(name, name): value for name, value in body.items()}
    names |= {name: int(params[name]) for name in ("from", "size") if name in params}
    if "q" in params:
        default = {"default_operator": params.get("default_operator", "or")}
        fields = {"default_field": params["df"]} if "df" in params else {}
        parameters = {name: params[name] for name in QUERY_STRING if name in params}
        names["query"] = {"query_string": {"query": params["q"], **default, **fields, **parameters}}
    sort = params["sort"].split(",") if "sort" in params else names.get("sort")
    if sort is not None:
        names["sort"] = [long_sort(key) for key in (sort if isinstance(sort, list) else [sort])]
    if "stored_fields" in params:
        names["stored_fields"] = params["stored_fields"].split(",")
    source = source_filter(params) if set(SOURCE_PARAMETERS).intersection(params) else names.get("_source")
    if source is not None:
        listed = {"includes": one_or_more(source)} if isinstance(source, str | list) else source
        names["_source"] = {} if source is True else listed
    return names


def source_filter(params: Mapping[str, Any]) -> Any:
    """Return the `_source` filter in URL parameters, in the form of a body."""
    source = params.get("_source", "true")
    if source == "false":
        return False
    names = [] if source == "true" else source.split(",")
    parts = {"includes": params.get("_source_includes"), "excludes": params.get("_source_excludes")}
    return {"includes": names} | {part: fields.split(",") for part, fields in parts.items() if fields}


def long_sort(key: Any) -> Any:
    """Return a sort key in its long form: from `"price:desc"`, `"_score"` or `{"price": "desc"}`."""
    if isinstance(key, str):
        field, _, order = key.partition(":")
        return {field: {"order": order or ("desc" if field == "_score" else "asc")}}
    return {field: {"order": how} if isinstance(how, str) else how for field, how in key.items()}


class HiddenField(NamedTuple):
    """A field to keep out of hits, and `others`, all other fields of its index."""

    name: str
    others: tuple[str, ...] = ()


def without_field(hidden: HiddenField, query: Mapping[str, Any]) -> dict[str, Any]:
    """Return a search body that leaves a field out of the hits, unless the client names the field."""
    changed = dict(query)
    if "fields" in query:
        changed["fields"] = without_patterns(hidden, one_or_more(query["fields"]))
    stores_source = "_source" in one_or_more(query.get("stored_fields", ()))  # overrides `_source: false`
    if "_source" not in query and not stores_source and PARTS_INSTEAD_OF_SOURCE.intersection(query):
        return changed
    source = query.get("_source", {})
    source = {} if stores_source and source is False else source
    if not isinstance(source, Mapping):
        return changed
    parts = {OLD_NAMES.get(part, part): one_or_more(names) for part, names in source.items()}
    if hidden.name in parts.get("includes", ()):
        return changed
    return {**changed, "_source": {**parts, "excludes": [*parts.get("excludes", ()), hidden.name]}}


def without_patterns(hidden: HiddenField, fields: Sequence[Any]) -> list[Any]:
    """Return `fields`, with each pattern that matches the hidden field replaced by the other fields it
    matches.

    An entry is a name, or an object with a `field`. A list with too many patterns is returned unchanged.
    """
    names = [field.get("field") if isinstance(field, Mapping) else field for field in fields]
    matching = [isinstance(name, str) and "*" in name and matches(hidden.name, name) for name in names]
    if not 0 < sum(matching) <= MAX_PATTERNS:
        return list(fields)
    result: list[Any] = []
    for field, name, is_pattern in zip(fields, names, matching, strict=True):
        others = [pattern for pattern in hidden.others if is_pattern and matches(pattern, str(name))]
        if not is_pattern:
            result.append(field)
        elif isinstance(field, Mapping):
            result += [{**field, "field": pattern} for pattern in others]
        else:
            result += others
    return result


def matches(name: str, pattern: str) -> bool:
    """Return whether a pattern, in which only `*` is special, matches a name."""
    return fnmatchcase(name, re.sub(r"[][?]", r"[\g<0>]", pattern))


def one_or_more(names: Any) -> list[Any]:
    """Return one name or several names as a list."""
    return [names] if isinstance(names, str) else list(names)


def body_without_field(hidden: HiddenField, body: Mapping[str, Any]) -> dict[str, Any]:
    """Return a search body that leaves a field out of all hits, also of `top_hits` and of the inner hits of
    `collapse`, `has_child` and `has_parent`.
    """
    changed = without_field(hidden, body)
    if isinstance(groups := body.get("collapse"), Mapping):
        changed["collapse"] = part_without_field(hidden, groups, "inner_hits")
    changed |= aggregations_without_field(hidden, body)
    if "query" in body:
        without_hits = partial(part_without_field, hidden, name="inner_hits")
        changed["query"] = change_parts(body["query"], RELATIVES, without_hits)
    return changed


def part_without_field(hidden: HiddenField, part: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return a part of a body that leaves the field out of the inner hits requested under `name`."""
    queries = part.get(name)
    if isinstance(queries, list):
        return {**part, name: [without_field(hidden, query) for query in queries]}
    return {**part, name: without_field(hidden, queries)} if isinstance(queries, Mapping) else dict(part)


def aggregations_without_field(hidden: HiddenField, body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the aggregations of a body or of an aggregation, all `top_hits` in them without the field."""
    result: dict[str, Any] = {}
    for key in AGGREGATION_KEYS:
        if isinstance(body.get(key), Mapping):
            result[key] = dict(body[key])
            for name, aggregation in body[key].items():
                if isinstance(aggregation, Mapping):
                    sub_aggregations = aggregations_without_field(hidden, aggregation)
                    without_hits = part_without_field(hidden, aggregation, "top_hits")
                    result[key][name] = without_hits | sub_aggregations
    return result


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object from its pairs. Raises ValueError for a repeated key."""
    keys = dict(pairs)
    if len(keys) < len(pairs):
        raise ValueError("an object has a key twice")
    return keys


def finite_number(number: str) -> float:
    """Return a JSON number. Raises ValueError for an infinite one, which would be written as null."""
    if not math.isfinite(value := float(number)):
        raise ValueError(f"{number} is not a finite number")
    return value


def strict_json(raw: bytes) -> Any:
    """Return a parsed JSON body; raises ValueError also for repeated keys and infinite numbers, which the
    programs that parse it again may read differently.
    """
    return json.loads(
        raw, parse_float=finite_number, parse_constant=finite_number, object_pairs_hook=unique_keys
    )


BEST_FIRST = [{"_score": {"order": "desc"}}]
PLACE_SORTS = frozenset(("_doc", "_shard_doc"))
"""Sort keys of searches that read all documents page by page."""
RANKABLE_PARTS = frozenset(
    "query from size _source sort aggregations highlight post_filter track_total_hits timeout pit "
    "terminate_after collapse min_score explain profile version seq_no_primary_term "
    "include_named_queries_score track_scores stats suggest stored_fields docvalue_fields fields "
    "script_fields".split()
)
"""Parts of a search that keep their meaning if its hits are ranked by `rescore`."""
FINDING_PARTS = ("post_filter", "pit", "timeout", "terminate_after", "min_score")
"""Parts of a search that decide which documents are scored again."""
BY_QUERY_SIZE = 1000  # page size of `_update_by_query`, `_delete_by_query` and `_reindex`


class ReadBody(NamedTuple):
    """A client's body, its parsed query, and the encoder's reading of its text, if made.

    `whole` is whether OpenSearch allows no `rescore` in the body, so that the query itself scores all hits.
    """

    body: Mapping[str, Any]
    query: ParsedQuery
    whole: bool
    reading: Reading | None = None


class RankedRequest(NamedTuple):
    """The search body that ranks a text.

    With `only_finds`, if the cluster runs no scripts, it only finds documents, and a second request scores
    them.
    """

    body: dict[str, Any]
    only_finds: bool = False


class BodyRanking:
    """Ranks searches of one index that search for one text, as `Search` does, and leaves others unchanged.

    A text may have `limit` characters. To decide only whether bodies would be ranked, `search` may be
    lexical, and `fusion` names the fusion of hybrid searches. `shapes` know the scales of clients' own
    queries.
    """

    def __init__(
        self,
        search: Search,
        recall: RecallMode = "all",
        *,
        limit: int = MAX_CHARACTERS,
        fusion: str | None = None,
        shapes: Shapes | None = None,
    ) -> None:
        self.search, self.recall = search, recall
        fusion = fusion or search.fusion
        self.rescores = fusion is not None and load_member(FUSIONS, fusion).rescores
        scales = shapes or Shapes(search.cluster, search.info, search.context.plain)
        self.queries = ClientQueries(search.info, search.lexical_fields, search.analysis, scales, limit)
        self.window = rescore_window(search.info)
        types, mappings = search.info.types, search.info.mappings
        names = {*types, *mappings.get("runtime", ()), *mappings.get("derived", ())}
        own_fields = added_fields(search.info.record)
        prefixes = tuple(f"{field}." for field in own_fields)
        others = tuple(sorted(name for name in names if not f"{name}.".startswith(prefixes)))
        self.hidden = [HiddenField(field, others) for field in own_fields]

    def read(self, body: Any) -> ReadBody | NotRanked:
        """Return the parsed body, with the rules that match its text, or why it is not ranked.

        The body is normalised as by OpenSearch. Raises TypeError, ValueError or AttributeError for a
        malformed body.
        """
        if not self.rescores or self.search.reranked_by:
            return NotRanked("fusion")
        if "query" not in body:
            return NotRanked("no_query")
        whole = "collapse" in body or has_tie_breaker(body)
        if reason := self.reason_of_parts(body, whole):
            return reason
        parsed = self.parse(body["query"])
        if isinstance(parsed, NotRanked):
            return parsed
        ruling = self.search.ruling(parsed.text)
        if ruling.text != parsed.text:  # a rule replaces the text, if the changed query can be parsed
            query = with_text(body["query"], parsed.text, ruling.text)
            replaced = self.parse(query)
            if isinstance(replaced, ParsedQuery) and replaced.text == ruling.text:
                body, parsed = {**body, "query": query}, replaced
        return ReadBody(body, parsed._replace(ruling=ruling if ruling.names else None), whole)

    def parse(self, query: Mapping[str, Any]) -> ParsedQuery | NotRanked:
        """Return the parsed query, or why it is not ranked. Raises as `read`.

        A query without a known scale is scored by the plain query if a rule matches its text. So pins and
        bans work from the first request.
        """
        parsed = self.queries.parse(query, self.recall)
        if parsed != NotRanked("calibrating"):
            return parsed
        unscaled = self.queries.reader.read(query)
        if isinstance(unscaled, ParsedQuery) and self.search.ruling(unscaled.text).names:
            return unscaled._replace(words=None)
        return parsed

    def reason_of_parts(self, body: Mapping[str, Any], whole: bool) -> NotRanked | None:
        """Return the reason if a part of a body other than its query prevents ranking, else None."""
        if is_by_query(body):
            return NotRanked("by_query")
        sort = body.get("sort", BEST_FIRST)
        by_place = "pit" in body or any(PLACE_SORTS.intersection(key) for key in sort)
        if sort[:1] != BEST_FIRST or (len(sort) > 1 and by_place):
            return NotRanked("sort")  # a tie-breaker may follow the score, unless all pages are read
        allowed = RANKABLE_PARTS | {"search_after"} if has_tie_breaker(body) else RANKABLE_PARTS
        if body.get("ext", {}).keys() <= {"rerank"}:  # for a later processor
            allowed |= {"ext"}
        if unknown := next((name for name in body if name not in allowed), None):
            return NotRanked(unknown) if unknown in REASONS else NotRanked("part", unknown)
        if body.get("profile"):  # it would show words of documents that the client may not see
            return NotRanked("part", "profile")
        if "min_score" in body and (self.recall == "all" or whole):
            return NotRanked("min_score")
        if body.get("size") == 0 and ("aggregations" not in body or self.recall == "lexical"):
            return NotRanked("counting")
        start, size = page_of(body)
        return NotRanked("window") if size > self.window or start + size > LARGEST_WINDOW else None

    def reason_of_words(self, request: ReadBody) -> NotRanked | None:
        """Return why the words of a text prevent its ranking; None if they do not.

        Either nothing would be found by words, neighbours or the client's query, or they need more clauses
        than the cluster allows.
        """
        parsed = request.query
        pinned = parsed.ruling is not None and parsed.ruling.pins
        finds = self.recall == "all" or parsed.words is not None or pinned
        if not (finds or self.search.has_word_of(parsed.text)):
            return NotRanked("unknown_words")
        if not request.whole:
            return None
        words = self.queries.words(parsed.text) if parsed.words is None else ()
        plain = self.search.context.words.clause_count(len(words))
        leaves = self.own_query(request).leaf_clauses + plain
        return NotRanked("clauses") if leaves > self.search.context.max_clauses else None

    def rank(
        self, request: ReadBody, boost: str | None = None, among: Sequence[str] | None = None
    ) -> RankedRequest | NotRanked:
        """Return the body that ranks a client's search, or why its words prevent that.

        If the cluster runs no scripts, the first body only finds documents; a second call with their ids as
        `among` returns the body that ranks them. `boost` is a boost formula. May send requests about words
        and scripts. Raises SettingsError for an impossible boost.
        """
        if among is not None:
            return RankedRequest(self.body(request, boost, among))
        if reason := self.reason_of_words(request):
            return reason
        if self.search.context.fusion.asks_once:
            return RankedRequest(self.body(request, boost))
        if request.query.wrappers or request.whole:
            return NotRanked("scripts")
        body = self.body(request, boost, among=())
        shards = int(self.search.info.settings.get("index.number_of_shards", 1))
        parts = {name: request.body[name] for name in FINDING_PARTS if name in request.body}
        size = min(shards * body["rescore"]["window_size"], self.window)
        display = {"_source": False, "track_total_hits": False}
        return RankedRequest({**parts, "query": body["query"], "size": size, **display}, only_finds=True)

    def body(
        self, request: ReadBody, boost: str | None = None, among: Sequence[str] | None = None
    ) -> dict[str, Any]:
        """Return the client's body with a query that may also find by vector, and a `rescore`; other parts
        are unchanged. `among` are the ids of documents to score without a script.
        """
        body, parsed, whole, reading = request
        filter, ruling = dense_filter(parsed), parsed.ruling
        if ruling:
            filter = ruling.restricted_filter(filter)
        rescoring = self.search.rescoring(
            parsed.text,
            self.candidate_count(body),
            self.own_query(request),
            filter=filter,
            reading=reading,
            boost=boost,
            among=among,
        )
        query = rescoring.finding_query if self.recall == "all" else body["query"]
        rescoring = rescoring._replace(finding_query=ruling.restricted_query(query) if ruling else query)
        if ruling:
            rescoring = rescoring.with_pins(ruling.pins, filter)
        changes_scores = boost or ruling or parsed.words or parsed.wrappers or "min_score" in body
        minimum = {}
        if self.search.at_least and not changes_scores:
            wordless = is_wordless(self.search.context, parsed.text)
            minimum = self.search.answers.min_score(self.search.at_least, wordless=wordless)
        if not (minimum or whole):
            return self.without_vector({**body, **rescoring.body()})
        changed = {**body, **rescoring.as_single_query(), **minimum}
        if isinstance(highlight := body.get("highlight"), Mapping):  # only the client's own words
            changed["highlight"] = {"highlight_query": body["query"], **highlight}
        return self.without_vector(changed)

    def candidate_count(self, body: Mapping[str, Any]) -> int:
        """Return how many candidates of each retriever a page needs.

        This depends on the size of a page, not on its start, so that pages of one size fit together.
        """
        _, size = page_of(body)
        return max(size, self.search.settings.depth)

    def own_query(self, request: ReadBody) -> SplitQuery:
        """Return the client's query split into what finds and what scores, both divided by its scale."""
        return self.queries.split_query(
            request.body["query"], request.query, recall=self.recall, single=request.whole
        )

    def unranked(self, raw: bytes) -> bytes:
        """Return a raw body that keeps vectors out of the hits; a malformed one is returned unchanged."""
        try:
            return orjson.dumps(self.without_vector(strict_json(raw)))
        except (TypeError, ValueError, AttributeError, RecursionError):
            return raw

    def without_vector(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return a body without hybridr's fields in its hits, unless they are named or written back."""
        changed = dict(body)
        if is_by_query(body) or not self.search.info.record.vector_field:
            return changed
        for hidden in self.hidden:
            changed = body_without_field(hidden, changed)
        return changed


def page_of(body: Mapping[str, Any]) -> tuple[int, int]:
    """Return start and size of a body's page. Raises ValueError."""
    try:
        start, size = int(body.get("from", 0)), int(body.get("size", 10))
    except OverflowError:  # Python's JSON reads Infinity
        raise ValueError("`from` and `size` are finite") from None
    if start < 0 or size < 0:
        raise ValueError("`from` and `size` are 0 or more")
    return start, size


def is_by_query(body: Mapping[str, Any]) -> bool:
    """Return whether a body may come from `_delete_by_query`, `_update_by_query` or `_reindex`.

    The body does not name its API, but these sort by `_doc`, request sequence numbers, or read pages of 1000.
    """
    sort = body.get("sort")
    by_place = isinstance(sort, list) and sort[:1] == [{"_doc": {"order": "asc"}}]
    numbered = bool(body.get("seq_no_primary_term")) or body.get("size") == BY_QUERY_SIZE
    return by_place or (sort is not None and numbered)


def has_tie_breaker(body: Mapping[str, Any]) -> bool:
    """Return whether hits are sorted by more than one value."""
    return len(body.get("sort", BEST_FIRST)) > 1
