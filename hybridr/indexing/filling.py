"""Fills an index: reads pages of documents, encodes them and writes them, all three at once with bounded
queues.

A `PackedFill` carries this work to other processes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from itertools import repeat, takewhile
from threading import Event
from typing import Any, NamedTuple, TypeVar

import numpy as np

from ..cluster.connection import Cluster, IndexView
from ..cluster.destinations import register_destination
from ..cluster.failures import AGAIN
from ..cluster.mappings import extend_copy_mapping
from ..cluster.reading import Position, Share, settled_position
from ..cluster.settings import ClusterSettings
from ..cluster.writing import Action, MemoryRejects, Outcome, write_past_pipelines
from ..encoders.contract import ENCODED_TOGETHER, Encoder, offers_of
from ..encoders.opening import PackedEncoder, pack_encoder
from ..errors import ModelError, NotFound, SettingsError, Unreachable
from ..records import Progress
from .job import Filling, Job, Meter, Pending
from .lag import cut_into_shares, visible_position
from .recipe import STATES, TextRecipe
from .runners import runner
from .settings import ReindexSettings
from .terms.fitting import TermTableBuilder

MAX_CONNECT_S = 30.0  # a wrong address should be reported soon, even if patience_s is hours
SAME_URL = "give a --url that every machine can reach; localhost is a different machine on each"
MAX_PASSES = 20
MAX_ROUNDS = 5
T = TypeVar("T")
S = TypeVar("S")
END: Any = object()


class SameCluster(NamedTuple):
    """The settings of a connection and its cluster's UUID, so that another process reaches that cluster."""

    settings: ClusterSettings
    uuid: str | None

    @classmethod
    def of(cls, cluster: Cluster) -> SameCluster:
        """Return settings and UUID of the cluster that this process is connected to."""
        assert cluster.settings is not None
        return cls(cluster.settings, cluster.info.get("cluster_uuid"))

    def connect(self, patience_s: float) -> Cluster:
        """Return a connection to this cluster from the current process.

        Raises Unreachable; SettingsError if another cluster answers.
        """
        try:
            cluster = Cluster.connect(self.settings, patience_s=min(patience_s, MAX_CONNECT_S))
        except Unreachable as error:
            raise Unreachable(error.message, hint=SAME_URL) from None
        uuid = cluster.info.get("cluster_uuid")
        if uuid and self.uuid and uuid != self.uuid:
            raise SettingsError(f"{cluster.url} is not the cluster that the driver uses", hint=SAME_URL)
        return cluster.with_patience(patience_s)


class Work(NamedTuple):
    """The three functions by which a target reads and writes a share of documents.

    `pages` reads a share and skips documents that are current, counting them in the Filling. `actions` turns
    a page into bulk actions. `settle` handles documents of a page that another writer changed first.
    """

    pages: Callable[[Job, Share, Filling, Meter], Iterator[list[Pending]]]
    actions: Callable[[Job, list[Pending]], list[Action]]
    settle: Callable[[Job, list[Pending], Filling], None]


@dataclass(frozen=True)
class Fill:
    """The task of filling an index: called with a share, it writes the documents of that share.

    Other processes get it `packed`.
    """

    job: Job
    work: Work
    meter: Meter = field(default_factory=Meter)

    @classmethod
    def begun(cls, job: Job, work: Work, since: Position | None, progress: Progress) -> Fill:
        """Return the task, with a meter that knows the source's count of documents unless `since` is given.

        Also measures how long searches take without this load.
        """
        job.pace.wait(0)  # the first use measures searches
        return cls(job, work, Meter(progress, 0 if since else job.documents or job.cluster.count(job.source)))

    @property
    def stop(self) -> Event:
        """Return the event that asks all shares in this process to end."""
        return self.job.stop

    def __call__(self, share: Share) -> Filling:
        """Read, encode and write one share; return its counts."""
        filling = fill_share(self.job, self.work, self.meter, share)
        filling.refused = self.job.rejects.take_lines()
        return filling

    def packed(self, workers: int) -> PackedFill:
        """Return the task in a form that can be pickled. Workers open encoder and cluster themselves and
        divide the speed limit.
        """
        job, limit = self.job, self.job.settings.max_docs_per_second
        settings = job.settings.model_copy(
            update={"max_docs_per_second": limit and limit / workers, "token": None}
        )
        names, inputs = (job.source, job.destination), (settings, job.recipe.text_fields, job.recipe.states)
        return PackedFill(SameCluster.of(job.cluster), pack_encoder(job.encoder), names, inputs, self.work)


class PackedFill(NamedTuple):
    """A pickled `Fill`: names and settings from which another process opens it again."""

    cluster: SameCluster
    encoder: PackedEncoder | Encoder
    names: tuple[str, str]
    inputs: tuple[ReindexSettings, tuple[str, ...], Mapping[str, Any]]
    work: Work

    def open(self, threads: int) -> Fill:
        """Open encoder and cluster in this process and return the task.

        Raises ModelError or SettingsError if either is missing or different here; Unreachable.
        """
        packed = self.encoder
        encoder = packed.open(threads) if isinstance(packed, PackedEncoder) else packed
        recipe, stop = TextRecipe(encoder, *self.inputs), Event()
        cluster = self.cluster.connect(recipe.settings.patience_s)
        job = Job(cluster.with_patience(cluster.patience_s, stop), *self.names, recipe, MemoryRejects(), stop)
        return Fill(job, self.work)


def fill_in_passes(task: Fill, since: Position | None, passes: int, total: Filling) -> None:
    """Fill the index with all operations after `since`, in at most `passes` passes, until a pass finds no new
    ones; add the counts to `total`.
    """
    job, position, share_runner = task.job, Position.at(since), runner(task.job.settings)
    settled = since
    for _ in range(passes):
        settled = settled_position(job.cluster, job.source_before, settled)
        until = settled or visible_position(job.cluster, job.source_before)
        shares = cut_into_shares(job.cluster, job.source, position, until)
        if shares:
            update_mapping(job)
        for filling in share_runner.run(task, shares):
            total.add(filling)
            for line in filling.refused:
                job.rejects.note(line)
        previous, position = position, until
        total.until, total.settled = until, settled is not None
        if position == previous:
            break


def update_mapping(job: Job) -> None:
    """Add fields that the source's mapping gained to the destination's mapping, before documents with these
    fields are copied.

    Otherwise the destination would map them dynamically, which cannot be undone. Also restores the entry in
    the source's record that names the destination, if it was overwritten. Called once the end position of a
    pass is known: by then the fields of all its documents are mapped.
    """
    if job.source != job.destination:
        view = IndexView.of(job.cluster, job.source, job.destination)
        source, destination = view.index_info(job.source), view.index_info(job.destination)
        if source.marks and destination.uuid not in source.record.destinations:
            register_destination(job.cluster, destination)  # a concurrent write removed the entry
        extend_copy_mapping(job.cluster, source, destination)


def fill_share(job: Job, work: Work, meter: Meter, share: Share) -> Filling:
    """Write a share's documents that are not current; return the counts and how far it was read."""
    filling = Filling(until=Position.at(share.since))
    with (
        closing(prefetched(work.pages(job, share, filling, meter))) as pages,
        closing(prefetched(encoded_pages(job.recipe, pages, job.listener))) as encoded,
    ):
        write_pages(job, work, encoded, filling, meter)
    return filling


def write_pages(job: Job, work: Work, pages: Iterable[list[Pending]], filling: Filling, meter: Meter) -> None:
    """Write pages until there are no more or the job has to stop; hand documents with conflicts to
    `work.settle`.

    Raises NotFound if the destination is gone: a write would create an index of its name without mapping.
    """
    for page in pages:
        if job.stop.is_set():
            break
        job.pace.wait(len(page))
        if not job.cluster.exists(job.destination):
            raise NotFound(f"index '{job.destination}' was deleted during the fill", hint=AGAIN, status=404)
        outcome = send_in_bulk(job, work.actions(job, page))
        filling.rejected += outcome.rejected
        filling.book(page)
        if conflicts := set(outcome.conflicts):
            work.settle(job, [pending for pending in page if pending.document.doc_id in conflicts], filling)
        meter.add(len(page))


def send_in_bulk(job: Job, actions: list[Action]) -> Outcome:
    """Send actions in bulk requests of a suitable size; return the joined outcome."""
    total, patience_s = Outcome(), job.settings.patience_s
    bodies = write_past_pipelines(job.cluster, job.destination, actions, job.rejects, patience_s=patience_s)
    for outcome in bodies:
        total.written += outcome.written
        total.rejected += outcome.rejected
        total.conflicts += outcome.conflicts
    return total


def encoded_pages(
    recipe: TextRecipe, pages: Iterator[list[Pending]], listener: TermTableBuilder | None = None
) -> Generator[list[Pending], None, None]:
    """Yield the documents of the pages with their vectors, in small parts of similar length.

    Parts are small because encoded documents that are not yet written are lost if the process dies. The
    `listener`, which builds the term table, gets the states of tokens; they are dropped afterwards.
    """
    calls, parts = offers_of(recipe.encoder).calls_at_once, parts_by_length(recipe, pages)
    with closing(map_in_threads(partial(encode, recipe, listener=listener), parts, calls)) as encoded:
        for part in encoded:
            if listener is None:
                yield part
                continue
            readings, without_states = [], []
            for entry in part:
                output = entry.encoded
                if output and STATES in output.kept:
                    if listener.samples(entry.document.doc_id):
                        readings.append((entry.document.source, output.kept[STATES][0]))
                    remaining = {name: values for name, values in output.kept.items() if name != STATES}
                    entry = entry._replace(encoded=output._replace(kept=remaining))
                without_states.append(entry)
            listener.add(len(part), readings)
            yield without_states


def parts_by_length(recipe: TextRecipe, pages: Iterator[list[Pending]]) -> Iterator[list[Pending]]:
    """Yield the documents of each page in parts for one call of the encoder, sorted by the length of their
    texts so that batches pad less.

    Pages are joined only for an encoder that takes more documents at once than usual.
    """
    batch_size = offers_of(recipe.encoder).documents_at_once
    for page in joined_pages(pages, batch_size if batch_size > ENCODED_TOGETHER else 1):
        page = [pending._replace(text=recipe.text_of(pending.document.source)) for pending in page]
        page.sort(key=lambda pending: len(pending.text or ""))
        yield from (page[start : start + batch_size] for start in range(0, len(page), batch_size))


def encode(
    recipe: TextRecipe, part: list[Pending], listener: TermTableBuilder | None = None
) -> list[Pending]:
    """Return the documents with what the encoder made of them. Raises ModelError for vectors not finite."""
    texts = [pending.text or recipe.text_of(pending.document.source) for pending in part]
    readings = None
    if listener is not None and any(listener.samples(pending.document.doc_id) for pending in part):
        with listener.giving_up_on_errors():
            readings = recipe.read(texts, states=True)
    pairs = list(zip(part, recipe.read(texts) if readings is None else readings, strict=True))
    for pending, encoded in pairs:
        if encoded is not None and not np.isfinite(encoded.vectors).all():
            raise ModelError(
                f"the encoder's vector for document '{pending.document.doc_id}' is not finite",
                hint="the encoder is damaged: export it again",
            )
    return [pending._replace(encoded=encoded) for pending, encoded in pairs]


def prefetched(items: Iterable[T], size: int = 3) -> Generator[T, None, None]:
    """Yield `items`, computed in a thread that is at most `size` items ahead.

    An exception of the thread is raised here. If the consumer stops early, the thread stops after its current
    item, and this function waits for that: a thread inside native code must not outlive the interpreter.
    """
    iterator = iter(items)
    results = map_in_threads(lambda _: next(iterator, END), repeat(None), size + 1, threads=1)
    try:
        with closing(results):
            yield from takewhile(lambda item: item is not END, results)
    finally:
        if hasattr(items, "close"):
            items.close()


def map_in_threads(
    function: Callable[[S], T], items: Iterable[S], calls: int, threads: int | None = None
) -> Generator[T, None, None]:
    """Yield `function(item)` in the order of `items`, with up to `calls` calls running in threads (`threads`,
    else as many as calls).

    An exception is raised where its result would have come. Running calls are waited for at the end.
    """
    with ThreadPoolExecutor(threads or calls) as pool:
        waiting: deque[Future[T]] = deque()
        try:
            for item in items:
                waiting.append(pool.submit(function, item))
                if len(waiting) >= calls:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


def joined_pages(pages: Iterable[list[T]], minimum: int) -> Iterator[list[T]]:
    """Yield pages joined until they hold at least `minimum` items; the last may hold fewer."""
    batch: list[T] = []
    for page in pages:
        batch = [*batch, *page]
        if len(batch) >= minimum:
            yield batch
            batch = []
    if batch:
        yield batch
