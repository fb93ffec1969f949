"""State shared by workers that fill an index: job, state of stored documents, counters, speed limit."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from threading import Event, Lock
from typing import Any, NamedTuple

from ..cluster.connection import Cluster, path_of
from ..cluster.reading import Key, Position, SourceDocument
from ..cluster.record import ENCODER_FIELD, SEQ_NO_FIELD, IndexInfo
from ..cluster.routing import copies_preference
from ..cluster.semantic import stored_form
from ..cluster.writing import Action, Rejects, bulk_action
from ..encoders.contract import Encoder
from ..errors import ClusterError
from ..records import Progress, silent
from .recipe import TextRecipe
from .representations import EncodedDocument
from .settings import ReindexSettings
from .terms.fitting import TermTableBuilder

CHECK_S = 5.0
MAX_PAUSE_S = 30.0
MIN_QUERIES = 5  # a mean of fewer queries is too noisy
COUNTS = ("encoded", "without_text", "skipped", "rejected", "deleted", "shortened", "waiting", "from_clients")
GENERATIONS = 1 << 14
"""Marks reserved for each state of a source: one per generation that a document may be carried from."""
INSERTED = {"gte": -GENERATIONS, "lt": 0}
"""Range of the marks of documents that clients wrote and the source never had."""
SLOWER = 5.0  # searches are slow if they take this many times as long as before


class Stored(NamedTuple):
    """State of a document in the destination: version, encoder, and the state of the source that it was made
    from.

    `source_seq_no` is the `_seq_no` of the source document. For a document that a client wrote in the
    destination (`written_here`) it is the state that the source had when hybridr first saw that write: -1 if
    the source had no such document, None if hybridr has not seen the write yet. `carried_from` is the number
    of the index generation in which the client wrote it, if hybridr carried it from there; else 0.
    """

    version: int
    seq_no: int
    primary_term: int
    encoder: str | None
    source_seq_no: int | None
    written_here: bool = False
    carried_from: int = 0

    @property
    def came_from_source(self) -> bool:
        """Return whether the source held this document at hybridr's last check."""
        return self.source_seq_no is not None and self.source_seq_no >= 0


def replacement_options(state: Stored | None) -> dict[str, Any]:
    """Return the options of a bulk action that writes only over the state seen, None for no document."""
    if state is None:
        return {"op_type": "create"}
    return {"if_seq_no": state.seq_no, "if_primary_term": state.primary_term}


def write_over(document: SourceDocument, body: dict[str, Any], state: Stored | None) -> Action:
    """Return the bulk action that writes a document only over the state seen, None for no document."""
    return bulk_action("index", document.doc_id, body, routing=document.routing, **replacement_options(state))


def renewal_options(document: SourceDocument, state: Stored | None) -> dict[str, Any]:
    """Return the options of a bulk action that writes a document over itself in the version that it has, and
    fails if it has changed since it was read.

    `_version` stays, so that the next write of a client that numbers versions itself is not refused. Any
    other write raises it. A deletion is forgotten after `index.gc_deletes`, so `state` must be fresh.
    """
    if state is None or (state.seq_no, state.primary_term) != (document.seq_no, document.primary_term):
        return document.as_read
    return {"routing": document.routing, "version": document.version, "version_type": "external_gte"}


def stored_states(
    cluster: Cluster, destination: str, documents: Sequence[SourceDocument]
) -> dict[Key, Stored]:
    """Return the stored states of those documents that the destination holds, by the key that was asked for.

    A negative number in the field for `_seq_no` was made by `written_here_mark`. Raises what the server
    reports for a single document: a missing right must not look like a missing document.
    """
    if not documents:
        return {}
    requests = [{"_id": doc.doc_id, **({"routing": doc.routing} if doc.routing else {})} for doc in documents]
    params = {
        "stored_fields": f"{ENCODER_FIELD},{SEQ_NO_FIELD}",
        **copies_preference(cluster.segmented, destination),
    }
    path = path_of(destination, "_mget")
    answer = cluster.request("POST", path, {"docs": requests}, params, every_shard=True)
    with cluster.reading_answer("_mget"):
        stored = {}
        for requested, document in zip(documents, answer["docs"], strict=True):
            if not document.get("found"):
                continue
            fields = document.get("fields", {})
            encoder, (number,) = fields.get(ENCODER_FIELD, [None]), fields.get(SEQ_NO_FIELD, [None])
            state_values = (document["_version"], document["_seq_no"], document["_primary_term"], encoder[0])
            state = Stored(*state_values, number, written_here=number is None)
            if number is not None and number < 0:
                origin, generation = divmod(-1 - number, GENERATIONS)
                state = Stored(*state_values, origin - 1, written_here=True, carried_from=generation)
            stored[requested.key] = state
        return stored


def written_here_mark(source_seq_no: int, generation: int = 0) -> int:
    """Return the negative number that marks a document as written by a client while the source was in state
    `source_seq_no`.

    `stored_states` reads it back. `generation` is the number of the index from which the document was
    carried; a number too large for the mark is left out.
    """
    return -1 - (source_seq_no + 1) * GENERATIONS - (generation if generation < GENERATIONS else 0)


def is_current(
    document: SourceDocument, stored: Stored | None, encoder: str | None, source_changed: bool | None
) -> bool:
    """Return whether the destination holds this state of the document, encoded by this encoder (None: by any
    or none), or a newer state.

    `source_changed` says whether the source changed the document since the last round, None if unknown. It
    decides for documents that a client wrote and hybridr has not seen yet; if unknown, the higher version
    wins.
    """
    if stored is None:
        return False
    if stored.source_seq_no is None:
        return stored.version > document.version if source_changed is None else (not source_changed)
    if stored.source_seq_no == document.seq_no:
        return stored.written_here or encoder in (None, stored.encoder)
    is_newer = stored.source_seq_no > document.seq_no
    return is_newer and (stored.written_here or stored.version > document.version)


class Pending(NamedTuple):
    """A document to write: its stored state in the destination, its vectors (None without text), and its
    joined text once computed.
    """

    document: SourceDocument
    stored: Stored | None = None
    encoded: EncodedDocument | None = None
    text: str | None = None


@dataclass
class Filling:
    """Counts of documents of a fill: encoded, copied without text, skipped as current, rejected, deleted.

    `shortened` counts encoded documents with more text than the passages reach, `from_clients` encoded
    documents that clients wrote into an index with vectors, `waiting` documents that clients changed
    meanwhile. `until` is the position up to which the source was read; `settled` says that nothing can appear
    before it. `refused` are lines for the rejects file from workers on other machines.
    """

    encoded: int = 0
    without_text: int = 0
    skipped: int = 0
    rejected: int = 0
    deleted: int = 0
    shortened: int = 0
    waiting: int = 0
    from_clients: int = 0
    until: Position = field(default_factory=Position)
    settled: bool = False
    refused: tuple[str, ...] = ()

    def add(self, more: Filling) -> None:
        """Add the counts of another share."""
        for name in COUNTS:
            setattr(self, name, getattr(self, name) + getattr(more, name))

    def book(self, page: list[Pending], times: int = 1) -> None:
        """Add the documents of a written page to the counts; `times` -1 subtracts them."""
        encoded = [pending.encoded for pending in page if pending.encoded]
        self.encoded += times * len(encoded)
        self.without_text += times * (len(page) - len(encoded))
        self.shortened += times * sum(not document.split.whole for document in encoded)


@dataclass(frozen=True)
class Job:
    """Everything a worker needs to fill a share: cluster, index names, recipe, rejects file, stop event."""

    cluster: Cluster
    source: str
    destination: str
    recipe: TextRecipe
    rejects: Rejects
    stop: Event = field(default_factory=Event)
    listener: TermTableBuilder | None = None
    initial_infos: tuple[IndexInfo, ...] = ()
    """Descriptions of source and destination when the job began, as far as they are known."""
    documents: int = 0
    """Documents of the source when the job was planned; 0 if unknown."""

    @property
    def encoder(self) -> Encoder:
        """Return the encoder."""
        return self.recipe.encoder

    @property
    def settings(self) -> ReindexSettings:
        """Return the settings of the reindex."""
        return self.recipe.settings

    @cached_property
    def source_before(self) -> IndexInfo:
        """Return the description of the source from when the job began."""
        return self._before(self.source)

    @cached_property
    def destination_before(self) -> IndexInfo:
        """Return the description of the destination from when the job began."""
        return self._before(self.destination)

    def _before(self, name: str) -> IndexInfo:
        """Return the description of an index from when the job began; without one, the present one."""
        initial = next((info for info in self.initial_infos if info.name == name), None)
        return initial or self.cluster.index_info(name)

    @cached_property
    def pace(self) -> Pace:
        """Return the speed limit that all workers share."""
        load, limit = partial(search_load, self.cluster), self.settings.max_docs_per_second
        return Pace(limit, self.settings.slow_search_ms, load, sleep=self.stop.wait)


def document_body(job: Job, pending: Pending, mark: int | None = None) -> dict[str, Any]:
    """Return the document to write: the source's fields, what the encoder made, the encoder's fingerprint,
    and `mark` or the source's `_seq_no`.
    """
    document = pending.document
    source = stored_form(document.source, job.destination_before.semantic)
    return {
        **{name: value for name, value in source.items() if name not in job.recipe.fields},
        ENCODER_FIELD: job.encoder.fingerprint,
        SEQ_NO_FIELD: document.seq_no if mark is None else mark,
        **job.recipe.values(pending.encoded),
    }


class Meter:
    """Adds up the progress of all workers and reports it; a `total` of None is unknown."""

    def __init__(
        self, progress: Progress = silent, total: int | None = 0, stage: str = "encode and write"
    ) -> None:
        self._progress, self._total, self._stage = progress, total, stage
        self.done, self._lock = 0, Lock()

    def add(self, documents: int) -> None:
        """Count documents as done and report progress."""
        with self._lock:
            self.done += documents
            total = None if self._total is None else max(self._total, self.done)
            self._progress(self._stage, self.done, total)


class SearchLoad(NamedTuple):
    """Searches of all nodes since they started: shard queries, and milliseconds spent on them."""

    queries: int
    milliseconds: int

    def mean_ms(self, earlier: SearchLoad) -> float | None:
        """Return the mean milliseconds per query between the `earlier` reading and this one; None if fewer
        than MIN_QUERIES queries ran in between.
        """
        queries = self.queries - earlier.queries
        return (self.milliseconds - earlier.milliseconds) / queries if queries >= MIN_QUERIES else None


NO_LOAD = SearchLoad(0, 0)


def search_load(cluster: Cluster) -> SearchLoad:
    """Return the search statistics of all nodes; NO_LOAD if they cannot be read."""
    try:
        nodes = cluster.request("GET", "/_nodes/stats/indices/search", patience_s=0.0)["nodes"].values()
    except ClusterError:
        return NO_LOAD
    statistics = [node["indices"]["search"] for node in nodes]
    return SearchLoad(
        sum(search["query_total"] for search in statistics),
        sum(search["query_time_in_millis"] for search in statistics),
    )


class Pace:
    """Limits how fast all workers together write documents.

    `per_second` limits documents per second. If searches take more than `slow_ms` on average (0: no limit)
    and five times as long as before the work began, writing pauses, longer each time until searches recover.
    """

    def __init__(
        self,
        per_second: float | None,
        slow_ms: float,
        load: Callable[[], SearchLoad],
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self._per_second, self._slow_ms = per_second, slow_ms
        self._load, self._clock, self._sleep = load, clock, sleep
        self._lock = Lock()
        self._free_at = self._checked_at = clock()
        self._pause_s = 0.0
        self._before = load() if slow_ms else NO_LOAD
        self._usual_ms = self._before.mean_ms(NO_LOAD) or 0.0

    def wait(self, documents: int) -> None:
        """Wait until that many documents may be written."""
        with self._lock:
            if self._slow_ms and self._clock() - self._checked_at >= CHECK_S:
                load = self._load()
                mean_ms, self._before = load.mean_ms(self._before), load
                if mean_ms is not None and mean_ms > max(self._slow_ms, SLOWER * self._usual_ms):
                    self._pause_s = min(max(1.0, 2 * self._pause_s), MAX_PAUSE_S)
                    self._sleep(self._pause_s)
                else:
                    self._pause_s /= 2
                self._checked_at = self._clock()
            if self._per_second:
                clock_s = self._clock()
                begin = max(clock_s, self._free_at)
                self._free_at = begin + documents / self._per_second
                if begin > clock_s:
                    self._sleep(begin - clock_s)
