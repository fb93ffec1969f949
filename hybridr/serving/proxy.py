"""The proxy: the cluster's own `_search` and `_msearch` for unchanged clients.

Requests go to the cluster with the client's own rights. Searches of the one index that the server follows are
ranked on the way, as by `deploy --way transparent`; if anything prevents that, they are passed on unchanged.

URLs of searches are parsed by strict rules and written again from the parsed parts: exactly what was checked
is sent to the cluster. No character of a client's URL is passed on directly. So no other parser (h11,
Starlette, a proxy before the cluster) can see another path or parameter in it.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
import zlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, NamedTuple, cast
from urllib.parse import quote, unquote_to_bytes

import orjson
from fastapi import FastAPI, Request, Response

from ..cluster.dialects import ApiRequest
from ..cluster.record import WHOLE, Scope, scope_of
from ..cluster.relay import ClientRequest, ClusterAnswer, Relay, forwarded_headers
from ..errors import ClusterError
from ..search.clauses import NotRanked
from .doorway import TOKEN_HEADER
from .refusals import is_of_another_index, is_refusal, refused_places
from .requests import BAD_REQUEST, Refused, UnreadRoute, not_ranked_reason
from .rewriting.rewriting import (
    BODY_PARAMETERS,
    MOVED_PARAMETERS,
    BodyRanking,
    RankedRequest,
    normalised_body,
    reason_of_path,
    source_parameter,
    strict_json,
)
from .search_threads import client_result
from .snapshots import IndexSnapshot, Searches
from .telemetry import error_facts, note, note_ranking

Api = Literal["_search", "_msearch"]

SENT_PATH = re.compile(rb"(?:/([A-Za-z0-9._~!$&'()*+,;=:@%-]+))?/(_m?search)/*")
"""A path in a request: one segment for the index or none, then the API. No `?`, `#`, `//` or `\\`.
The cluster drops slashes at the end."""
SENT_QUERY = re.compile(rb"[A-Za-z0-9._~!$&'()*+,;=:@%/?\[\]{}|\"<>^`\\-]*")
"""Parameters as they are sent. A `#` would end them for some readers and not for others."""
BAD_ESCAPE = re.compile(rb"%(?![0-9A-Fa-f]{2})")
CONTROL = "\x00-\x1f\x7f-\x9f"
INDEX = re.compile(
    rf"""(?!\.\.?$)(?!_(?!all$))
    (?: [^\s{CONTROL}/\\?\#"<>|%,]+
      | -?<(?: [^\s{CONTROL}/\\?\#"<>%,] | /[yMwdhHms](?![\w.]) )+>   # date math, whose `/d` rounds
    )""",
    re.VERBOSE,
)
"""One name or pattern of indices. `_all` alone begins with `_`: all others are APIs of the cluster."""
PARAMETER = re.compile(r"[A-Za-z_][\w.-]{0,99}", re.ASCII)
PATH_PARAMETERS = frozenset(("index", "type", "id"))
"""Names that are part of the path; as parameters they would name another index."""


@dataclass(frozen=True)
class SearchAddress:
    """The URL of a search: index names as the cluster reads them, API, decoded parameters.

    Raises ValueError for invalid names and parameters.
    """

    index: str
    api: Api
    params: Mapping[str, str]

    def __post_init__(self) -> None:
        if self.index and not all(INDEX.fullmatch(name) for name in self.index.split(",")):
            raise ValueError("this is no name of an index")
        for name in self.params:
            if not PARAMETER.fullmatch(name) or name in PATH_PARAMETERS:
                raise ValueError(f"'{name[:100]}' is no parameter of a search")

    @property
    def target(self) -> str:
        """Return path and query string of the HTTP request."""
        path = f"/{quote(self.index, safe='*,:')}/{self.api}" if self.index else f"/{self.api}"
        pairs = (f"{name}={quote(value, safe='*,:/')}" for name, value in self.params.items())
        return f"{path}?{'&'.join(pairs)}" if self.params else path

    def without(self, names: Collection[str]) -> SearchAddress:
        """Return the address without some of its parameters."""
        remaining = {name: value for name, value in self.params.items() if name not in names}
        return SearchAddress(self.index, self.api, remaining)


def read_address(raw_path: bytes, query: bytes) -> SearchAddress:
    """Return the parsed URL of a request. Raises Refused for one that is no search.

    All is read as by the cluster: commas at the end of the names are dropped; `&` and `;` separate
    parameters, `+` is a space, and the last of repeated values counts.
    """
    path = SENT_PATH.fullmatch(raw_path)
    if path is None or BAD_ESCAPE.search(raw_path):
        raise not_an_address()
    if not SENT_QUERY.fullmatch(query) or BAD_ESCAPE.search(query):
        raise Refused(BAD_REQUEST, "the parameters of the address cannot be read", "percent-encode them")
    try:
        sent_names = unquote_to_bytes(path[1] or b"").decode()
    except UnicodeDecodeError:
        raise not_an_address() from None
    pairs = [part.partition(b"=") for part in re.split(b"[&;]", query) if part]
    params = {decoded(name): decoded(value) for name, _, value in pairs if name}
    try:
        names = sent_names.rstrip(",") or sent_names
        return SearchAddress(names, cast("Api", path[2].decode()), params)
    except ValueError as error:
        raise Refused(404, str(error), "/INDEX/_search or /INDEX/_msearch") from None


def decoded(part: bytes) -> str:
    """Return a decoded name or value of a parameter; invalid UTF-8 is replaced, as by the cluster."""
    return unquote_to_bytes(part.replace(b"+", b" ")).decode(errors="replace")


def not_an_address() -> Refused:
    """Return the Refused error for a path that is no search."""
    return Refused(404, "this is no address of a search", "/INDEX/_search or /INDEX/_msearch")


PLAIN_NAME = re.compile(r"[^_\-+*,<>:/?#\s][^*,<>:/?#\s]*")
"""A name that can be of one index."""
NAMES_KEPT_S, MAX_NAMES = 2.0, 1_000
MAX_SEARCHES = 100  # of one `_msearch` that are ranked
AWS_SIGNATURE = "AWS4-"
SHARDS_FAILED = (429, 503)  # beside refusals
SCOPE_PARAMETERS = frozenset(
    "routing preference search_type ignore_unavailable ignore_throttled allow_no_indices expand_wildcards "
    "allow_partial_search_results".split()
)
"""Parameters of a search that say which documents it asks."""
PLAIN_JSON = "application/json"
STATUSES = range(200, 600)
HEADER_NAME = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
HEADER_VALUE = re.compile(rb"([^\x00-\x20\x7f]([^\x00-\x1f\x7f]|\t)*)?")


def add_proxy(app: FastAPI, proxy: Proxy) -> None:
    """Add the routes of the cluster's searches, and of the OPTIONS request that a browser sends first."""
    for path, answer in (
        ("/{index:path}/_search", proxy.search),
        ("/{index:path}/_msearch", proxy.msearch),
        ("/_search", proxy.search),
        ("/_msearch", proxy.msearch),
    ):
        summary = f"{path.rpartition('/')[2]} of the cluster, ranked, with its client's own rights"
        add = partial(app.router.add_api_route, path, route_class_override=UnreadRoute)
        add(answer, methods=["GET", "POST"], summary=summary)
        add(proxy.options, methods=["OPTIONS"], include_in_schema=False)


class ClientSearch(NamedTuple):
    """One search of a client: index name, URL parameters and body."""

    name: str
    params: Mapping[str, str]
    raw: bytes

    def body(self) -> dict[str, Any]:
        """Return the body as OpenSearch normalises it; {} without one. Raises ValueError."""
        body = strict_json(self.raw) if self.raw.strip() else {}
        if not isinstance(body, dict):
            raise ValueError("a body is an object")
        return normalised_body(body, self.params)


class RewriteResult(NamedTuple):
    """The outcome of ranking a search: the new body (None if unchanged), the reason why it is not ranked, and
    the name of the index that it was ranked for.
    """

    body: bytes | None
    reason: NotRanked | None = None
    ranked_for: str = ""


class Proxy:
    """Passes searches on to the cluster; those of the followed index are ranked."""

    def __init__(self, searches: Searches, relay: Relay) -> None:
        self.searches, self.relay, self.scopes = searches, relay, NameScopes(searches)
        self.settings, login = searches.serving, searches.cluster.settings
        self.has_credentials = login is not None and bool(
            login.user or login.api_key or login.aws_region or login.client_cert
        )  # the server logs in to the cluster, so a client without credentials is an anonymous one

    async def options(self, request: Request) -> Response:
        """Answer OPTIONS (allowed methods and origins) as the cluster does."""
        _, upstream = await request_to_relay(request)
        return response_of(await self.send(request, upstream))

    async def search(self, request: Request) -> Response:
        """Answer `_search`."""
        address, upstream = await request_to_relay(request)
        bare, search = search_at(address, upstream, self.settings.max_body_bytes)
        rewritten = await self.rewrite(request, upstream, search)
        if rewritten.body is None:
            return cluster_response(await self.send(request, upstream), rewritten.reason, request)
        changed = with_body(upstream if upstream.body else upstream.without("content-type"), rewritten.body)
        bare = bare.without(MOVED_PARAMETERS) if rewritten.reason is None else bare
        if hides_failures := rewritten.reason is None and "filter_path" in bare.params:
            bare = replace(bare, params={**bare.params, "allow_partial_search_results": "false"})
        answer, reason = await self.send(request, changed._replace(target=bare.target)), rewritten.reason
        plain = answer._replace(body=unzipped(answer, self.settings.max_body_bytes))
        if rewritten.ranked_for and is_of_another_index(plain.body, {0: rewritten.ranked_for}):
            answer, reason = await self.send(request, upstream), self.forget_alias()
        elif is_refusal(plain) or (hides_failures and answer.status in SHARDS_FAILED):
            answer, reason = await self.send(request, upstream), reason or NotRanked("failed")
        return cluster_response(answer, reason, request)

    async def msearch(self, request: Request) -> Response:
        """Answer `_msearch`; each of its searches is ranked or passed on separately."""
        address, upstream = await request_to_relay(request)
        try:
            searches = searches_in(unzipped(upstream, self.settings.max_body_bytes), address.index)
        except (ValueError, TypeError, AttributeError, RecursionError):
            searches = []
        if not 0 < len(searches) <= MAX_SEARCHES:
            return cluster_response(await self.send(request, upstream), NotRanked("unreadable"), request)
        rewritten = await asyncio.gather(*(self.rewrite(request, upstream, search) for _, search in searches))
        answer = await self.send(request, with_searches(upstream, searches, rewritten))
        changes = {place for place, result in enumerate(rewritten) if result.body is not None}
        failed = dict.fromkeys(refused_places(answer, changes), NotRanked("failed"))
        ranked_for = {at: result.ranked_for for at, result in enumerate(rewritten) if result.ranked_for}
        if ranked_for and is_of_another_index(answer.body, ranked_for):
            failed = dict.fromkeys(ranked_for, self.forget_alias()) | failed
        if failed:  # the others are ranked all the same
            rewritten = [
                RewriteResult(None, result.reason or failed[place]) if place in failed else result
                for place, result in enumerate(rewritten)
            ]
            answer = await self.send(request, with_searches(upstream, searches, rewritten))
        for result in rewritten if answer.status < BAD_REQUEST else ():
            self.searches.now.embedder.metrics.count_ranking(result.reason)
        note(request, rewritten=sum(result.reason is None for result in rewritten), of=len(rewritten))
        return response_of(answer)

    def forget_alias(self) -> NotRanked:
        """Forget all names, and have the index checked soon, because an alias has moved; return the reason
        why a search for its former index is not ranked.
        """
        self.scopes.forget()
        self.searches.check_soon()
        return NotRanked("another_index")

    async def send(self, request: Request, upstream: ClientRequest) -> ClusterAnswer:
        """Return the cluster's answer; close the connection if the client leaves or time is up."""
        return await client_result(request, self._send(upstream), self.relay.bounds.seconds)

    async def _send(self, upstream: ClientRequest) -> ClusterAnswer:
        async with self.searches.threads.place():
            return await self.relay.send(upstream)

    async def rewrite(self, request: Request, upstream: ClientRequest, search: ClientSearch) -> RewriteResult:
        """Return the ranked body of a search, or the reason why it is not ranked; raises nothing."""
        snapshot, timeout_s = self.searches.now, self.settings.rank_timeout_s
        ranking = snapshot.rankings[self.settings.proxy or "lexical"]
        is_ours = False
        ranked: bytes | NotRanked = NotRanked("filtered_alias")
        try:
            if reason := self.reason_to_pass_on(upstream, search):
                return RewriteResult(None, reason)
            scope = self.scopes.cached_scope(search.name, snapshot)
            if scope is None:
                scope = await client_result(request, self.scopes.scope_of(search.name, snapshot), timeout_s)
            if scope is None:
                return RewriteResult(None, NotRanked("another_index"))
            if reason := reason_of_path("_search", search.params):
                return RewriteResult(None, reason)
            is_ours = True
            if scope == snapshot.info.scope:
                ranked = await self.ranked_body(request, upstream, search, snapshot, ranking)
        except Exception as error:
            note(request, **error_facts(error))
            ranked = not_ranked_reason(error)
        if not isinstance(ranked, NotRanked):
            return RewriteResult(ranked, ranked_for=snapshot.info.name)
        return self.unranked(search, ranking, ranked) if is_ours else RewriteResult(None, ranked)

    async def ranked_body(
        self,
        request: Request,
        upstream: ClientRequest,
        search: ClientSearch,
        snapshot: IndexSnapshot,
        ranking: BodyRanking,
    ) -> bytes | NotRanked:
        """Return the body that ranks a search, or the reason why it is not ranked.

        If the cluster runs no scripts, the hits of a first search are ranked.
        """
        timeout_s = self.settings.rank_timeout_s
        reading = snapshot.read_body(ranking, search.body(), timeout_s)
        parsed = await client_result(request, reading, timeout_s)
        if isinstance(parsed, NotRanked):
            return parsed
        ranked = await snapshot.rank(ranking, parsed)
        if isinstance(ranked, RankedRequest) and ranked.only_finds:
            doc_ids = await self.find(request, upstream, search, ranked.body)
            ranked = await snapshot.threads.run(partial(ranking.rank, parsed, among=doc_ids))
        return ranked if isinstance(ranked, NotRanked) else self.translated(search, ranked.body)

    def reason_to_pass_on(self, upstream: ClientRequest, search: ClientSearch) -> NotRanked | None:
        """Return the reason to pass a search on unread, for any index; None if there is none."""
        if upstream.header("authorization").startswith(AWS_SIGNATURE):
            return NotRanked("signed")
        if self.has_credentials and not upstream.header("authorization"):
            return NotRanked("anonymous")
        if "scroll" in search.params:
            return NotRanked("scroll")
        return (
            NotRanked("unreadable")
            if upstream.body and "json" not in upstream.header("content-type")
            else None
        )

    def unranked(self, search: ClientSearch, ranking: BodyRanking, reason: NotRanked) -> RewriteResult:
        """Return the client's own search, changed only to keep vectors out of its answer."""
        display = [name for name in search.params if name.startswith(("_source", "stored"))]
        if MOVED_PARAMETERS.intersection(search.params) and display:
            return RewriteResult(None, reason)
        raw = search.raw or b"{}"
        body = ranking.unranked(raw)
        return RewriteResult(None if body == raw else body, reason)

    def translated(self, search: ClientSearch, body: Mapping[str, Any]) -> bytes:
        """Return a body in the form that the product accepts."""
        target = SearchAddress(search.name, "_search", {}).target
        search_request = ApiRequest("POST", target, body, None)
        return orjson.dumps(self.searches.cluster.dialect.translated_request(search_request).body)

    async def find(
        self, request: Request, upstream: ClientRequest, search: ClientSearch, body: Mapping[str, Any]
    ) -> Sequence[str]:
        """Return the ids that a first search by the client finds. Raises ValueError if it is refused."""
        parameters = {name: value for name, value in search.params.items() if name in SCOPE_PARAMETERS}
        target = SearchAddress(search.name, "_search", parameters).target
        answer = await self.send(request, json_search(upstream, target, self.translated(search, body)))
        if answer.status >= BAD_REQUEST:
            raise ValueError(f"the first search is a {answer.status}")
        return [hit["_id"] for hit in orjson.loads(answer.body)["hits"]["hits"]]


class NameScopes:
    """Looks up the part of the followed index that a name covers, and caches it for two seconds."""

    def __init__(self, searches: Searches) -> None:
        self.searches = searches
        self._known: dict[tuple[str, str], tuple[float, Scope | None]] = {}

    def forget(self) -> None:
        """Empty the cache."""
        self._known.clear()

    def cached_scope(self, name: str, snapshot: IndexSnapshot) -> Scope | None:
        """Return the cached scope of a name in the index; None if it is not cached, or of another index."""
        if name == snapshot.info.name:
            return WHOLE
        until, scope = self._known.get((name, snapshot.info.uuid), (0.0, None))
        return scope if time.monotonic() < until else None

    async def scope_of(self, name: str, snapshot: IndexSnapshot) -> Scope | None:
        """Return the scope of a name in the index; None for another index or several."""
        if not PLAIN_NAME.fullmatch(name):
            return None
        if (cached := self.cached_scope(name, snapshot)) is not None:
            return cached
        key, now = (name, snapshot.info.uuid), time.monotonic()
        until, scope = self._known.get(key, (0.0, None))
        if now < until:
            return scope
        if len(self._known) > MAX_NAMES:
            self._known.clear()
        if until:  # during the look-up, other requests use the expired scope
            self._known[key] = now + NAMES_KEPT_S, scope
        return await self.searches.ranking_threads.run(partial(self._read_scope, name, snapshot.info.uuid))

    def _read_scope(self, name: str, uuid: str) -> Scope | None:
        """Ask the cluster for the scope of a name and cache it, even if the client has left meanwhile."""
        infos = self.searches.cluster.indices(name)
        scope = scope_of(name, infos[0]) if [info.uuid for info in infos] == [uuid] else None
        self._known[name, uuid] = time.monotonic() + NAMES_KEPT_S, scope
        return scope


async def request_to_relay(request: Request) -> tuple[SearchAddress, ClientRequest]:
    """Return address and request to pass on: with a normalised URL, without hybridr's token, and otherwise
    unchanged.

    Raises Refused for a request that is no search.
    """
    address = read_address(request.scope["raw_path"], request.scope["query_string"])
    pairs = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in request.headers.raw]
    headers = tuple(pair for pair in forwarded_headers(pairs) if pair[0].lower() != TOKEN_HEADER.decode())
    return address, ClientRequest(request.method, address.target, headers, await request.body())


def unzipped(upstream: ClientRequest | ClusterAnswer, limit: int) -> bytes:
    """Return a body, unzipped if it is gzip; unchanged if that fails, or gives more than `limit` bytes."""
    if upstream.header("content-encoding") != "gzip":
        return upstream.body
    unpacking = zlib.decompressobj(zlib.MAX_WBITS | 16)
    try:
        unpacked = unpacking.decompress(upstream.body, limit)
    except zlib.error:
        return upstream.body
    return upstream.body if unpacking.unconsumed_tail else unpacked


def search_at(
    address: SearchAddress, upstream: ClientRequest, limit: int
) -> tuple[SearchAddress, ClientSearch]:
    """Return the search of a `_search` request, and its address without a body in the parameter `source`."""
    raw, source = unzipped(upstream, limit), source_parameter(address.params)
    if source is not None and not upstream.body:
        raw, address = source.encode(), address.without(BODY_PARAMETERS)
    return address, ClientSearch(address.index, address.params, raw)


def with_body(upstream: ClientRequest, body: bytes) -> ClientRequest:
    """Return the request with another body, not compressed."""
    changed = upstream.without("content-encoding")._replace(body=body)
    if changed.header("content-type"):
        return changed
    return changed._replace(headers=(*changed.headers, ("content-type", PLAIN_JSON)))


def json_search(upstream: ClientRequest, target: str, body: bytes) -> ClientRequest:
    """Return a search request with a client's headers and so with its rights, to be answered in JSON; in that
    of a version of Elasticsearch if the client names one (`compatible-with=8`).
    """
    kind = upstream.header("content-type").replace("x-ndjson", "json") or PLAIN_JSON
    search = with_body(upstream, body).without("accept-encoding", "accept", "content-type")
    accepted = ("content-type", kind), ("accept", kind.partition("; charset")[0])
    return search._replace(method="POST", target=target, headers=(*search.headers, *accepted))


def searches_in(raw: bytes, index: str) -> list[tuple[bytes, ClientSearch]]:
    """Return the searches of an `_msearch`, each with its header line, which may name another index.

    Raises ValueError, TypeError or AttributeError for a malformed request.
    """
    lines = raw.split(b"\n")
    lines = lines[:-1] if lines and not lines[-1].strip() else lines
    searches: list[tuple[bytes, ClientSearch]] = []
    for head, body in zip(lines[::2], lines[1::2], strict=True):
        header = json.loads(head) if head.strip() else {}
        index_names = header.pop("index", None) or header.pop("indices", None) or index
        name = ",".join(index_names) if isinstance(index_names, list) else str(index_names)
        params = {key: str(value) for key, value in header.items()}
        searches.append((head, ClientSearch(name, params, body)))
    return searches


def with_searches(
    upstream: ClientRequest,
    searches: Sequence[tuple[bytes, ClientSearch]],
    rewritten: Sequence[RewriteResult],
) -> ClientRequest:
    """Return an `_msearch` with the rewritten bodies, to be answered uncompressed; unchanged without any."""
    if all(result.body is None for result in rewritten):
        return upstream
    lines: list[bytes] = []
    for (head, search), result in zip(searches, rewritten, strict=True):
        lines += [head, search.raw if result.body is None else result.body]
    return with_body(upstream, b"".join(b"%b\n" % line for line in lines)).without("accept-encoding")


def cluster_response(answer: ClusterAnswer, reason: NotRanked | None, request: Request) -> Response:
    """Return the cluster's answer, counted in `/metrics` if the client may read it."""
    note_ranking(request, reason)
    if answer.status < BAD_REQUEST:
        request.app.state.embedder.metrics.count_ranking(reason)
    return response_of(answer)


def response_of(answer: ClusterAnswer) -> Response:
    """Return the cluster's answer. Raises ClusterError for headers that cannot be passed on."""
    pairs = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in answer.headers]
    readable = all(HEADER_NAME.fullmatch(name) and HEADER_VALUE.fullmatch(value) for name, value in pairs)
    if answer.status not in STATUSES or not readable:
        raise ClusterError("the cluster's answer has a status or a header that cannot be passed on")
    response = Response(answer.body, answer.status)
    response.raw_headers = [*pairs, (b"content-length", str(len(answer.body)).encode())]
    return response
