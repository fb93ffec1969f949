"""Runner that works on shares in processes of a Ray cluster.

Actors of Ray Core, not Ray Data: each opens the encoder once and then fills share after share with the same
code as a thread. Ray places the processes, reports which of them died, and carries calls between them. The
index is the checkpoint: a worker that starts a share again skips documents that are there. A worker that was
thought dead and writes late does no harm: `targets` write only over the state they saw, and only what the
source still holds.

Ray sends pickles between its processes, and the cluster's password travels with them: whoever can reach a Ray
cluster can run anything there. It must be trusted.
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
from ...errors import ClusterError, HybridrError, MissingExtra, ModelError, SettingsError, install_command
from ...files.local import release
from ..job import Filling
from ..settings import ReindexSettings
from . import Task

MAX_DEATHS = 5
"""Most deaths per worker without a finished share in between; fewer may be accidents."""
ROUNDING = 1e-6
FAREWELL_S = 20.0
ANSWER_S = 10.0
ADDRESS = "--ray-address HOST:PORT, as `ray start --head` prints it; without it one starts here"
JOINING = """\
on this machine: ray start --address=HOST:PORT   makes it one of the Ray cluster; \
or, from outside of it: --ray-address ray://HOST:10001"""
STORE_BYTES = 100_000_000  # of a Ray that is started here: it carries little


class Ray:
    """Runs shares in processes that Ray places, on this machine or many."""

    name = "ray"
    help = "in processes of a Ray cluster, of this machine without --ray-address"

    def __init__(self, settings: ReindexSettings) -> None:
        self.settings = settings

    def check(self) -> None:
        """Raise SettingsError if the package ray is missing, or nothing listens at the given address."""
        if find_spec("ray") is None:
            lacking = "--runner ray needs the package 'ray', which is not installed"
            raise SettingsError(lacking, hint=install_command("ray"))
        address = ray_address(self.settings)
        if address in ("local", "auto"):
            return
        match = re.fullmatch(r"(?:ray://)?(\[?[\w.:-]+?\]?):(\d{1,5})", address)
        if match is None:
            raise SettingsError(f"'{address}' is not the address of a Ray cluster", hint=ADDRESS)
        try:  # Ray itself would retry for ever
            socket.create_connection((match[1].strip("[]"), int(match[2])), timeout=ANSWER_S).close()
        except (OSError, OverflowError) as error:
            raise SettingsError(f"nothing answers at '{address}': {error}", hint=ADDRESS) from None

    def run(self, task: Task, shares: Sequence[Any]) -> list[Any]:
        """Call the task with every share; see `Runner`. A single share is worked on in this process."""
        self.check()
        if len(shares) < 2:
            return [task(share) for share in shares]
        with within_ray(self.settings), WorkerPool(task, self.settings) as pool:
            return pool.run(shares)


class Refusal(NamedTuple):
    """A HybridrError of a worker in a form that can be sent to the driver."""

    kind: str
    message: str
    hint: str | None

    @classmethod
    def of(cls, error: HybridrError) -> Refusal:
        """Return the error as a refusal, with the name of this machine in its message."""
        return cls(type(error).__name__, f"{error.message} (a worker on {socket.gethostname()})", error.hint)

    def error(self) -> HybridrError:
        """Return the HybridrError to raise in this process."""
        kind = getattr(sys.modules[HybridrError.__module__], self.kind)
        return (ModelError if kind is MissingExtra else kind)(self.message, hint=self.hint)


class Worker:
    """A worker process (Ray actor): opens the task once and fills share after share."""

    def __init__(self, release: str, threads: int, packed: Sequence[Any]) -> None:
        self._release, self._threads, self._packed = release, threads, packed
        self._task: Task | None = None

    def open(self) -> Refusal | None:
        """Open the task; return why that failed, or None."""
        try:
            self._opened()
        except HybridrError as error:
            return Refusal.of(error)
        return None

    def fill(self, share: Share) -> Filling | Refusal:
        """Fill a share; return its counts, or why that failed."""
        try:
            filling: Filling = self._opened()(share)
        except HybridrError as error:
            return Refusal.of(error)
        return filling

    def stop(self) -> None:
        """Ask the task to end after the page at hand."""
        if self._task is not None:
            self._task.stop.set()

    def _opened(self) -> Task:
        """Return the unpacked task. Raises SettingsError for another hybridr, ModelError if that fails."""
        if self._task is None:
            if self._release != (own_release := release()):
                raise SettingsError(
                    f"the driver is hybridr {self._release}, a worker hybridr {own_release}",
                    hint="install the same clone or wheel of hybridr on every machine of the Ray cluster",
                )
            try:
                packed = ray_module().get(self._packed[0])
            except Exception as error:  # unpickling can raise anything
                raise ModelError(
                    f"what the driver sent cannot be read: {last_line(error)}",
                    hint="the same hybridr, encoder packages and Python on every machine of the Ray cluster",
                ) from error
            self._task = packed.open(self._threads)
        return self._task


class WorkerPool:
    """The workers of a run: started, called, replaced when they die, and stopped at the end of the block."""

    def __init__(self, task: Task, settings: ReindexSettings) -> None:
        self._ray, self._settings, self._meter = ray_module(), settings, task.meter
        try:
            self._packed = [self._ray.put(task.packed(settings.workers))]
        except (AttributeError, TypeError) as error:
            raise ModelError(
                f"the encoder cannot travel to a worker: {last_line(error)}",
                hint="name an encoder folder, which is opened there, or leave out --runner ray",
            ) from None
        # Running call -> its worker, and the number of its share (None while the worker opens its task).
        self._calls: dict[Any, tuple[Any, int | None]] = {}
        self._idle: list[Any] = []
        self._deaths = 0
        for _ in range(settings.workers):
            self._hire()

    def _hire(self) -> None:
        """Start a worker with its part of the processors.

        It gets a share once it has opened its task. Ray's own `max_restarts` and `max_task_retries` are not
        used: they would leave the share of a lost machine to a worker that waits for room.
        """
        gpus = self._settings.gpus_per_worker
        processors = processors_each(machines(self._ray), self._settings.workers, gpus)
        room = {"num_cpus": processors, "num_gpus": gpus}
        actor = self._ray.remote(Worker).options(**room, max_concurrency=2)  # `stop` is called during `fill`
        worker = actor.remote(release(), max(1, int(processors)), self._packed)
        self._calls[worker.open.remote()] = (worker, None)

    def run(self, shares: Sequence[Share]) -> list[Filling]:
        """Let the workers fill all shares; return the results in the order of the shares."""
        fillings: dict[int, Filling] = {}
        waiting = deque(range(len(shares)))
        while len(fillings) < len(shares):
            while waiting and self._idle:
                worker, number = self._idle.pop(), waiting.popleft()
                self._calls[worker.fill.remote(shares[number])] = (worker, number)
            for answered in self._ray.wait(list(self._calls))[0]:
                worker, share_number = self._calls.pop(answered)
                try:
                    answer = self._ray.get(answered)
                except self._ray.exceptions.RayActorError as error:
                    self._deaths += 1
                    if self._deaths > MAX_DEATHS * self._settings.workers:
                        raise ClusterError(
                            f"workers die as soon as they begin: {last_line(error)}",
                            hint="Ray's logs say why; too little memory? fewer --workers",
                        ) from None
                    self._hire()
                    waiting.extend([] if share_number is None else [share_number])
                    continue
                if isinstance(answer, Refusal):
                    raise answer.error()
                self._idle.append(worker)
                if share_number is not None:
                    fillings[share_number], self._deaths = answer, 0
                    self._meter.add(answer.encoded + answer.without_text + answer.skipped)
        return [fillings[number] for number in range(len(shares))]

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Stop all workers; after an error, wait for them to end after the page at hand."""
        working = [worker for worker, _ in self._calls.values()]
        if kind is not None:
            for worker in working:
                worker.stop.remote()
            with suppress(Exception):  # Ray itself may have failed
                self._ray.wait(list(self._calls), num_returns=len(working), timeout=FAREWELL_S)
        for worker in (*self._idle, *working):
            with suppress(Exception):
                self._ray.kill(worker)


class Machine(NamedTuple):
    """Processors and GPUs of a machine of the Ray cluster."""

    processors: float
    gpus: float = 0.0

    def room(self, processors: float, gpus: float) -> int:
        """Return how many workers with that many processors and GPUs fit on this machine."""
        by_processors = int(self.processors / processors + ROUNDING)
        return min(by_processors, int(self.gpus / gpus + ROUNDING)) if gpus else by_processors


def machines(ray: Any) -> list[Machine]:
    """Return the resources of the machines of the Ray cluster that are alive."""
    resources = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    return [Machine(resources.get("CPU", 0.0), resources.get("GPU", 0.0)) for resources in resources]


def processors_each(machines: Sequence[Machine], workers: int, gpus: float = 0.0) -> float:
    """Return the largest number of processors that each worker can get, as a worker runs on one machine.

    It is a whole number, or a fraction if there are more workers than processors. With too few GPUs for all,
    the remaining workers wait.
    """
    if gpus:
        workers = min(workers, sum(int(machine.gpus / gpus + ROUNDING) for machine in machines))
    largest = int(max((machine.processors for machine in machines), default=0))
    candidates: list[float] = [*range(largest, 0, -1), *(1 / part for part in range(2, workers))]
    for processors in candidates:
        if sum(machine.room(processors, gpus) for machine in machines) >= workers:
            return processors
    return 1 / max(1, workers)


def ray_address(settings: ReindexSettings) -> str:
    """Return the address of the Ray cluster; "local" means that one is started on this machine."""
    return settings.ray_address or os.environ.get("RAY_ADDRESS") or "local"


@contextmanager
def within_ray(settings: ReindexSettings) -> Iterator[None]:
    """Join the Ray cluster for the block, or start one on this machine; a connection made before stays open.

    Raises SettingsError if nothing answers at the address, or the required GPUs are missing.
    """
    ray = ray_module()
    if ray.is_initialized():
        yield
        return
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # no telemetry unless the user wants it
    address = ray_address(settings)
    local = {"include_dashboard": False, "object_store_memory": STORE_BYTES} if address == "local" else {}
    try:
        ray.init(address=address, log_to_driver=False, logging_level="ERROR", **local)
    except Exception as error:  # ConnectionError, ValueError, RuntimeError, by what is wrong
        hint = ADDRESS if address in ("local", "auto") else JOINING
        raise SettingsError(f"no Ray cluster at '{address}': {last_line(error)}", hint=hint) from None
    try:
        check_gpus(machines(ray), settings, is_local=address == "local")
        yield
    finally:
        ray.shutdown()


def check_gpus(machines: Sequence[Machine], settings: ReindexSettings, *, is_local: bool) -> None:
    """Raise SettingsError if no machine has the GPUs of one worker, or (if the cluster is only this machine)
    this machine lacks those of all workers.
    """
    each, most_gpus = settings.gpus_per_worker, max((machine.gpus for machine in machines), default=0.0)
    if is_local and each * settings.workers > most_gpus:
        raise SettingsError(f"{each * settings.workers:g} GPUs are asked for, this machine has {most_gpus:g}")
    if each > most_gpus:
        raise SettingsError(
            f"each worker is to have {each:g} GPUs, no machine of the Ray cluster has more "
            f"than {most_gpus:g}",
            hint="ray status   shows what it has; machines with GPUs must be there before the command starts",
        )


def ray_module() -> Any:
    """Return the module ray, imported on first use because that takes a second."""
    return import_module("ray")


def last_line(error: BaseException) -> str:
    """Return the last line of an error's message, where Ray puts the reason."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return shortened(lines[-1] if lines else type(error).__name__)
