"""Reindexing against encoding alone, and against the server's own way, in one run on one cluster.

The server's own way is `_reindex` through an ingest pipeline whose `text_embedding` processor asks
`hybridr serve`, with the same encoder, for each document's vector.
"""

from __future__ import annotations

import json
import multiprocessing
import random
import secrets
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

from hybridr import connect
from hybridr.cluster.connection import Cluster, path_of
from hybridr.cluster.field_values import text_of
from hybridr.cluster.loading import CONTENTS, load
from hybridr.cluster.reading import read_documents
from hybridr.cluster.remote_models import (
    PLUGIN,
    create_model,
    delete_model,
    embedding_connector,
    missing_settings,
)
from hybridr.cluster.retrievers.dense import vector_mapping
from hybridr.cluster.settings import LoadSettings
from hybridr.encoders.contract import Encoder, Vectors
from hybridr.encoders.opening import OnnxEncoder
from hybridr.errors import ClusterError, HybridrError
from hybridr.indexing.reindexing import reindex
from hybridr.indexing.settings import ReindexSettings
from hybridr.records import Progress, silent
from hybridr.serving.settings import ServeSettings
from hybridr.status.standing import remove

ALONE, OURS = "encoding alone", "hybridr reindex"
START_TIMEOUT_S = 120.0
VECTOR = "vector"
DEFAULT = "_reindex, default settings"
# `_reindex` hands 1,000 documents at once to the pipeline. With the connector's own 30 connections those that
# wait longer than 10 s for one fail ("Acquire operation took longer"), and with them the whole copy.
ROOM = {"max_connection": 1000, "read_timeout": 600}
# One document with such a text, and the connector refuses it and the server's copy ends.
PLACEHOLDER = "${"
SEED = 13


@dataclass(frozen=True)
class Lane:
    """One way through the documents; `busy` is the share of its time that the encoder worked, `failure` says
    why it did not arrive."""

    name: str
    documents: int
    seconds: float
    busy: float | None = None
    failure: str | None = None

    @property
    def documents_per_second(self) -> float:
        """The speed; 0 of a way that did not arrive."""
        return 0.0 if self.failure else self.documents / self.seconds

    def record(self) -> dict[str, Any]:
        """Give the figures as JSON."""
        return {
            "name": self.name,
            "documents": self.documents,
            "seconds": round(self.seconds, 2),
            "documents_per_second": round(self.documents_per_second, 2),
            "busy": None if self.busy is None else round(self.busy, 4),
            "failure": self.failure,
        }


@dataclass(frozen=True)
class ReindexRace:
    """Encoding alone, our reindex, and the server's way: with its defaults, then by batch size.

    `not_run` says why the server's way is empty.
    """

    alone: Lane
    ours: Lane
    server: tuple[Lane, ...]
    not_run: str = ""

    def record(self) -> dict[str, Any]:
        """Give the figures as JSON."""
        return {
            "lanes": [lane.record() for lane in (self.alone, self.ours, *self.server)],
            "share_of_encoding": round(times(self.ours, self.alone), 4),
            "times_server_default": over(self.ours, self.server[:1]),
            "times_server_best": over(self.ours, self.server),
            "not_run": self.not_run or None,
        }


def times(lane: Lane, other: Lane) -> float:
    """Give how many times the speed of `other` a lane has."""
    return lane.documents_per_second / other.documents_per_second


def over(lane: Lane, others: Sequence[Lane]) -> float | None:
    """Give how many times the speed of the fastest of `others` a lane has; None when none arrived."""
    arrived = [other for other in others if not other.failure]
    fastest = max(arrived, key=lambda other: other.documents_per_second, default=None)
    return round(times(lane, fastest), 3) if fastest else None


class TimedEncoder:
    """An encoder that notes how long it encodes documents; calls at the same time count once."""

    def __init__(self, encoder: Encoder) -> None:
        self._encoder, self._lock, self._calls, self._began = encoder, Lock(), 0, 0.0
        self.seconds = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._encoder, name)

    def encode_documents(self, texts: Sequence[str], *, max_tokens: int | None = None) -> Vectors:
        """Encode documents to float32 `(n, dim)` and count the time."""
        with self._timing():
            return self._encoder.encode_documents(texts, max_tokens=max_tokens)

    @contextmanager
    def _timing(self) -> Iterator[None]:
        with self._lock:
            self._calls += 1
            if self._calls == 1:
                self._began = time.perf_counter()
        try:
            yield
        finally:
            with self._lock:
                self._calls -= 1
                if self._calls == 0:
                    self.seconds += time.perf_counter() - self._began


def race_reindex(
    cluster: Cluster,
    encoder: OnnxEncoder,
    records: Iterable[Mapping[str, Any]],
    *,
    settings: ReindexSettings | None = None,
    server_batches: Sequence[int] = (),
    server_documents: int = 2000,
    progress: Progress = silent,
) -> ReindexRace:
    """Load `records`, shuffled, into an index of their own, then encode them alone, reindex them, and let the
    server reindex the first `server_documents` with its defaults and with each of `server_batches`. Records
    that its connector cannot take are left out for all.

    No term table is fitted: the others have none. Half of the encoding alone goes before the reindex and half
    after it, so that a machine that slows down slows both. Everything made on the cluster is deleted; cluster
    settings that the server's way needs are set for its time only. Raises what the steps raise.
    """
    index = f"hybridr-bench-{secrets.token_hex(4)}"
    settings = (settings or ReindexSettings()).model_copy(update={"term_table": False})
    with ExitStack() as undo:
        undo.callback(delete_index, cluster, index)
        shuffled = [record for record in records if PLACEHOLDER not in str(record)]
        random.Random(SEED).shuffle(shuffled)  # so that the first ones stand for all
        load_records(cluster, index, shuffled, progress)
        texts = [text_of(document.source, [CONTENTS]) for document in read_documents(cluster, index)]
        encoder.encode_documents(texts[: settings.read_documents])  # the first call allocates
        middle = len(texts) // 2
        seconds = encode_alone(encoder, texts[:middle], settings, progress)
        undo.callback(forget_reindex, cluster, index)
        ours = reindex_timed(cluster, index, encoder, settings, progress)
        seconds += encode_alone(encoder, texts[middle:], settings, progress)
        alone = Lane(ALONE, len(texts), seconds, 1.0)
        reason = obstacle(cluster) if server_batches else "not asked for"
        if reason:
            return ReindexRace(alone, ours, (), reason)
        most = min(server_documents, len(texts))
        server = tuple(server_lanes(cluster, index, encoder, settings, server_batches, most, progress))
        return ReindexRace(alone, ours, server)


def load_records(
    cluster: Cluster, index: str, records: Iterable[Mapping[str, Any]], progress: Progress
) -> None:
    """Load records as `hybridr load` does."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "corpus.jsonl"
        with file.open("w", encoding="utf-8") as lines:
            lines.writelines(json.dumps(record) + "\n" for record in records)
        load(cluster, file, LoadSettings(index=index), progress=progress)


def delete_index(cluster: Cluster, index: str) -> None:
    """Delete an index if it is there."""
    cluster.request("DELETE", path_of(index), params={"ignore_unavailable": "true"})


def forget_reindex(cluster: Cluster, index: str) -> None:
    """Delete what a reindex of `index` made, if anything."""
    try:
        remove(cluster, index, discard=True)
    except HybridrError:
        pass  # it failed before it made anything; its own error is on its way


def encode_alone(
    encoder: Encoder, texts: Sequence[str], settings: ReindexSettings, progress: Progress
) -> float:
    """Encode texts page by page and give the seconds."""
    started, page = time.perf_counter(), settings.read_documents
    for start in range(0, len(texts), page):
        encoder.encode_documents(texts[start : start + page], max_tokens=settings.max_tokens)
        progress(ALONE, min(start + page, len(texts)), len(texts))
    return time.perf_counter() - started


def reindex_timed(
    cluster: Cluster, index: str, encoder: Encoder, settings: ReindexSettings, progress: Progress
) -> Lane:
    """Reindex and time the whole call: preflight, fill, catch-up, verification, switch."""
    timed = TimedEncoder(encoder)
    done = reindex(cluster, index, timed, settings, progress=progress)
    return Lane(OURS, done.documents, done.seconds, timed.seconds / done.seconds)


def obstacle(cluster: Cluster) -> str:
    """Say why the server's own way cannot run here; empty where it can."""
    if PLUGIN in cluster.installed_parts("plugins"):
        return ""
    return f"the plugin {PLUGIN} is not on every node; an embedded node has it with: node start --with-ml"


def server_lanes(
    cluster: Cluster,
    index: str,
    encoder: OnnxEncoder,
    settings: ReindexSettings,
    batches: Sequence[int],
    documents: int,
    progress: Progress,
) -> Iterator[Lane]:
    """Run `_reindex` once for each batch size."""
    ways: list[tuple[str, dict[str, Any], int]] = [(DEFAULT, {}, 1)]
    ways += [(f"_reindex, {ROOM['max_connection']} connections, batch_size {n}", ROOM, n) for n in batches]
    with serving(encoder.folder) as url, having_set(cluster, missing_settings(cluster, url)):
        for done, (name, client, batch) in enumerate(ways):
            progress("server's own reindex", done, len(ways))
            connector = embedding_connector(f"{index}-model", url, "passage")
            connector["client_config"] |= client
            model = create_model(cluster, connector)
            try:
                seconds = server_seconds(cluster, index, encoder, settings, model.model_id, batch, documents)
                yield Lane(name, documents, seconds)
            except ClusterError as error:
                yield Lane(name, documents, 0.0, failure=error.message)
            finally:
                delete_model(cluster, model)
        progress("server's own reindex", len(ways), len(ways))


def server_seconds(
    cluster: Cluster,
    index: str,
    encoder: Encoder,
    settings: ReindexSettings,
    model_id: str,
    batch: int,
    documents: int,
) -> float:
    """Let the server copy documents through `text_embedding` and give the seconds. Raises ClusterError."""
    pipeline, destination = f"{index}-pipeline", f"{index}-server"
    processor = {"model_id": model_id, "field_map": {CONTENTS: VECTOR}, "batch_size": batch}
    vector = vector_mapping(encoder.dim, encoder.similarity, settings, cluster.version)
    mappings = {"properties": {CONTENTS: {"type": "text"}, VECTOR: vector}}
    index_settings = {"knn": True, "number_of_replicas": 0, "refresh_interval": "-1"}
    with ExitStack() as undo:
        path = path_of("_ingest", "pipeline", pipeline)
        cluster.request("PUT", path, {"processors": [{"text_embedding": processor}]})
        undo.callback(cluster.request, "DELETE", path)
        body = {"settings": {"index": index_settings}, "mappings": mappings}
        cluster.request("PUT", path_of(destination), body)
        undo.callback(delete_index, cluster, destination)
        seconds = copy_by_server(cluster, index, destination, pipeline, documents)
        cluster.refresh(destination)
        require_vectors(cluster, destination, documents)
    return seconds


def copy_by_server(cluster: Cluster, index: str, destination: str, pipeline: str, documents: int) -> float:
    """Run `_reindex` as a task and give its seconds. Raises ClusterError for documents that failed."""
    target = {"index": destination, "pipeline": pipeline}
    body = {"max_docs": documents, "source": {"index": index}, "dest": target}
    started = time.perf_counter()
    task = cluster.request("POST", "/_reindex", body, {"wait_for_completion": "false"})["task"]
    while not (state := cluster.request("GET", path_of("_tasks", task)))["completed"]:
        time.sleep(0.1)
    seconds = time.perf_counter() - started
    failures = state.get("response", {}).get("failures") or state.get("error")
    if failures:
        raise ClusterError(f"the server's own reindex failed: {str(failures)[:300]}")
    return seconds


def require_vectors(cluster: Cluster, index: str, documents: int) -> None:
    """Raise ClusterError unless every document got a vector: a lane that skipped them proves nothing."""
    body = {"size": 0, "track_total_hits": True, "query": {"exists": {"field": VECTOR}}}
    found = int(cluster.search(index, body)["hits"]["total"]["value"])
    if found != documents:
        raise ClusterError(f"the server gave {found} of {documents} documents a vector")


@contextmanager
def having_set(cluster: Cluster, settings: Mapping[str, Any]) -> Iterator[None]:
    """Change settings of the cluster for the length of the block; without any it is left alone."""
    if not settings:
        yield
        return
    before = cluster.request("GET", "/_cluster/settings", params={"flat_settings": "true"})["transient"]
    cluster.request("PUT", "/_cluster/settings", {"transient": settings})
    try:
        yield
    finally:
        old = {name: before.get(name) for name in settings}
        cluster.request("PUT", "/_cluster/settings", {"transient": old})


@contextmanager
def serving(
    folder: Path, cluster: str | None = None, index: str | None = None, **others: Any
) -> Iterator[str]:
    """Run the embedding server in a process of its own; give its address. With an address of a cluster and
    an index it serves that index too; `others` are further settings."""
    settings = ServeSettings(encoder=folder, port=0, index=index, **others)
    context = multiprocessing.get_context("spawn")
    told, tell = context.Pipe(duplex=False)
    process = context.Process(target=serve, args=(settings, cluster, tell), daemon=True)
    process.start()
    try:
        if not told.poll(START_TIMEOUT_S):
            raise ClusterError(f"the embedding server did not start in {START_TIMEOUT_S:.0f} s")
        yield str(told.recv())
    finally:
        process.terminate()
        process.join()


def serve(settings: ServeSettings, cluster: str | None, tell: Any) -> None:
    """Answer as `hybridr serve --port 0` does, after telling the address."""
    from hybridr.serving.application import open_server

    server = open_server(settings, cluster=connect(cluster) if cluster else None)
    tell.send(server.url)
    server.run()
