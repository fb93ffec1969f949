"""The connection to OpenSearch: requests with patience, and what a cluster tells of its indices."""

from __future__ import annotations

import json
import random
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from copy import copy
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property, partial
from threading import Event
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar
from urllib.parse import quote

import orjson

from ..errors import AccessDenied, ClusterError, DataError, NotFound, Unreachable
from .dialects import Dialect, Sent
from .dialects.plain import Native
from .failures import (
    LATE,
    NO_INDEX,
    NOBODY,
    Watch,
    error_of,
    is_busy,
    sending,
    shard_failure,
    shortened,
    understood,
)
from .greeting import addressed, greeted, version_in
from .record import WHOLE, IndexInfo, Scope, as_described, can_be_name, sole_index
from .routing import same_copies
from .settings import ClusterSettings

if TYPE_CHECKING:
    from typing_extensions import Self

    from .client import Client

RETRY_WAIT_S = (0.5, 20.0)
PLAIN = {"search_pipeline": "_none"}
MOST_KEEP_ALIVE = re.compile(r"Keep alive for request \(\w+\) is too large. It must be less than \((\w+)\)")
ANY = "hybridr"  # alias, whether it is there or not
READS = {"_search", "_msearch", "_mget", "_count", "_mtermvectors", "_termvectors", "_field_caps", "_analyze"}
"""APIs that change nothing, however often they are asked."""
GATEWAY = {502, 504}
T = TypeVar("T")


class Cluster:
    """A checked connection to OpenSearch or Elasticsearch.

    `patience_s` says for how many seconds a request waits for a cluster that is away or busy; `hurried`, for
    how many one try waits for its answer. By its `settings` others connect.
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

    @classmethod
    def connect(cls, settings: ClusterSettings, *, patience_s: float = 0.0, asked_by: str = NOBODY) -> Self:
        """Open the connection and check that a supported product answers, for `patience_s` seconds.

        `asked_by` is the `X-Opaque-Id` of its requests, which stands in the cluster's slow logs and tasks.
        """
        from .client import Client  # what never connects needs no package of a cluster

        settings = addressed(settings)
        url = str(settings.url)
        cluster = cls(Client(url, settings), url, patience_s=patience_s)
        cluster.settings, cluster.asked_by = settings, asked_by
        vars(cluster)["info"], cluster.dialect = greeted(
            lambda: cluster.info, lambda path: cluster.client.send("GET", path), url
        )
        return cluster

    def patient(self, patience_s: float, stop: Event | None = None) -> Cluster:
        """Return the same connection with another patience, which ends once `stop` is set."""
        cluster = copy(self)
        cluster.patience_s = patience_s
        if stop is not None:
            cluster.stop = stop
        return cluster

    def hurried(self, timeout_s: float) -> Cluster:
        """Return the same connection with a limit to each answer; the server ends what nobody waits for."""
        cluster = copy(self)
        cluster.timeout_s = timeout_s
        return cluster

    @cached_property
    def info(self) -> dict[str, Any]:
        """Return the answer of `GET /`. Raises AccessDenied: how scores are scaled depends on the version."""
        try:
            response: dict[str, Any] = self.request("GET", "/")
        except AccessDenied as error:
            if error.status != 403:
                raise
            raise AccessDenied(
                "the cluster does not tell this user its version (403), on which the ranking depends",
                hint="give the user's role cluster:monitor/main, as all of opensearch/roles/ do",
                status=403,
            ) from None
        return response

    @property
    def version(self) -> tuple[int, int, int]:
        """Return the server's version, or that of the OpenSearch which another product is like."""
        return self.dialect.like or version_in(self.info, self.url)

    @cached_property
    def nodes(self) -> list[dict[str, Any]]:
        """List the nodes with their plugins, modules and attributes; empty when that is forbidden."""
        try:
            response = self.request("GET", "/_nodes/plugins,settings")
        except AccessDenied:
            return []
        with understood(self.url, "GET /_nodes"):
            return [dict(node) for node in response["nodes"].values()]

    def parts(self, kind: str) -> frozenset[str]:
        """Name the "plugins" or "modules" that every node has; none where this user may not know them."""
        with understood(self.url, "GET /_nodes"):
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
        """Send one request and give the parsed answer.

        With `patience_s` (None: the connection's own) it is sent again to a cluster that is away or busy; the
        first time it may have been carried out all the same. With `every_shard` an answer that lacks a shard
        counts as none. What only reads is sent once more at once where a host fails. Raises Unreachable,
        AccessDenied, NotFound, or ClusterError with the server's reason.
        """
        request = Sent(method, path, body, params)
        sent = self.dialect.sent(request)
        content = sent.body if sent.body is None or isinstance(sent.body, str | bytes) else as_json(sent.body)

        def send() -> Any:
            with sending(path, self.asked_by, self.watch):
                answer = self.client.send(sent.method, sent.path, content, sent.params, self.timeout_s)
            with understood(self.url, f"{method} {path[:200]}"):
                if not isinstance(answer, (bool, dict)):
                    raise TypeError(f"found {type(answer).__name__}, needed an object")
                if every_shard and isinstance(answer, dict) and (failure := shard_failure(answer)):
                    raise failure
                return self.dialect.answered(request, answer)

        reads = method in ("GET", "HEAD") or path.partition("?")[0].rpartition("/")[2] in READS

        def ask() -> Any:
            try:
                return send()
            except ClusterError as failure:
                # Who did not answer in time is not asked again: the time that somebody waits is up.
                is_away = isinstance(failure, Unreachable) or failure.status in GATEWAY
                if not (reads and is_away) or failure.kind == LATE:
                    raise
            return send()  # the client turns to another host if it has one

        return self.patiently(partial(recovered, self, ask), patience_s)

    def patiently(self, ask: Callable[[], T], patience_s: float | None = None) -> T:
        """Call `ask` until the cluster is there and not busy, for `patience_s` seconds."""
        deadline = time.monotonic() + (self.patience_s if patience_s is None else patience_s)
        wait_s = RETRY_WAIT_S[0]
        while True:
            try:
                return ask()
            except ClusterError as failure:
                again = isinstance(failure, Unreachable) or is_busy(failure)
                pause_s = max(failure.wait_s, wait_s * random.uniform(0.5, 1.0))
                late = time.monotonic() + max(failure.wait_s, wait_s) > deadline
                if not again or late or self.stop.wait(pause_s):
                    raise
            wait_s = min(2 * wait_s, RETRY_WAIT_S[1])

    def exists(self, name: str) -> bool:
        """Return whether an index or alias of this name exists."""
        try:
            return bool(self.request("HEAD", path_of(name)))
        except AccessDenied as error:
            if error.status != 403:
                raise
            raise AccessDenied(  # an answer to HEAD has no words
                "the cluster forbids it (403): no permissions for [indices:admin/get] on "
                f"'{shortened(name)}'",
                hint=error.hint,
                status=403,
            ) from None

    def indices(self, pattern: str) -> list[IndexInfo]:
        """Describe every index that a name, alias or pattern stands for; empty when there is none."""
        try:
            response = self.request("GET", path_of(pattern), params={"flat_settings": "true"})
        except NotFound:
            return []
        with understood(self.url, f"GET /{pattern}"):
            return [as_described(name, index) for name, index in sorted(response.items())]

    def index_info(self, name: str) -> IndexInfo:
        """Describe the one index behind a name or alias. Raises NotFound, or ClusterError as `sole_index`."""
        infos = self.indices(name) if name else []  # of no name the node tells about itself
        if not infos:
            near = ""
            with suppress(ClusterError):
                response = self.request("GET", "/_all/_alias", patience_s=0.0)
                with understood(self.url, "GET /_all/_alias"):
                    names = {alias for index in response for alias in (index, *response[index]["aliases"])}
                candidates = sorted(alias for alias in names - {name} if not alias.startswith("."))
                near = next(iter(get_close_matches(name, candidates, 1, 0.8)), "")
            load = f"hybridr load FOLDER --index {name}   loads documents into a new index"
            raise NotFound(
                f"no index or alias '{name}' at {self.url}",
                hint=f"did you mean {near}?" if near else load,
                status=404,
            )
        return sole_index(name, infos)

    def count(
        self,
        index: str | IndexInfo,
        query: Mapping[str, Any] | None = None,
        params: Mapping[str, Any] | None = None,
    ) -> int:
        """Count the documents that a search can see, or those of them that match."""
        # Not by `_count`: it fails where the default pipeline of the index is gone.
        body = {"size": 0, "track_total_hits": True, **({"query": query} if query else {})}
        response = self.search(index, body, params, every_shard=True)
        with understood(self.url, "_search"):
            return int(response["hits"]["total"]["value"])

    def refresh(self, name: str) -> None:
        """Make all written documents visible to searches."""
        self.request("POST", path_of(name, "_refresh"), every_shard=True)

    def search(
        self,
        index: str | IndexInfo,
        body: Mapping[str, Any],
        params: Mapping[str, Any] | None = None,
        *,
        every_shard: bool = False,
    ) -> dict[str, Any]:
        """Search one index or alias; its default pipeline, which could rewrite the query, is left out.

        An `IndexInfo` is searched within its scope.
        """
        name, scope = (index, WHOLE) if isinstance(index, str) else (index.name, index.scope)
        plain = {} if "search_pipeline" in body else PLAIN
        path, settings = path_of(name, "_search"), {**plain, **scope.params, **(params or {})}
        response = self.request("POST", path, scope.body(body), settings, every_shard=every_shard)
        return without_error(self.url, response)

    def msearch(
        self, index: str | IndexInfo, bodies: Sequence[dict[str, Any]], texts: Sequence[str] = ()
    ) -> list[dict[str, Any]]:
        """Send several searches of one index at once, as `search` does; the first that fails raises.

        With `texts`, one a body, searches for the same text are answered by the same copies of the shards.
        """
        name, scope = (index, WHOLE) if isinstance(index, str) else (index.name, index.scope)
        heads = [same_copies(text) for text in texts] or [{}] * len(bodies)
        lines = b"".join(
            as_json({**scope.params, **head}) + b"\n" + as_json({**PLAIN, **scope.body(body)}) + b"\n"
            for head, body in zip(heads, bodies, strict=True)
        )

        def send() -> list[dict[str, Any]]:
            response = self.request("POST", path_of(name, "_msearch"), lines)
            with understood(self.url, "_msearch"):
                answers = list(response["responses"])
                for answer in answers:
                    if "error" in answer:
                        raise error_of(int(answer.get("status", 500)), answer["error"])
                if len(answers) != len(bodies):
                    raise ValueError(f"{len(answers)} answers to {len(bodies)} searches")
            return [without_error(self.url, answer) for answer in answers]

        return self.patiently(partial(recovered, self, send))

    @contextmanager
    def point_in_time(
        self, name: str, *, preference: str | None = None, scope: Scope = WHOLE
    ) -> Iterator[str]:
        """Open a frozen view of an index for the length of the block and give its id.

        It shows the shards of the scope; the filter belongs into each search of the view. The cluster keeps
        it for `view_keep_alive` after each search, or for as long as its settings allow.
        """
        params = {"allow_partial_pit_creation": "false", **scope.params}
        params |= {"preference": preference} if preference else {}
        path = path_of(name, "_search", "point_in_time")
        try:
            response = self.request("POST", path, params=params | {"keep_alive": self.view_keep_alive})
        except ClusterError as error:
            if (allowed := MOST_KEEP_ALIVE.search(error.message)) is None:
                raise
            self.view_keep_alive = allowed[1]
            response = self.request("POST", path, params=params | {"keep_alive": self.view_keep_alive})
        with understood(self.url, "_search/point_in_time"):
            pit = str(response["pit_id"])
        try:
            yield pit
        finally:
            with suppress(ClusterError):  # it expires by itself; a failure must not hide the block's own
                self.request("DELETE", "/_search/point_in_time", {"pit_id": [pit]}, patience_s=0.0)

    def wait_until_usable(self, name: str) -> None:
        """Wait until every primary shard of the index is there."""
        # In the path, because the client takes a parameter `timeout` for its own.
        query = "?wait_for_status=yellow&timeout=60s"
        self.request("GET", path_of("_cluster", "health", name) + query)


def recovered(cluster: Cluster, ask: Callable[[], T]) -> T:
    """Call `ask`, once more where an index is missing: until a node knows its state again it has none.

    A request for aliases it holds back that long, and answers 503 after 30 s.
    """
    try:
        if (answer := ask()) is not False:  # as HEAD is answered
            return answer
    except NotFound as error:
        if error.kind != NO_INDEX:
            raise
    with suppress(AccessDenied, NotFound):
        cluster.client.send("GET", path_of("_alias", ANY), None, None, cluster.timeout_s)
    return ask()


def without_error(url: str, answer: dict[str, Any]) -> dict[str, Any]:
    """Return the answer of a search. Raises ClusterError where it has no hits, or one with an odd id."""
    with understood(url, "_search"):
        if not all(isinstance(hit.get("_id", ""), str) for hit in answer["hits"]["hits"]):
            raise TypeError("a hit whose id is no text")
    return answer


def path_of(*parts: str) -> str:
    """Join path parts; names may hold any characters. Raises DataError for `..`: that is the path above."""
    if not {".", ".."}.isdisjoint(parts):
        raise DataError("'.' and '..' are no names")
    return "/" + "/".join(quote(part, safe=",*", errors="replace") for part in parts)


def as_json(body: Any) -> bytes:
    """Write a body, with vectors ten times as fast as the client does."""
    try:
        return orjson.dumps(body, option=orjson.OPT_SERIALIZE_NUMPY)
    except TypeError:  # half of a surrogate pair, numbers beyond 64 bits, or keys that are no strings
        return json.dumps(body, default=lambda array: array.tolist()).encode()


PATTERNS = {"flat_settings": "true", "ignore_unavailable": "true", "allow_no_indices": "true"}


@dataclass(frozen=True)
class IndexView:
    """Indices as they were when the cluster described them; it answers what `Cluster` answers of their names.

    What was not looked at then is asked of the cluster. A name or alias that was not there may have been on a
    node that did not know its state yet: `index_info` asks once more, `indices` does not.
    """

    cluster: Cluster
    names: tuple[str, ...]
    infos: tuple[IndexInfo, ...]
    taken: float
    """When the cluster was asked, by `time.monotonic`."""

    @classmethod
    def of(cls, cluster: Cluster, *names: str) -> IndexView:
        """Describe all indices that these names, aliases and patterns (`docs-*`) stand for, in one request.

        What cannot be a name is left out.
        """
        taken = time.monotonic()
        names = tuple(name for name in dict.fromkeys(names) if can_be_name(name.removesuffix("*")))
        if not names:
            return cls(cluster, (), (), taken)
        path = path_of(",".join(names))
        response = cluster.request("GET", path, params=PATTERNS)
        with understood(cluster.url, f"GET {path}"):
            infos = tuple(as_described(name, index) for name, index in sorted(response.items()))
        return cls(cluster, names, infos, taken)

    def again(self) -> IndexView:
        """Look at the same names once more."""
        return IndexView.of(self.cluster, *self.names)

    def indices(self, pattern: str) -> list[IndexInfo]:
        """Return the indices that a name, alias or pattern stands for."""
        if pattern not in self.names:
            return self.cluster.indices(pattern)
        prefix = pattern.removesuffix("*")
        return [
            info
            for info in self.infos
            if pattern in (info.name, *info.aliases)
            or (prefix != pattern and any(name.startswith(prefix) for name in (info.name, *info.aliases)))
        ]

    def index_info(self, name: str) -> IndexInfo:
        """Return the one index behind a name or alias. Raises as `Cluster.index_info`."""
        infos = self.indices(name) if name in self.names else []
        return sole_index(name, infos) if infos else self.cluster.index_info(name)


Describing: TypeAlias = Cluster | IndexView
"""What `indices` and `index_info` can be asked of."""
