"""The connection to OpenSearch or Elasticsearch: sends and repeats requests, describes indices."""

from __future__ import annotations

import json
import random
import re
import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from copy import copy
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property, partial
from threading import Event
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar
from urllib.parse import quote

import orjson

from ..errors import AccessDenied, ClusterError, DataError, NotFound, Unreachable
from .dialects import ApiRequest, Dialect, identify_product, version_in
from .dialects.plain import Native
from .embedded.state import with_address
from .failures import (
    EXISTS,
    LATE,
    NO_INDEX,
    NOBODY,
    Watch,
    error_from_answer,
    is_busy,
    reading_answer,
    shard_failure,
    shortened,
    watched_request,
)
from .record import WHOLE, IndexInfo, Scope, can_be_name, sole_index
from .routing import copies_preference, parse_index_infos, text_preference
from .settings import ClusterSettings

if TYPE_CHECKING:
    from typing_extensions import Self

    from .client import Client

RETRY_WAIT_S = (0.5, 20.0)
PLAIN = {"search_pipeline": "_none"}
MAX_KEEP_ALIVE = re.compile(r"Keep alive for request \(\w+\) is too large. It must be less than \((\w+)\)")
OWNER = "hybridr"  # in the mapping of a hidden index
ANY = "hybridr"  # the name of an alias, which need not exist
READS = {"_search", "_msearch", "_mget", "_count", "_mtermvectors", "_termvectors", "_field_caps", "_analyze"}
"""APIs that change nothing, so that a request may be repeated."""
GATEWAY = {502, 504}
T = TypeVar("T")


class Cluster:
    """A checked connection to OpenSearch or Elasticsearch.

    A request is repeated for `patience_s` seconds while the cluster is unreachable or busy. Each try waits
    `timeout_s` seconds for its answer (None: as the settings say). `settings` opened the connection, and can
    open another one. `segmented` holds names of indices and aliases whose replicas copy segments (see
    `parse_index_infos`).
    """

    def __init__(self, client: Client, url: str, *, patience_s: float = 0.0) -> None:
        self.client = client
        self.url = url
        self.patience_s = patience_s
        self.timeout_s: float | None = None
        self.stop = Event()
        self.asked_by = NOBODY
        self.watch: Watch | None = None
        self.settings: ClusterSettings | None = None
        self.dialect: Dialect = Native()
        self.view_keep_alive = "10m"
        self.segmented = set[str]()

    @classmethod
    def connect(cls, settings: ClusterSettings, *, patience_s: float = 0.0, asked_by: str = NOBODY) -> Self:
        """Open the connection and check for up to `patience_s` seconds that a supported product answers.

        `asked_by` is sent as `X-Opaque-Id` with each request, which the cluster's slow logs and tasks show.
        """
        from .client import Client  # opensearch-py is imported only to connect

        settings = with_address(settings)
        url = str(settings.url)
        cluster = cls(Client(url, settings), url, patience_s=patience_s)
        cluster.settings, cluster.asked_by = settings, asked_by
        vars(cluster)["info"], cluster.dialect = identify_product(
            lambda: cluster.info, lambda path: cluster.client.send("GET", path), url
        )
        return cluster

    def with_patience(self, patience_s: float, stop: Event | None = None) -> Cluster:
        """Return a copy that repeats requests for `patience_s` seconds, or until `stop` is set."""
        cluster = copy(self)
        cluster.patience_s = patience_s
        if stop is not None:
            cluster.stop = stop
        return cluster

    def with_timeout(self, timeout_s: float) -> Cluster:
        """Return a copy of the connection that waits at most `timeout_s` seconds for each answer."""
        cluster = copy(self)
        cluster.timeout_s = timeout_s
        return cluster

    @cached_property
    def info(self) -> dict[str, Any]:
        """Return the answer of `GET /`, which holds the server's version. Raises AccessDenied."""
        try:
            response: dict[str, Any] = self.request("GET", "/")
        except AccessDenied as error:
            if error.status != 403:
                raise
            raise AccessDenied(
                "the cluster does not tell this user its version (403), on which the ranking depends",
                hint="give the user's role cluster:monitor/main, which all of opensearch/roles/ have",
                status=403,
            ) from None
        return response

    @property
    def version(self) -> tuple[int, int, int]:
        """Return the OpenSearch version whose requests the server understands: its own, or `dialect.like`."""
        return self.dialect.like or version_in(self.info, self.url)

    @cached_property
    def nodes(self) -> list[dict[str, Any]]:
        """Return the nodes with plugins, modules and attributes; empty without the right to read them."""
        try:
            response = self.request("GET", "/_nodes/plugins,settings")
        except AccessDenied:
            return []
        with self.reading_answer("GET /_nodes"):
            return [dict(node) for node in response["nodes"].values()]

    def installed_parts(self, kind: str) -> frozenset[str]:
        """Return the "plugins" or "modules" (`kind`) of all nodes; empty without the right to read them."""
        with self.reading_answer("GET /_nodes"):
            sets = [frozenset(part["name"] for part in node.get(kind, ())) for node in self.nodes]
        return frozenset.intersection(*sets) if sets else frozenset()

    def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        params: Mapping[str, Any] | None = None,
        *,
        patience_s: float | None = None,
        every_shard: bool = False,
    ) -> Any:
        """Send one request and return the parsed answer.

        The request is repeated for `patience_s` seconds (None: the connection's value) while the cluster is
        unreachable or busy, so a write may happen twice. If a host fails, a request that only reads is
        immediately repeated once. With `every_shard`, an answer that lacks a shard raises Unreachable. Raises
        Unreachable, AccessDenied, NotFound, or ClusterError with the server's reason.
        """
        request = ApiRequest(method, path, body, params)
        native = self.dialect.translated_request(request)
        content = native.body
        if not (content is None or isinstance(content, str | bytes)):
            content = json_bytes(content)

        def send() -> Any:
            """Send the request once, and return the checked answer in OpenSearch's form."""
            with watched_request(path, self.asked_by, self.watch):
                answer = self.client.send(native.method, native.path, content, native.params, self.timeout_s)
            with self.reading_answer(f"{method} {path[:200]}"):
                if not isinstance(answer, (bool, dict)):
                    raise TypeError(f"found {type(answer).__name__}, needed an object")
                if every_shard and isinstance(answer, dict) and (failure := shard_failure(answer)):
                    raise failure
                return self.dialect.translated_answer(request, answer)

        only_reads = method in ("GET", "HEAD") or path.partition("?")[0].rpartition("/")[2] in READS

        def ask() -> Any:
            """Send the request; repeat one that only reads if a host fails."""
            try:
                return send()
            except ClusterError as failure:
                # A late answer is not repeated: the caller's time is over.
                has_failed_host = isinstance(failure, Unreachable) or failure.status in GATEWAY
                if not (only_reads and has_failed_host) or failure.kind == LATE:
                    raise
            return send()  # the client turns to another host if it has one

        return self.patiently(partial(retry_missing_index, self, ask), patience_s)

    def reading_answer(self, request: str) -> AbstractContextManager[None]:
        """Return a context for reading the answer to `request`; it raises ClusterError for a wrong form."""
        return reading_answer(self.url, request)

    def patiently(self, ask: Callable[[], T], patience_s: float | None = None) -> T:
        """Return the result of `ask`; retry for `patience_s` seconds while the cluster is down or busy."""
        deadline = time.monotonic() + (self.patience_s if patience_s is None else patience_s)
        wait_s = RETRY_WAIT_S[0]
        while True:
            try:
                return ask()
            except ClusterError as failure:
                is_temporary = isinstance(failure, Unreachable) or is_busy(failure)
                pause_s = max(failure.wait_s, wait_s * random.uniform(0.5, 1.0))
                is_late = time.monotonic() + max(failure.wait_s, wait_s) > deadline
                if not is_temporary or is_late or self.stop.wait(pause_s):
                    raise
            wait_s = min(2 * wait_s, RETRY_WAIT_S[1])

    def exists(self, name: str) -> bool:
        """Return whether an index or alias of this name exists."""
        try:
            return bool(self.request("HEAD", path_of(name)))
        except AccessDenied as error:
            if error.status != 403:
                raise
            raise AccessDenied(  # an answer to HEAD has no text
                "the cluster forbids it (403): no permissions for [indices:admin/get] on "
                f"'{shortened(name)}'",
                hint=error.hint,
                status=403,
            ) from None

    def indices(self, pattern: str) -> list[IndexInfo]:
        """Return the descriptions of the indices that a name, alias or pattern stands for; may be empty."""
        try:
            response = self.request("GET", path_of(pattern), params=ALL_STATES)
        except NotFound:
            return []
        with self.reading_answer(f"GET /{pattern}"):
            return parse_index_infos(response, self.segmented)

    def index_info(self, name: str) -> IndexInfo:
        """Return the one index behind a name or alias. Raises NotFound, or ClusterError as `sole_index`."""
        infos = self.indices(name) if name else []  # for an empty name the node would describe itself
        if not infos:
            similar = ""
            with suppress(ClusterError):
                response = self.request("GET", "/_all/_alias", patience_s=0.0)
                with self.reading_answer("GET /_all/_alias"):
                    names = {alias for index in response for alias in (index, *response[index]["aliases"])}
                candidates = sorted(alias for alias in names - {name} if not alias.startswith("."))
                similar = next(iter(get_close_matches(name, candidates, 1, 0.8)), "")
            load = f"hybridr load FOLDER --index {shlex.quote(name)}   loads documents into a new index"
            raise NotFound(
                f"no index or alias '{name}' at {self.url}",
                hint=f"did you mean {similar}?" if similar else load,
                status=404,
            )
        return sole_index(name, infos)

    def count(
        self,
        index: str | IndexInfo,
        query: Mapping[str, Any] | None = None,
        params: Mapping[str, Any] | None = None,
    ) -> int:
        """Count the documents of an index that a search can see, or those that match `query`."""
        # `_count` is not used: it fails if the default pipeline of the index does not exist.
        body = {"size": 0, "track_total_hits": True, **({"query": query} if query else {})}
        response = self.search(index, body, params, every_shard=True)
        with self.reading_answer("_search"):
            return int(response["hits"]["total"]["value"])

    def refresh(self, name: str) -> None:
        """Refresh an index, so that searches see all documents written so far."""
        self.request("POST", path_of(name, "_refresh"), every_shard=True)

    def search(
        self,
        index: str | IndexInfo,
        body: Mapping[str, Any],
        params: Mapping[str, Any] | None = None,
        *,
        every_shard: bool = False,
    ) -> dict[str, Any]:
        """Run one search of an index or alias, without the default search pipeline of the index.

        For an `IndexInfo`, only documents in its scope are searched. With `every_shard`, all shards must
        answer, by the copies that `copies_preference` chooses. Raises as `request`.
        """
        name, scope = (index, WHOLE) if isinstance(index, str) else (index.name, index.scope)
        plain = {} if "search_pipeline" in body else PLAIN
        path, settings = path_of(name, "_search"), {**plain, **scope.params, **(params or {})}
        settings |= copies_preference(self.segmented, name, settings.get("preference")) if every_shard else {}
        response = self.request("POST", path, scope.body(body), settings, every_shard=every_shard)
        return require_valid_hits(self.url, response)

    def msearch(
        self, index: str | IndexInfo, bodies: Sequence[dict[str, Any]], texts: Sequence[str] = ()
    ) -> list[dict[str, Any]]:
        """Send several searches of one index in one request and return their answers; raise the first error.

        With `texts`, one per body, searches for the same text are answered by the same copies of the shards.
        """
        name, scope = (index, WHOLE) if isinstance(index, str) else (index.name, index.scope)
        heads = [text_preference(text) for text in texts] or [{}] * len(bodies)
        lines = b"".join(
            json_bytes({**scope.params, **head}) + b"\n" + json_bytes({**PLAIN, **scope.body(body)}) + b"\n"
            for head, body in zip(heads, bodies, strict=True)
        )

        def send() -> list[dict[str, Any]]:
            """Send all searches, and return the answers or raise the first error."""
            response = self.request("POST", path_of(name, "_msearch"), lines)
            with self.reading_answer("_msearch"):
                answers = list(response["responses"])
                for answer in answers:
                    if "error" in answer:
                        raise error_from_answer(int(answer.get("status", 500)), answer["error"])
                if len(answers) != len(bodies):
                    raise ValueError(f"{len(answers)} answers to {len(bodies)} searches")
            return [require_valid_hits(self.url, answer) for answer in answers]

        return self.patiently(partial(retry_missing_index, self, send))

    @contextmanager
    def point_in_time(
        self, name: str, *, preference: str | None = None, scope: Scope = WHOLE
    ) -> Iterator[str]:
        """Open a point in time (a frozen view) of an index for the length of the block and yield its id.

        The view has the routing of `scope`, but not its filter: each search must add that. The cluster keeps
        the view for `view_keep_alive` after each search, or as long as its settings allow.
        """
        params = {"allow_partial_pit_creation": "false", **scope.params}
        params |= copies_preference(self.segmented, name, preference)
        path = path_of(name, "_search", "point_in_time")
        try:
            response = self.request("POST", path, params=params | {"keep_alive": self.view_keep_alive})
        except ClusterError as error:
            if (allowed := MAX_KEEP_ALIVE.search(error.message)) is None:
                raise
            self.view_keep_alive = allowed[1]
            response = self.request("POST", path, params=params | {"keep_alive": self.view_keep_alive})
        with self.reading_answer("_search/point_in_time"):
            pit = str(response["pit_id"])
        try:
            yield pit
        finally:
            with suppress(ClusterError):  # it expires anyway; its error must not hide an error of the block
                self.request("DELETE", "/_search/point_in_time", {"pit_id": [pit]}, patience_s=0.0)

    def wait_until_usable(self, name: str) -> None:
        """Wait until all primary shards of an index are started."""
        # In the path, because the client keeps a parameter `timeout` for itself.
        query = "?wait_for_status=yellow&timeout=60s"
        self.request("GET", path_of("_cluster", "health", name) + query)


def retry_missing_index(cluster: Cluster, ask: Callable[[], T]) -> T:
    """Call `ask`, and once more if it found no index: a node that just started may not know its indices yet.

    Before the second call, a request for an alias waits until such a node knows them.
    """
    try:
        if (answer := ask()) is not False:  # HEAD answers False for a missing index
            return answer
    except NotFound as error:
        if error.kind != NO_INDEX:
            raise
    try:
        cluster.client.send("GET", path_of("_alias", ANY), None, None, cluster.timeout_s)
    except Unreachable:
        raise
    except ClusterError:  # without the right, without such an alias, or where any index is blocked
        pass
    return ask()


def require_valid_hits(url: str, answer: dict[str, Any]) -> dict[str, Any]:
    """Return a search's answer unchanged. Raises ClusterError without `hits` or for a non-string id."""
    with reading_answer(url, "_search"):
        if not all(isinstance(hit.get("_id", ""), str) for hit in answer["hits"]["hits"]):
            raise TypeError("a hit whose id is not a string")
    return answer


def hidden_index_body(properties: Mapping[str, Any], **settings: Any) -> dict[str, Any]:
    """Return the settings and mapping for creating a hidden index of one shard with these fields only."""
    index = {"hidden": True, "number_of_shards": 1, "auto_expand_replicas": "0-1", **settings}
    mappings = {"dynamic": False, "properties": properties, "_meta": {"owner": OWNER}}
    return {"settings": {"index": index}, "mappings": mappings}


def make_index(cluster: Cluster, index: str, body: Mapping[str, Any]) -> None:
    """Create an index; do nothing if it exists already. Raises AccessDenied."""
    try:
        cluster.request("PUT", path_of(index), body)
    except ClusterError as error:
        if error.kind != EXISTS:
            raise


def drop_index(cluster: Cluster, index: str) -> bool:
    """Delete an index and return whether it existed. Raises AccessDenied."""
    try:
        cluster.request("DELETE", path_of(index))
    except NotFound:
        return False
    return True


def path_of(*parts: str) -> str:
    """Return the URL path made of these parts, percent-encoded. Raises DataError for `.` and `..`."""
    if not {".", ".."}.isdisjoint(parts):
        raise DataError("'.' and '..' are not names")
    return "/" + "/".join(quote(part, safe=",*", errors="replace") for part in parts)


def json_bytes(body: Any) -> bytes:
    """Return a request body as JSON bytes; NumPy arrays are written as lists."""
    try:
        return orjson.dumps(body, option=orjson.OPT_SERIALIZE_NUMPY)
    except TypeError:  # half of a surrogate pair, numbers beyond 64 bits, or keys that are not strings
        return json.dumps(body, default=lambda array: array.tolist()).encode()


ALL_STATES = {"flat_settings": "true", "expand_wildcards": "all"}
PATTERNS = {**ALL_STATES, "ignore_unavailable": "true", "allow_no_indices": "true"}


@dataclass(frozen=True)
class IndexView:
    """A snapshot of index descriptions that answers `indices` and `index_info` without a request.

    For a name outside the snapshot both ask the cluster; `index_info` also asks it for a name without index.
    """

    cluster: Cluster
    names: tuple[str, ...]
    infos: tuple[IndexInfo, ...]
    requested_at: float
    """Time of the request, by `time.monotonic`."""

    @classmethod
    def of(cls, cluster: Cluster, *names: str) -> IndexView:
        """Fetch the indices of these names, aliases and patterns (`docs-*`) in one request.

        Names that no index can have are skipped.
        """
        requested_at = time.monotonic()
        names = tuple(name for name in dict.fromkeys(names) if can_be_name(name.removesuffix("*")))
        if not names:
            return cls(cluster, (), (), requested_at)
        path = path_of(",".join(names))
        response = cluster.request("GET", path, params=PATTERNS)
        with cluster.reading_answer(f"GET {path}"):
            infos = tuple(parse_index_infos(response, cluster.segmented))
        return cls(cluster, names, infos, requested_at)

    def fetch_again(self) -> IndexView:
        """Return a new snapshot for the same names."""
        return IndexView.of(self.cluster, *self.names)

    def covers(self, pattern: str) -> bool:
        """Return whether this snapshot has all indices that a name, alias or pattern stands for."""
        prefixes = tuple(name.removesuffix("*") for name in self.names if name.endswith("*"))
        return pattern in self.names or pattern.startswith(prefixes)

    def indices(self, pattern: str) -> list[IndexInfo]:
        """Return the descriptions of the indices that a name, alias or pattern stands for."""
        if not self.covers(pattern):
            return self.cluster.indices(pattern)
        prefix = pattern.removesuffix("*")
        return [
            info
            for info in self.infos
            if pattern in (info.name, *info.aliases)
            or (prefix != pattern and any(name.startswith(prefix) for name in (info.name, *info.aliases)))
        ]

    def index_info(self, name: str) -> IndexInfo:
        """Return the description of the one index behind a name or alias. Raises as `Cluster.index_info`."""
        infos = self.indices(name) if self.covers(name) else []
        return sole_index(name, infos) if infos else self.cluster.index_info(name)


IndexLookup: TypeAlias = Cluster | IndexView
"""An object with the methods `indices` and `index_info`."""
