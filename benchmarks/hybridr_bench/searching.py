"""How long a search takes, by mode and by way of asking, all in turns on one index.

Bodies written here go out as bytes and come back unread: what the server does. `Search` is timed beside the
very requests it sends, as bytes: the difference is what the client costs. A deployed way is timed beside the
same search written by hand, which asks `hybridr serve` for the vector where the cluster does so. Vectors of
queries come from a table, and from the cache of `hybridr serve`, so that no figure holds an encoding. Only
with the way `local` the cluster encodes every query, and beside it `hybridr serve` does.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode

import numpy as np
import orjson
import urllib3

from hybridr.cluster.connection import Cluster, json_bytes, path_of
from hybridr.cluster.destinations import resolve
from hybridr.cluster.embedded.state import node_states
from hybridr.cluster.remote_models import missing_settings
from hybridr.cluster.retrievers.lexical import lexical_query
from hybridr.encoders.contract import Encoder, Reading, Vectors, reads_tokens
from hybridr.errors import ClusterError, SettingsError
from hybridr.records import Progress, silent
from hybridr.search.checks import Mode, encoder_for
from hybridr.search.context import without_tokens
from hybridr.search.fusions.pipeline import hybrid_query, search_pipeline
from hybridr.search.search import Search, open_search
from hybridr.search.settings import SearchSettings
from hybridr.serving.deploy.deploying import deploy, undeploy
from hybridr.serving.settings import DeploySettings, Way

from .asking import Ask, Lane, Times, apart, difference, ratio, take_turns
from .reindexing import having_set, obstacle, serving

WAYS: tuple[Way, ...] = ("client", "neural", "transparent")
"""Timed unless others are named: `local` needs PyTorch's libraries on the node."""


class Kind(NamedTuple):
    """What is searched: a mode with its settings."""

    mode: Mode
    settings: SearchSettings


SEARCHES = {
    "lexical": Kind("lexical", SearchSettings()),
    "dense": Kind("dense", SearchSettings()),
    "stock": Kind("hybrid", SearchSettings(tuned=False, fusion="pipeline")),
    "plain": Kind("hybrid", SearchSettings(tuned=False, signals=("none",))),
    "hybrid": Kind("hybrid", SearchSettings(tuned=False)),
}
"""`stock` fuses by the pipeline, `plain` is the default without signals."""
OVER_STOCK = ("plain", "hybrid")
BY_HAND, BY_SEARCH, AS_BYTES = "by hand", "Search", "as bytes"
HITS, TIMEOUT_S = 10, 60.0
Request = tuple[str, bytes]
"""A path with its parameters, and the body to POST."""


class Twins(NamedTuple):
    """A search for a text: written by hand, and as the client of a deployed way sends it."""

    text: str
    hand: Request
    deployed: Request


class KnownQueries:
    """An encoder that looks known queries up: their vectors and the states of their tokens."""

    def __init__(self, encoder: Encoder, texts: Sequence[str]) -> None:
        self._encoder: Any = encoder
        self._readings = dict(zip(texts, readings_of(encoder, texts), strict=True))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._encoder, name)

    def encode_queries(self, texts: Sequence[str], *, max_tokens: int | None = None) -> Vectors:
        """Give float32 `(n, dim)`; only queries that were not named at the start are encoded."""
        if any(text not in self._readings for text in texts):
            found: Vectors = self._encoder.encode_queries(texts, max_tokens=max_tokens)
            return found
        return np.stack([self._readings[text].vector for text in texts])

    def read_queries(self, texts: Sequence[str]) -> list[Reading]:
        """Give the readings of texts; only queries that were not named at the start are read."""
        if any(text not in self._readings for text in texts):
            found: list[Reading] = self._encoder.read_queries(texts)
            return found
        return [self._readings[text] for text in texts]


def readings_of(encoder: Encoder, texts: Sequence[str]) -> list[Reading]:
    """Read queries, with the states of their tokens where the encoder shows them."""
    if reads_tokens(encoder):
        return encoder.read_queries(texts)
    return [without_tokens(vector) for vector in encoder.encode_queries(texts)]


class NotingCluster(Cluster):
    """A connection that keeps the requests it sends."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster.client, cluster.url)
        self.sent: list[Request] = []

    def request(self, method: str, path: str, body: Any = None, params: Any = None, **options: Any) -> Any:
        """Send a request as every connection does; keep it."""
        written = body if isinstance(body, bytes) else json_bytes(body)
        self.sent.append((f"{path}?{urlencode(params)}" if params else path, written))
        return super().request(method, path, body, params, **options)


class Sender:
    """Sends bytes over kept connections. Raises ClusterError for any answer but 200."""

    def __init__(self, url: str, clients: int) -> None:
        self.url = url.rstrip("/")
        self._pool = urllib3.PoolManager(maxsize=clients, block=True, timeout=TIMEOUT_S, retries=False)

    def send(self, request: Request) -> bytes:
        """POST a request and give the answer's bytes."""
        path, body = request
        answer = self._pool.request(
            "POST", self.url + path, body=body, headers={"Content-Type": "application/json"}
        )
        if answer.status != 200:
            raise ClusterError(f"HTTP {answer.status} at {path}: {answer.data[:300]!r}")
        return answer.data


@dataclass(frozen=True)
class SearchRace:
    """The figures of one index: lanes by name, and by way the pair of the way and its twin."""

    index: str
    documents: int
    max_tokens: int | None
    lanes: Mapping[str, Lane]
    ways: Mapping[str, tuple[Lane, Lane]]
    not_run: str = ""

    def record(self) -> dict[str, Any]:
        """Give the figures as JSON."""
        lanes = [*self.lanes.values(), *(lane for pair in self.ways.values() for lane in pair)]
        return {
            "index": self.index,
            "documents": self.documents,
            "max_tokens": self.max_tokens,
            "lanes": [row for lane in lanes for row in lane.records()],
            "ratios": [self.ratios(clients) for clients in next(iter(self.lanes.values())).turns],
            "not_run": self.not_run or None,
        }

    def ratios(self, clients: int) -> dict[str, Any]:
        """Compare medians of the same rounds."""
        p50 = {name: lane.p50(clients) for name, lane in self.lanes.items()}
        both = [a + b for a, b in zip(p50["lexical"], p50["dense"], strict=True)]
        search = {name: (p50[f"{name}, {BY_SEARCH}"], p50[f"{name}, {AS_BYTES}"]) for name in SEARCHES}
        return {
            "clients": clients,
            "over_legs": {name: ratio(p50[name], both) for name in ("stock", "hybrid")},
            "over_stock": {name: ratio(search[name][0], search["stock"][0]) for name in OVER_STOCK},
            "over_plain": {"hybrid": ratio(search["hybrid"][0], search["plain"][0])},
            "more_than_stock_ms": {
                name: difference(search[name][0], search["stock"][0]) for name in OVER_STOCK
            },
            "client_overhead_ms": {name: difference(*pair) for name, pair in search.items()},
            "deployed_over_hand": {
                way: ratio(deployed.p50(clients), hand.p50(clients))
                for way, (deployed, hand) in self.ways.items()
            },
        }


def race_search(
    cluster: Cluster,
    name: str,
    texts: Sequence[str],
    *,
    times: Times = Times(),
    ways: Sequence[Way] = WAYS,
    progress: Progress = silent,
) -> SearchRace:
    """Time every mode and every way of asking the index with vectors behind `name`.

    The ways are deployed for their time only, on a cluster with ml-commons. Raises SettingsError for a
    cluster with TLS or an index that is deployed, and what the steps raise.
    """
    info = resolve(cluster, name)
    if cluster.url.startswith("https"):
        raise SettingsError("this race sends plain HTTP", hint="hybridr node start --with-ml")
    if info.record.deployment:
        raise SettingsError(f"'{name}' is deployed", hint=f"hybridr undeploy {name}")
    model = encoder_for(info, None, progress=progress)
    known = KnownQueries(model, texts)
    sender = Sender(cluster.url, max(times.clients))
    hands = hand_written(cluster, name, known, texts)
    lanes = [sending(mode, sender, hands[mode]) for mode in ("lexical", "dense", "stock", "hybrid")]
    asking = QueryCompiler(cluster, name, known, texts, sender)
    lanes += [lane for called, kind in SEARCHES.items() for lane in asking.lanes(called, kind)]
    take_turns(lanes, times, progress)
    pairs: dict[str, tuple[Lane, Lane]] = {}
    if not (reason := obstacle(cluster)):
        folder: Path = model.folder  # type: ignore[attr-defined]  # what is found lies in one
        for way in ways:
            asked = asked_by(way, texts, hands)
            pairs[way] = race_way(cluster, name, way, folder, asked, times, progress)
    by_name = {lane.name: lane for lane in lanes}
    return SearchRace(info.name, cluster.count(info.name), info.record.max_tokens, by_name, pairs, reason)


def race_indices(
    cluster: Cluster,
    names: Sequence[str],
    texts: Sequence[str],
    *,
    times: Times = Times(),
    ways: Sequence[Way] = WAYS,
    progress: Progress = silent,
) -> dict[str, Any]:
    """Time searches of several indices; give their figures, and whether the node had cores of its own.

    An embedded node is kept to one half of the cores, and the asking to the other; another one is left alone.
    """
    node = next((one for one in node_states() if one.running and one.url == cluster.url), None)
    load = os.getloadavg()[0]
    with apart(node.pid if node else None) as pinned:
        races = [
            race_search(cluster, name, texts, times=times, ways=ways, progress=progress) for name in names
        ]
    return {
        "settings": {"queries": len(texts), **times._asdict(), "hits": HITS, "depth": SearchSettings().depth},
        "pinned": pinned,
        "heap": node.heap if node else None,
        "load": [round(load, 2), round(os.getloadavg()[0], 2)],
        "indices": [race.record() for race in races],
    }


def hand_written(
    cluster: Cluster, index: str, encoder: Encoder, texts: Sequence[str]
) -> dict[str, list[Request]]:
    """Write the bodies of each retriever, of both with their pipeline, and of the default; ten hits each."""
    settings = SearchSettings(tuned=False)
    search = Search(cluster, index, encoder, settings=settings)
    path = path_of(search.info.name, "_search")
    fields = {"_source": list(search.info.record.fields), "size": HITS}
    pipeline, dense = search_pipeline(settings, cluster.version), search.context.retrievers["dense"]
    found: dict[str, list[Request]] = {"lexical": [], "dense": [], "stock": [], "hybrid": []}
    for text, vector in zip(texts, encoder.encode_queries(texts), strict=True):
        [value] = search.context.retriever_values(dense, [text], [without_tokens(vector)])
        legs = [lexical_query(text, search.lexical_fields), dense.query(value, settings.depth)]
        found["lexical"].append((path, orjson.dumps({**fields, "query": legs[0]})))
        found["dense"].append((path, orjson.dumps({**fields, "query": legs[1]})))
        both = {**fields, "query": hybrid_query(legs, settings.depth), "search_pipeline": pipeline}
        found["stock"].append((path, orjson.dumps(both)))
        found["hybrid"].append((path, orjson.dumps({**fields, **search.request(text, HITS)})))
    return found


def sending(name: str, sender: Sender, requests: Sequence[Request]) -> Lane:
    """Ask by bytes that are written already."""
    return Lane(name, lambda number: sender.send(requests[number % len(requests)]))


@dataclass(frozen=True)
class QueryCompiler:
    """Searches of one index for these texts, whose readings the encoder knows."""

    cluster: Cluster
    index: str
    encoder: Encoder
    texts: Sequence[str]
    sender: Sender

    def lanes(self, name: str, kind: Kind) -> Iterator[Lane]:
        """Ask by `Search`, and by the bytes of the requests that it sends for each text."""
        texts, noting = self.texts, NotingCluster(self.cluster)
        search = open_search(noting, self.index, kind.mode, settings=kind.settings)
        search.encoder = self.encoder
        search.analysis.remembered = len(texts) // 2  # every query is a new one, but analysed once
        search(texts[0], HITS)  # what it asks once and remembers
        sent: list[list[Request]] = []
        for text in texts:
            noting.sent.clear()
            search(text, HITS)
            sent.append(list(noting.sent))

        def replay(number: int) -> None:
            for request in sent[number % len(sent)]:
                self.sender.send(request)

        yield Lane(f"{name}, {BY_SEARCH}", lambda number: search(texts[number % len(texts)], HITS))
        yield Lane(f"{name}, {AS_BYTES}", replay)


def race_way(
    cluster: Cluster,
    name: str,
    way: Way,
    encoder: Path,
    asked: Sequence[Twins],
    times: Times,
    progress: Progress,
) -> tuple[Lane, Lane]:
    """Deploy a way as users do, and time it in turns with the same searches written by hand."""
    requests = [one.deployed for one in asked]
    sender = Sender(cluster.url, max(times.clients))
    with serving(encoder, cluster.url, name) as url, having_set(cluster, needed(cluster, way, url)):
        server = Sender(url, max(times.clients))
        by_hand = Lane(f"{way}, {BY_HAND}", asking_by_hand(way, asked, sender, server))
        pair = sending(way, sender, requests), by_hand
        deploy(cluster, name, DeploySettings(way=way, server=url, recall="all"), SearchSettings())
        try:
            take_turns(pair, times, progress)
        finally:
            undeploy(cluster, name)
    return pair


def needed(cluster: Cluster, way: Way, server: str) -> dict[str, Any]:
    """Give the settings that a way needs and that the cluster does not have."""
    return {} if way == "client" else missing_settings(cluster, server)


def asked_by(way: Way, texts: Sequence[str], hands: Mapping[str, Sequence[Request]]) -> list[Twins]:
    """Pair what the clients of a way send with the search by hand that ranks the same."""
    if way == "transparent":
        return list(map(Twins, texts, hands["hybrid"], hands["lexical"]))
    requests = [deployed_request(way, *one) for one in zip(texts, hands["stock"], strict=True)]
    return list(map(Twins, texts, hands["stock"], requests))


def asking_by_hand(way: Way, asked: Sequence[Twins], sender: Sender, server: Sender) -> Ask:
    """Send the hybrid request; where the cluster asks for the vector, ask for it first."""

    def ask(number: int) -> None:
        text, hand, _ = asked[number % len(asked)]
        if way != "client":
            body = {"model": "hybridr-query", "input": text}
            server.send(("/v1/embeddings", orjson.dumps(body)))
        sender.send(hand)

    return ask


def deployed_request(way: Way, text: str, hand: Request) -> Request:
    """Write what a client of `client`, `neural` or `local` sends for the search that `hand` holds."""
    path, written = hand
    body = orjson.loads(written)
    del body["search_pipeline"]
    lexical, dense = body["query"]["hybrid"]["queries"]
    if way == "neural":
        [[field, asked]] = dense["knn"].items()
        neural = {"neural": {field: {"query_text": text, "k": asked["k"]}}}
        body["query"] = hybrid_query([lexical, neural], body["query"]["hybrid"]["pagination_depth"])
    return path, orjson.dumps(body)
