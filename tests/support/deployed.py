"""An index deployed for plain REST: the server beside it, its documents, the answers it should give."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvicorn

from hybridr.cluster.connection import Cluster, path_of
from hybridr.cluster.retrievers.dense import dense_query
from hybridr.encoders.opening import load_encoder
from hybridr.indexing.reindexing import reindex
from hybridr.search.fusions.pipeline import hybrid_query, search_pipeline
from hybridr.search.settings import SearchSettings
from hybridr.serving.application import create_app
from hybridr.serving.doorway import TimedProtocol, listen
from hybridr.serving.settings import ServeSettings
from support.corpus import create, drop_indices, put, text_number
from support.hashing import HashingEncoder
from support.waiting import wait_until

TEXT = "side effects of statins"
DEPTH = SearchSettings().depth


class Server:
    """`hybridr serve` in a thread, so that it can go away and come back on the same port."""

    def __init__(self, app: Any) -> None:
        self.app, self.port = app, 0
        self.received: list[bytes] = []
        self.start()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def noted() -> Any:
            message = await receive()
            self.received.append(message.get("body", b""))
            return message

        await self.app(scope, noted, send)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        listener = listen("127.0.0.1", self.port)
        self.port = listener.getsockname()[1]
        config = uvicorn.Config(self, log_level="error", lifespan="off", http=TimedProtocol)
        self.server = uvicorn.Server(config)
        self.thread = threading.Thread(target=self.server.run, kwargs={"sockets": [listener]})
        self.thread.start()

    def stop(self) -> None:
        self.server.should_exit = True
        self.thread.join()

    @contextmanager
    def away(self) -> Iterator[None]:
        """Be gone for a while."""
        self.stop()
        try:
            yield
        finally:
            self.start()


def settle(server: Server) -> None:
    """Wait until no client's query is being calibrated."""
    wait_until(lambda: not server.app.state.searches.now.shapes.waiting)


def fill_library(cluster: Cluster, index: str, field: str, count: int) -> None:
    """Index documents of which some say something about TEXT, more than the depth of candidates."""
    properties = {field: {"type": "text"}, "price": {"type": "float"}, "tags": {"type": "keyword"}}
    create(cluster, index, properties)
    documents: dict[str, dict[str, Any]] = {}
    for number in range(count):
        words = [text_number(number + other) for other in range(0, 1 + number % 4)]
        words += ["side effects"] * (number % 3 == 0) + ["statins in patients"] * (number % 7 == 0)
        source = {field: " ".join(words), "price": number / 10, "tags": ["a", f"t{number % 3}"]}
        documents[f"d{number}"] = source
    put(cluster, index, documents)


def vector_of(folder: Path, text: str) -> list[float]:
    return load_encoder(folder).encode_queries([text])[0].tolist()


def by_hand(
    folder: Path,
    field: str,
    text: str = TEXT,
    *,
    vector_field: str = "hybridr_vector",
    depth: int = DEPTH,
    filter: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Write the hybrid request that needs no deployment: both legs and the pipeline in the body."""
    match: dict[str, Any] = {"match": {field: text}}
    if filter:
        match = {"bool": {"must": [match], "filter": [filter]}}
    dense = dense_query(vector_of(folder, text), vector_field, depth, filter=filter)
    pipeline = search_pipeline(SearchSettings(), (3, 6, 0))
    return {"query": hybrid_query([match, dense], depth), "search_pipeline": pipeline}


def ask(cluster: Cluster, index: str, body: dict[str, Any]) -> dict[str, Any]:
    """Search as clients do: through the index's default pipeline, which `Cluster.search` leaves out."""
    found: dict[str, Any] = cluster.request("POST", path_of(index, "_search"), body)
    return found


def assert_plain(cluster: Cluster, index: str, body: dict[str, Any]) -> None:
    """Find what the index finds without its pipeline: BM25, with its scores."""
    answer, expected = ask(cluster, index, body), cluster.search(index, body)
    assert (ids(answer), scores(answer)) == (ids(expected), scores(expected))
    assert ids(answer)


def ids(answer: dict[str, Any]) -> list[str]:
    return [hit["_id"] for hit in answer["hits"]["hits"]]


def scores(answer: dict[str, Any]) -> list[float]:
    return [hit["_score"] for hit in answer["hits"]["hits"]]


def with_vectors(cluster: Cluster, index: str, encoder: Path) -> Iterator[Cluster]:
    """Give an index vectors; it goes afterwards, with all that begins with its name."""
    reindex(cluster, index, encoder)
    yield cluster
    drop_indices(cluster, f"{index}*")


@contextmanager
def serving_index(
    cluster: Cluster, index: str, encoder: Path | HashingEncoder | None = None, **settings: Any
) -> Iterator[Server]:
    """Run `hybridr serve --index`; a busy machine encodes slowly."""
    opened = load_encoder(encoder) if isinstance(encoder, Path) else encoder or HashingEncoder()
    given = ServeSettings(index=index, **{"rank_timeout_s": 5, **settings})
    running = Server(create_app(opened, given, cluster=cluster))
    try:
        yield running
    finally:
        running.stop()


def taken_for(kept: str, other: str) -> bool:
    """Tell whether ml-commons takes one id for the other: they share what stands between two hyphens (see
    `is_mistaken_conflict`), which they do on some nodes. It deletes no connector then that a model is said to
    use."""
    return not {*kept.lower().split("-")}.isdisjoint(other.lower().split("-"))
