"""Works on shares in processes of a Ray cluster.

Actors of Ray Core, and not Ray Data: each opens the encoder once and then fills share after share with the
very code that a thread would run, so that what is read, encoded, written and tried again is the same. Ray
places the processes, says which of them died, and carries calls between them. The index holds what is done:
whoever begins a share again leaves out what is there. A worker that was thought dead and writes late does no
harm: `targets` write only over what they saw, and only what the source still holds.

Ray speaks by pickle between its own processes, and the cluster's password goes to the workers by it: whoever
can reach a Ray cluster can run anything there. It must be one that is trusted.
"""

from __future__ import annotations

import os
import re
import socket
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple

from ...cluster.failures import shortened
from ...cluster.reading import Share
from ...errors import ClusterError, HybridrError, MissingExtra, ModelError, SettingsError, how_to_install
from ...files.manifest import release
from ..job import Filling
from ..settings import ReindexSettings
from . import PackedTask, Task

MOST_DEATHS = 5
"""Of each worker, without one share done by any in between: then it is no accident. A machine takes many."""
ROUNDING = 1e-6
FAREWELL_S = 20.0
ANSWER_S = 10.0
ADDRESS = "--ray-address HOST:PORT, as `ray start --head` prints it; without it one starts here"
JOINING = """\
on this machine: ray start --address=HOST:PORT   makes it one of the Ray cluster; \
or, from outside of it: --ray-address ray://HOST:10001"""
STORE_BYTES = 100_000_000  # of the Ray that is started here: what it carries is small


class Ray:
    """Processes that Ray places, on this machine or many."""

    name = "ray"
    help = "in processes of a Ray cluster, of this machine without --ray-address"

    def __init__(self, settings: ReindexSettings) -> None:
        self.settings = settings

    def check(self) -> None:
        """Raise SettingsError without the package, and for an address where nothing listens."""
        if find_spec("ray") is None:
            lacking = "--runner ray needs the package 'ray', which is not installed"
            raise SettingsError(lacking, hint=how_to_install("ray"))
        address = address_of(self.settings)
        if address in ("local", "auto"):
            return
        match = re.fullmatch(r"(?:ray://)?(\[?[\w.:-]+?\]?):(\d{1,5})", address)
        if match is None:
            raise SettingsError(f"'{address}' is not the address of a Ray cluster", hint=ADDRESS)
        try:  # Ray itself would go on asking for ever
            socket.create_connection((match[1].strip("[]"), int(match[2])), timeout=ANSWER_S).close()
        except (OSError, OverflowError) as error:
            raise SettingsError(f"nothing answers at '{address}': {error}", hint=ADDRESS) from None

    def run(self, task: Task, shares: Sequence[Any]) -> list[Any]:
        """Do the task with every share; see `Runner`. One alone is worked on here."""
        self.check()
        if len(shares) < 2:
            return [task(share) for share in shares]
        with within_ray(self.settings), WorkerPool(task, self.settings) as pool:
            return pool.run(shares)


class Refusal(NamedTuple):
    """Why a worker cannot go on: an error of ours as it travels, by the name of its kind."""

    kind: str
    message: str
    hint: str | None

    @classmethod
    def of(cls, error: HybridrError) -> Refusal:
        """Return the refusal, with the machine on which it happened."""
        return cls(type(error).__name__, f"{error.message} (a worker on {socket.gethostname()})", error.hint)

    def error(self) -> HybridrError:
        """Return the refusal as an error of this process."""
        kind = getattr(sys.modules[HybridrError.__module__], self.kind)
        return (ModelError if kind is MissingExtra else kind)(self.message, hint=self.hint)


class Worker:
    """A process of the pool: an actor, which opens the task once and does it with share after share."""

    def __init__(self, release: str, threads: int, packed: Sequence[Any]) -> None:
        self._release, self._threads, self._packed = release, threads, packed
        self._task: Task | None = None

    def open(self) -> Refusal | None:
        """Open the task, before a share is given to this worker."""
        try:
            self._opened()
        except HybridrError as error:
            return Refusal.of(error)
        return None

    def fill(self, share: Share) -> Filling | Refusal:
        """Fill a share, and return what came of it."""
        try:
            filling: Filling = self._opened()(share)
        except HybridrError as error:
            return Refusal.of(error)
        return filling

    def stop(self) -> None:
        """End after what is at hand."""
        if self._task is not None:
            self._task.stop.set()

    def _opened(self) -> Task:
        if self._task is None:
            if self._release != (own := release()):
                raise SettingsError(
                    f"the driver is hybridr {self._release}, a worker hybridr {own}",
                    hint="install the same clone or wheel of hybridr on every machine of the Ray cluster",
                )
            try:
                packed: PackedTask = package().get(self._packed[0])
            except Exception as error:  # whatever unpickling says
                raise ModelError(
                    f"what the driver sent cannot be read: {last_line(error)}",
                    hint="the same hybridr, encoder packages and Python on every machine of the Ray cluster",
                ) from error
            self._task = packed.open(self._threads)
        return self._task


class WorkerCall(NamedTuple):
    """A call that was not answered yet: of a worker, for a share by its number, None while it opens."""

    worker: Any
    number: int | None = None


class WorkerPool:
    """The workers: hired for a block, called, replaced when they die, and dismissed."""

    def __init__(self, task: Task, settings: ReindexSettings) -> None:
        self._ray, self._settings, self._meter = package(), settings, task.meter
        try:
            self._packed = [self._ray.put(task.packed(settings.workers))]
        except (AttributeError, TypeError) as error:
            raise ModelError(
                f"the encoder cannot travel to a worker: {last_line(error)}",
                hint="name an encoder folder, which is opened there, or leave out --runner ray",
            ) from None
        self._calls: dict[Any, WorkerCall] = {}
        self._idle: list[Any] = []
        self._deaths = 0
        for _ in range(settings.workers):
            self._hire()

    def _hire(self) -> None:
        """Start a worker, with its part of the processors, so that all find room.

        It is given a share when it has answered once. Ray's own `max_restarts` and `max_task_retries` would
        leave the share of a lost machine to a worker that waits for room which the others do not have.
        """
        gpus = self._settings.gpus_per_worker
        processors = processors_each(machines(self._ray), self._settings.workers, gpus)
        room = {"num_cpus": processors, "num_gpus": gpus}
        actor = self._ray.remote(Worker).options(**room, max_concurrency=2)  # `stop` while it works
        worker = actor.remote(release(), max(1, int(processors)), self._packed)
        self._calls[worker.open.remote()] = WorkerCall(worker)

    def run(self, shares: Sequence[Share]) -> list[Filling]:
        """Let the workers fill all shares; return what came of each, in their order."""
        fillings: dict[int, Filling] = {}
        waiting = deque(range(len(shares)))
        while len(fillings) < len(shares):
            while waiting and self._idle:
                worker, number = self._idle.pop(), waiting.popleft()
                self._calls[worker.fill.remote(shares[number])] = WorkerCall(worker, number)
            for answered in self._ray.wait(list(self._calls))[0]:
                call = self._calls.pop(answered)
                try:
                    answer = self._ray.get(answered)
                except self._ray.exceptions.RayActorError as error:
                    self._deaths += 1
                    if self._deaths > MOST_DEATHS * self._settings.workers:
                        raise ClusterError(
                            f"workers die as soon as they begin: {last_line(error)}",
                            hint="Ray's logs say why; too little memory? fewer --workers",
                        ) from None
                    self._hire()
                    waiting.extend([] if call.number is None else [call.number])
                    continue
                if isinstance(answer, Refusal):
                    raise answer.error()
                self._idle.append(call.worker)
                if call.number is not None:
                    fillings[call.number], self._deaths = answer, 0
                    self._meter.add(answer.looked_at)
        return [fillings[number] for number in range(len(shares))]

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Let the processes go; after an error all are asked to end after what is at hand, and waited for."""
        working = [call.worker for call in self._calls.values()]
        if kind is not None:
            for worker in working:
                worker.stop.remote()
            with suppress(Exception):  # a Ray that is gone is why this is called
                self._ray.wait(list(self._calls), num_returns=len(working), timeout=FAREWELL_S)
        for worker in (*self._idle, *working):
            with suppress(Exception):
                self._ray.kill(worker)


class Machine(NamedTuple):
    """What a machine of the Ray cluster has."""

    processors: float
    gpus: float = 0.0

    def room(self, processors: float, gpus: float) -> int:
        """Return how many workers that need so much find room here."""
        by_processors = int(self.processors / processors + ROUNDING)
        return min(by_processors, int(self.gpus / gpus + ROUNDING)) if gpus else by_processors


def machines(ray: Any) -> list[Machine]:
    """List what the machines of the Ray cluster have that live now."""
    resources = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    return [Machine(resources.get("CPU", 0.0), resources.get("GPU", 0.0)) for resources in resources]


def processors_each(machines: Sequence[Machine], workers: int, gpus: float = 0.0) -> float:
    """Return the most processors that every worker can have, for none works on two machines.

    A whole number, or a part of one where there are more workers than processors. With too few GPUs for all,
    the others wait.
    """
    if gpus:
        workers = min(workers, sum(int(machine.gpus / gpus + ROUNDING) for machine in machines))
    largest = int(max((machine.processors for machine in machines), default=0))
    tried: list[float] = [*range(largest, 0, -1), *(1 / part for part in range(2, workers))]
    for processors in tried:
        if sum(machine.room(processors, gpus) for machine in machines) >= workers:
            return processors
    return 1 / max(1, workers)


def address_of(settings: ReindexSettings) -> str:
    """Return the address of the Ray cluster; "local" is one that is started here."""
    return settings.ray_address or os.environ.get("RAY_ADDRESS") or "local"


@contextmanager
def within_ray(settings: ReindexSettings) -> Iterator[None]:
    """Join the Ray cluster for the block, or start one on this machine; one that was joined before is kept.

    Raises SettingsError when nothing answers at the address, or no GPU is here that was asked for.
    """
    ray = package()
    if ray.is_initialized():
        yield
        return
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # it would tell its makers
    address = address_of(settings)
    here = {"include_dashboard": False, "object_store_memory": STORE_BYTES} if address == "local" else {}
    try:
        ray.init(address=address, log_to_driver=False, logging_level="ERROR", **here)
    except Exception as error:  # ConnectionError, ValueError, RuntimeError, by what is wrong
        hint = ADDRESS if address in ("local", "auto") else JOINING
        raise SettingsError(f"no Ray cluster at '{address}': {last_line(error)}", hint=hint) from None
    try:
        check_gpus(machines(ray), settings, here=address == "local")
        yield
    finally:
        ray.shutdown()


def check_gpus(machines: Sequence[Machine], settings: ReindexSettings, *, here: bool) -> None:
    """Raise SettingsError where no worker could ever begin; in a Ray cluster, some may wait for a GPU."""
    each, most_gpus = settings.gpus_per_worker, max((machine.gpus for machine in machines), default=0.0)
    if here and each * settings.workers > most_gpus:
        raise SettingsError(f"{each * settings.workers:g} GPUs are asked for, this machine has {most_gpus:g}")
    if each > most_gpus:
        raise SettingsError(
            f"each worker is to have {each:g} GPUs, no machine of the Ray cluster has more "
            f"than {most_gpus:g}",
            hint="ray status   shows what it has; machines with GPUs must be there before the command starts",
        )


def package() -> Any:
    """Import Ray, which takes a second."""
    return import_module("ray")


def last_line(error: BaseException) -> str:
    """Return the end of what an error says, where Ray puts the reason."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return shortened(lines[-1] if lines else type(error).__name__)
