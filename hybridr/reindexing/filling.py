"""Reads, encodes and writes; all three overlap, with a bounded number of pages between them."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from threading import Event
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np

from ..cluster.legs.dense import as_kept
from ..cluster.reading import Position, Share, joined_pages, settled_position, text_of
from ..cluster.writing import Action, HeldRejects, Outcome, by_bytes, write
from ..encoding.bits import read_bits
from ..encoding.contract import ENCODED_TOGETHER, Encoder, Vectors, encoded_together, reads_tokens
from ..encoding.opening import Shipped, shipped, unshipped
from ..encoding.passages import ENCODED_AT_ONCE, Split, by_passages, split
from ..errors import ModelError
from ..files.manifest import fingerprint
from ..progress import Progress, silent
from ..records import Windows
from ..sharing.board import Board, Pulse
from ..sharing.leases import Ledger
from ..sharing.same_cluster import SameCluster
from ..sharing.shares import cut_up, share_as_json, share_from_json, visible_position
from .job import Filling, Job, Meter, Pending
from .runners import runner
from .settings import ReindexSettings

MAX_PASSES = 20
MAX_ROUNDS = 5
T = TypeVar("T")
S = TypeVar("S")
END = object()


class TextRecipe(Protocol):
    """What encoding needs to know: as much as a `Job` tells of it, also where there is no cluster."""

    @property
    def encoder(self) -> Encoder:
        """What encodes."""

    @property
    def settings(self) -> ReindexSettings:
        """What is written."""

    @property
    def text_fields(self) -> tuple[str, ...]:
        """Of which fields a text is joined."""

    @property
    def token_mean(self) -> Vectors | None:
        """Give the mean `(width,)` that bits of tokens are taken from; None where there are none."""

    @property
    def windows(self) -> Windows | None:
        """Give how documents are split into passages, None for one vector a document."""


class Work(NamedTuple):
    """What a target does with a share.

    `pages` reads it and leaves out what is current, counting that in the filling, whose `until` moves along;
    `actions` writes a page; `settle` sees to the documents of a page that somebody else wrote first.
    """

    pages: Callable[[Job, Share, Filling, Meter], Iterator[list[Pending]]]
    actions: Callable[[Job, list[Pending]], list[Action]]
    settle: Callable[[Job, list[Pending], Filling], None]


def meter_of(job: Job, since: Position | None, progress: Progress) -> Meter:
    """Measure the progress of a filling."""
    return Meter(progress, 0 if since else job.cluster.count(job.source))


class Stretch(NamedTuple):
    """What one pass reads: up to where, whether nothing can appear before that any more, in which shares."""

    until: Position
    settled: bool
    shares: list[Share]


@dataclass(frozen=True)
class Fill:
    """The errand of a filling: its shares are filled here, or where this travels to."""

    job: Job
    work: Work
    meter: Meter
    leases: Board | None = None

    @property
    def stop(self) -> Event:
        """Give what asks all shares in this process to end."""
        return self.job.stop

    def __call__(self, share: Share) -> Filling:
        """Fill a share."""
        filling = fill_share(self.job, self.work, self.meter, share)
        filling.refused = self.job.rejects.taken()
        return filling

    def packed(self, workers: int) -> PackedFill:
        """Get ready to travel: encoder and cluster are opened anew there, and limits divided."""
        job, limit = self.job, self.job.settings.max_docs_per_second
        settings = job.settings.model_copy(update={"max_docs_per_second": limit and limit / workers})
        names = job.source, job.destination
        given = job.text_fields, settings, job.token_bits
        pulse = self.leases.pulse if self.leases else Pulse()
        there = SameCluster.of(job.cluster)
        return PackedFill(there, shipped(job.encoder), names, given, self.work, pulse)


class PackedFill(NamedTuple):
    """What a filling is made of anew in another process."""

    cluster: SameCluster
    encoder: Shipped | Encoder
    names: tuple[str, str]
    given: tuple[tuple[str, ...], ReindexSettings, str]
    work: Work
    pulse: Pulse

    def open(self, threads: int) -> Fill:
        """Open encoder and cluster.

        Raises ModelError, SettingsError when that is not there, or another one; Unreachable.
        """
        encoder = unshipped(self.encoder, threads)
        fields, settings, token_bits = self.given
        cluster, stop = self.cluster.connect(settings.patience_s), Event()
        hurried = cluster.until(stop)
        job = Job(hurried, *self.names, encoder, fields, settings, HeldRejects(), token_bits, stop)
        return Fill(job, self.work, Meter(silent, 0), Board(cluster, job.destination, self.pulse))


def read_to_the_end(
    job: Job, work: Work, since: Position | None, passes: int, meter: Meter, total: Filling
) -> None:
    """Work on all shares behind `since` again and again until nothing new is in them."""
    position, chosen = Position.at(since), runner(job.settings)
    ledger = ledger_of(job, work, since) if chosen.leases else None
    for _ in range(passes):
        found = next_stretch(job, position, ledger)
        for filling in chosen.run(Fill(job, work, meter, ledger), found.shares):
            total.add(filling)
            for line in filling.refused:
                job.rejects.note(line)
        before, position = position, found.until
        total.until, total.settled = found.until, found.settled
        if position == before:
            break
    if ledger is None:
        Ledger(job.cluster, job.destination, key="").clear()


def ledger_of(job: Job, work: Work, since: Position | None) -> Ledger:
    """Give the leases of a filling, which a driver that was killed may have left."""
    uuids = [job.cluster.index_info(name).uuid for name in (job.source, job.destination)]
    behind = sorted(since.seq_no.items()) if since else None
    made_of = [*uuids, job.encoder.fingerprint, work.pages.__name__, job.text_fields, behind]
    return Ledger(job.cluster, job.destination, fingerprint(made_of))


def next_stretch(job: Job, position: Position, ledger: Ledger | None) -> Stretch:
    """Give what a killed driver left of this filling, or what the source holds now behind a position."""
    if ledger is not None and (left := ledger.left()) is not None:
        shares = [share_from_json(lease.state["share"]) for lease in ledger.leases()]
        return Stretch(Position(dict(left["until"])), left["settled"], shares)
    settled = settled_position(job.cluster, job.source)
    until = settled or visible_position(job.cluster, job.source)
    found = cut_up(job.cluster, job.source, position, until)
    if ledger is not None and len(found) > 1:
        plan = {"until": [[*pair] for pair in until.seq_no.items()], "settled": settled is not None}
        ledger.begin(plan, [share_as_json(one) for one in found])
    return Stretch(until, settled is not None, found)


def fill_share(job: Job, work: Work, meter: Meter, share: Share) -> Filling:
    """Write what is not current in a share; give the counts, and how far it was read."""
    filling = Filling(until=Position.at(share.since))
    with (
        closing(prefetched(work.pages(job, share, filling, meter))) as pages,
        closing(prefetched(encoded_pages(job, pages))) as encoded,
    ):
        write_pages(job, work, encoded, filling, meter)
    return filling


def write_pages(job: Job, work: Work, pages: Iterable[list[Pending]], filling: Filling, meter: Meter) -> None:
    """Write pages until there are no more, or the job is to stop.

    Nothing is written then: who lost its lease, and wakes up late, has an old state in hand.
    """
    for page in pages:
        if job.stop.is_set():
            break
        write_page(job, work, page, filling)
        meter.add(len(page))


def write_page(job: Job, work: Work, page: list[Pending], filling: Filling) -> None:
    """Write a page, and settle what conflicts."""
    job.pace.wait(len(page))
    outcome = deliver(job, work.actions(job, page))
    filling.rejected += outcome.rejected
    filling.book(page)
    if conflicts := set(outcome.conflicts):
        work.settle(job, [pending for pending in page if pending.document.doc_id in conflicts], filling)


def deliver(job: Job, actions: list[Action]) -> Outcome:
    """Write actions in bodies of the chosen size."""
    total = Outcome()
    for group in by_bytes(actions, job.settings.bulk_bytes):
        outcome = write(
            job.cluster,
            job.destination,
            group,
            rejects=job.rejects,
            patience_s=job.settings.patience_s,
            params={"pipeline": "_none"},
        )
        total.written += outcome.written
        total.rejected += outcome.rejected
        total.conflicts += outcome.conflicts
    return total


def encoded_pages(job: TextRecipe, pages: Iterator[list[Pending]]) -> Generator[list[Pending], None, None]:
    """Give each document with text its vector, some documents of like length at a time.

    What is encoded and not yet written is lost when the process dies, so the parts are small; an encoder that
    takes several calls at once never waits for the end of one.
    """
    calls = getattr(job.encoder, "calls_at_once", 1)
    with closing(mapped(partial(encode, job), parts_by_length(job, pages), calls)) as encoded:
        yield from encoded


def parts_by_length(job: TextRecipe, pages: Iterator[list[Pending]]) -> Iterator[list[Pending]]:
    """Cut pages into parts for the encoder, whose batches pad less when their texts are equally long.

    Pages are joined only for an encoder that wants more documents together than others.
    """
    together = encoded_together(job.encoder)
    for page in joined_pages(pages, together if together > ENCODED_TOGETHER else 1):
        page.sort(key=lambda pending: len(text_of(pending.document.source, job.text_fields)))
        yield from (page[start : start + together] for start in range(0, len(page), together))


def encode(job: TextRecipe, part: list[Pending]) -> list[Pending]:
    """Give each document with text its vector and bits, or the vectors of its passages."""
    texts = [text_of(pending.document.source, job.text_fields) for pending in part]
    if job.token_mean is not None:
        return encode_tokens(job, part, texts, job.token_mean)
    splits = [split(text, job.encoder, job.windows) for text in texts]
    most = max(ENCODED_AT_ONCE, encoded_together(job.encoder))
    return [
        pending
        for group in by_passages(splits, most)
        for pending in encode_passages(job, part[group], texts[group], splits[group])
    ]


def encode_passages(
    job: TextRecipe, part: list[Pending], texts: list[str], splits: list[Split]
) -> list[Pending]:
    """Encode the passages of all documents together. Raises ModelError as `checked_vectors` does."""
    passages = [text[a:b] for text, (spans, _) in zip(texts, splits, strict=True) for a, b in spans]
    owners = [number for number, (spans, _) in enumerate(splits) for _ in spans]
    vectors = job.encoder.encode_documents(passages, max_tokens=job.settings.max_tokens)  # (passages, dim)
    kept = checked_vectors(job, vectors, [part[owner] for owner in owners])
    rows = np.split(kept, np.cumsum([len(one.spans) for one in splits]))
    return [
        with_vectors(pending, found, one, job.windows is not None)
        for pending, found, one in zip(part, rows, splits, strict=False)
    ]


def encode_tokens(job: TextRecipe, part: list[Pending], texts: list[str], mean: Vectors) -> list[Pending]:
    """Read each document with text to its end: the vector of its beginning, bits of all tokens."""
    there = [number for number, text in enumerate(texts) if text]
    read, limit = [texts[number] for number in there], job.settings.max_tokens
    assert reads_tokens(job.encoder)
    vectors, bits = read_bits(job.encoder, read, mean, max_tokens=limit)
    kept = checked_vectors(job, vectors, [part[number] for number in there])
    found = dict(zip(there, zip(kept, bits, strict=True), strict=True))
    return [
        pending._replace(vector=found[number][0], bits=found[number][1]) if number in found else pending
        for number, pending in enumerate(part)
    ]


def checked_vectors(job: TextRecipe, vectors: np.ndarray, owners: Sequence[Pending]) -> np.ndarray:
    """Give vectors `(n, dim)` the values that are sent. Raises ModelError for what is no number."""
    if not np.isfinite(vectors).all():
        bad = int(np.flatnonzero(~np.isfinite(vectors).all(axis=1))[0])
        raise ModelError(
            f"the encoder gives no finite vector for document '{owners[bad].document.doc_id}'",
            hint="the encoder is damaged: export it again",
        )
    return as_kept(vectors, job.settings.vectors)


def with_vectors(pending: Pending, vectors: np.ndarray, found: Split, passages: bool) -> Pending:
    """Give a document its vectors `(n, dim)`, of which it has one at most without passages."""
    if not found.spans:
        return pending._replace(vector=None)
    if not passages:
        return pending._replace(vector=vectors[0])
    return pending._replace(vector=vectors, spans=found.spans, whole=found.whole)


def prefetched(items: Iterable[T], size: int = 2) -> Generator[T, None, None]:
    """Yield `items`, computed in a thread that is at most `size` items ahead.

    An exception of the thread is raised here. When the consumer stops early, so does the thread after its
    item, and this waits for it: a thread inside native code must not outlive the interpreter.
    """
    handed: queue.Queue[Any] = queue.Queue(size)
    stop = threading.Event()
    thread = threading.Thread(target=_hand_over, args=(items, handed, stop), daemon=True)
    thread.start()
    try:
        while (item := handed.get()) is not END:
            if isinstance(item, BaseException):
                raise item
            yield item
    finally:
        stop.set()
        thread.join()


def _hand_over(items: Iterable[T], handed: queue.Queue[Any], stop: threading.Event) -> None:
    try:
        for item in items:
            if not _put(handed, item, stop):
                break
        _put(handed, END, stop)
    except BaseException as error:  # whatever it is, the consumer must see it
        _put(handed, error, stop)
    finally:
        if hasattr(items, "close"):
            items.close()


def _put(handed: queue.Queue[Any], item: Any, stop: threading.Event) -> bool:
    while not stop.is_set():
        try:
            handed.put(item, timeout=0.1)
            return True
        except queue.Full:
            continue
    return False


def mapped(function: Callable[[S], T], items: Iterable[S], calls: int) -> Generator[T, None, None]:
    """Yield `function(item)` in the order of `items`, with up to `calls` calls under way at once.

    An exception is raised where its result would have come. Calls under way end before this does.
    """
    with ThreadPoolExecutor(calls) as pool:
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
