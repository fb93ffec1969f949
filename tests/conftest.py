"""Fixtures of the whole suite: real nodes, the packaged model, the open collections.

A missing node, model or collection fails the run where `CI=true`; nothing skips there.
"""

from __future__ import annotations

import logging
import os
import re
import tarfile
import tempfile
import uuid
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from hybridr import connect
from hybridr.cluster import destinations
from hybridr.cluster.connection import Cluster
from hybridr.cluster.embedded import process
from hybridr.cluster.embedded import state as state_module
from hybridr.cluster.embedded.configuration import launch_command
from hybridr.cluster.embedded.layout import Java
from hybridr.cluster.settings import NodeSettings
from hybridr.demo import demo
from hybridr.encoders.export import exporting
from hybridr.files.local import cache_folder
from support.corpus import drop_indices
from support.java import OWN_OPTIONS, QUICK
from support.places import COLLECTIONS
from support.secured import start_secured

DEAR_NODES = {"ml": "ml_cluster", "secure": "secure_node", "secured": "secured_node", "elastic": "elastic"}
"""Mark and fixture: half a minute to start, and 2 GB of memory."""
PLAIN = {"node": "cluster", "model": "minilm_encoder_folder"}
"""Mark and fixture: told by the fixtures of a test."""
NODES = {"server", "production"}
"""Folders of tests that need a node."""
SHARED_MEMORY = Path("/dev/shm")
ENOUGH_MEMORY = 8 << 30
"""Bytes, for all processes."""
read_library = demo._read_library
COMPARED = {name: getattr(exporting, name) for name in ("TEXTS", "GENERATED")}
IN_CI = os.environ.get("CI") == "true"


class Loggers(dict[str, Any]):
    """All loggers. pytest walks through them before each test while a server's thread may add its own."""

    def values(self) -> list[Any]:  # type: ignore[override]
        return list(super().values())


logging.Logger.manager.loggerDict = Loggers(logging.Logger.manager.loggerDict)


def quick_to_start(settings: NodeSettings, folder: Path, home: Path, java: Java) -> list[str]:
    """Have Java compile once, not twice, believe its own classes, collect garbage in one thread, and not ask
    OpenSearch's agent at every file whether a plugin may open it.

    A node takes a third of the processor to start and to work. That collector lets garbage lie, which the
    limit on memory must not count. `tests/server/cluster/embedded/test_process.py` starts one as users do.
    """
    program, *others, data = launch_command(settings, folder, home, java)
    if settings.is_elasticsearch:  # its launcher starts another Java, which reads its options there
        options = folder / "config" / "jvm.options.d" / "quick.options"
        options.write_text(OWN_OPTIONS, encoding="utf-8")
    of_agent = next(home.glob("agent/*-bootstrap-*.jar"), None)
    kept = [
        f"-Xbootclasspath/a:{of_agent}" if one.startswith("-javaagent:") else one
        for one in others
        if one != "-XX:+UseG1GC"
    ]
    return [program, *QUICK, *kept, "-Eindices.breaker.total.use_real_memory=false", data]


def memory_folder() -> str | None:
    """Return a folder in memory with room for the data of nodes; None if this machine has none.

    A disk takes some 10 ms to sync, which a node does several times whenever an index or a mapping changes.
    """
    if not SHARED_MEMORY.is_dir():
        return None
    device = os.statvfs(SHARED_MEMORY)
    has_room = device.f_bavail * device.f_frsize >= ENOUGH_MEMORY
    return str(SHARED_MEMORY) if has_room and not device.f_flag & os.ST_NOEXEC else None


@pytest.fixture(scope="session", autouse=True)
def own_home() -> Iterator[Path]:
    """Keep the suite away from the user's nodes and encoders; only the downloads are shared.

    Not in pytest's own folder, which is closed to others: a node started by root runs as somebody else.
    """
    downloads = cache_folder()
    with tempfile.TemporaryDirectory(
        prefix="hybridr-tests-", dir=memory_folder(), ignore_cleanup_errors=True
    ) as folder:
        home = Path(folder)
        home.chmod(0o755)
        patch = pytest.MonkeyPatch()
        for name in [name for name in os.environ if name.startswith("HYBRIDR_")]:
            patch.delenv(name)
        patch.setenv("HYBRIDR_HOME", str(home))
        patch.setenv("HYBRIDR_CACHE", str(downloads))
        patch.setenv("HF_HUB_OFFLINE", "1")
        patch.setattr(process, "launch_command", quick_to_start)
        patch.setattr(destinations, "SETTLE_S", 0.0)
        patch.setattr(exporting, "TEXTS", {"torch": 12, "numpy": 4})
        patch.setattr(exporting, "GENERATED", 2)
        patch.setattr(demo, "_read_library", cache(lambda root: tuple(read_library(root))))
        yield home
        patch.undo()


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Run coroutines among the tests, those marked `anyio`, in asyncio."""
    return "asyncio"


@pytest.fixture(scope="session")
def cluster(own_home: Path) -> Iterator[Cluster]:
    """Start an embedded OpenSearch 3.6.0 for the whole session."""
    state = process.start(NodeSettings(name="default"))
    yield connect(state.url)
    process.stop("default")


@pytest.fixture(scope="session")
def secure_node(own_home: Path) -> Iterator[state_module.NodeState]:
    """Start an embedded OpenSearch 2.19.1 with TLS and a password for the whole session."""
    yield process.start(NodeSettings(name="secure", version="2.19.1", secure=True))
    process.stop("secure")


@pytest.fixture(scope="session")
def secured_node(own_home: Path) -> Iterator[state_module.NodeState]:
    """Start a secured OpenSearch 3.6.0, which users cannot have of us, for the whole session."""
    yield start_secured("secured")
    process.stop("secured")


@pytest.fixture(scope="session")
def ml_cluster(own_home: Path) -> Iterator[Cluster]:
    """Start an embedded OpenSearch 3.6.0 that can run models for the whole session."""
    state = process.start(NodeSettings(name="ml", heap="2g", with_ml=True))
    yield connect(state.url)
    process.stop("ml")


@pytest.fixture(scope="session")
def elastic(own_home: Path) -> Iterator[Cluster]:
    """Start the core of Elasticsearch for the whole session, or take the cluster that TRY_URL names."""
    if url := os.environ.get("TRY_URL"):
        yield connect(url)
        return
    state = process.start(NodeSettings(name="elastic", product="elasticsearch", heap="512m"))
    yield connect(state.url)
    process.stop("elastic", delete_data=True)


@pytest.fixture
def index_name(cluster: Cluster) -> Iterator[str]:
    """Give a fresh index name; whatever begins with it, and is kept beside it, is deleted afterwards."""
    name = f"t-{uuid.uuid4().hex[:8]}"
    yield name
    drop_indices(cluster, f"{name}*,.hybridr-*-{name}*")


@pytest.fixture(scope="session")
def minilm_encoder_folder(own_home: Path) -> Path:
    """Export the packaged MiniLM once."""
    from hybridr.encoders.export.exporting import minilm_encoder

    return minilm_encoder()


@pytest.fixture(scope="session")
def tiny(own_home: Path) -> Path:
    """Export an encoder of two small layers: real, and fast."""
    from support.tiny import tiny_retriever  # imports torch, which few tests need

    return exporting.export(tiny_retriever(), own_home / "tiny")


@pytest.fixture
def all_texts_of_parity(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compare as many texts as users do; the suite exports some two hundred encoders, with fewer."""
    for name, number in COMPARED.items():
        monkeypatch.setattr(exporting, name, number)


@pytest.fixture(scope="session")
def collection(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Unpack an open collection beside the checkout; a user's clone has none and skips."""
    unpacked = tmp_path_factory.mktemp("collections")

    def unpack(name: str) -> Path:
        archive = COLLECTIONS / f"{name}.tar.xz"
        if not archive.is_file():
            reason = f"the open collection {name} is not beside this checkout"
            pytest.fail(reason) if IN_CI else pytest.skip(reason)
        if not (unpacked / name).is_dir():
            with tarfile.open(archive) as packed:
                packed.extractall(unpacked, filter="data")
        return unpacked / name

    return unpack


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what needs a plain node or the model, and run what needs a node first: it takes longest.

    Raises UsageError for a dear node without its mark.
    """
    for item in items:
        for mark, fixture in PLAIN.items():
            if fixture in getattr(item, "fixturenames", ()):
                item.add_marker(mark)
        for mark, fixture in DEAR_NODES.items():
            if fixture in getattr(item, "fixturenames", ()) and item.get_closest_marker(mark) is None:
                raise pytest.UsageError(f"{item.nodeid} uses {fixture}: it needs the mark '{mark}'")
    items.sort(key=lambda item: (NODES.isdisjoint(item.path.parts), dear_node(item.path) is None))


@cache
def dear_node(file: Path) -> str | None:
    """Name the mark of the dear node that a file of tests needs."""
    text = file.read_text(encoding="utf-8")
    return next((mark for mark in DEAR_NODES if re.search(rf"mark\.{mark}\b", text)), None)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give one process all files that need the same dear node; other files go where there is room."""
    from xdist.scheduler import LoadFileScheduling

    class ByNode(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            return dear_node(config.rootpath / file) or file

    return ByNode(config, log)


def pytest_collection_finish(session: pytest.Session) -> None:
    session.config.stash[COLLECTED] = len(session.items)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_node_collection_finished(node: Any, ids: list[str]) -> None:
    """Several processes: each collects all tests, the one that tells them apart none."""
    node.config.stash[COLLECTED] = len(ids)


COLLECTED = pytest.StashKey[int]()
DESELECTED = pytest.StashKey[int]()


def pytest_deselected(items: list[pytest.Item]) -> None:
    for item in items[:1]:
        item.config.stash[DESELECTED] = item.config.stash.get(DESELECTED, 0) + len(items)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print how many tests were collected and run; in CI they must be the same number."""
    collected = config.stash.get(COLLECTED, 0) + config.stash.get(DESELECTED, 0)
    terminalreporter.write_line(
        f"collected {collected}, run {collected - left_out(config, terminalreporter)}"
    )


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Fail in CI when a test was skipped or deselected."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None:  # one of several processes
        return
    if IN_CI and exitstatus == 0 and left_out(session.config, reporter):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def left_out(config: pytest.Config, reporter: pytest.TerminalReporter) -> int:
    return len(reporter.stats.get("skipped", [])) + config.stash.get(DESELECTED, 0)
