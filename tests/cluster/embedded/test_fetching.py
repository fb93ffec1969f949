"""Downloads from a real server on the loopback, and locks."""

from __future__ import annotations

import functools
import gzip
import hashlib
import http.server
import os
import resource
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from hybridr.errors import DownloadError, HybridrError
from hybridr.files import fetching, programs
from support.servers import Quiet, serving
from support.waiting import within


class Repository(Quiet, http.server.SimpleHTTPRequestHandler):
    """A Maven repository that can break off in the middle of a file."""

    requested: list[str]
    broken: list[int]

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
    with serving(functools.partial(handler, directory=str(folder))) as url:
        monkeypatch.setenv(fetching.MIRROR, url)
        yield handler


def published(tmp_path: Path, name: str, content: bytes) -> fetching.Artifact:
    """Put `content` into the repository."""
    sha256 = hashlib.sha256(content).hexdigest()
    artifact = fetching.Artifact("org.example", name, "1.0", "zip", sha256, len(content))
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
        files = fetching.fetch_artifacts(
            wanted, progress=lambda stage, done, total=None, note="": seen.append((stage, done, total))
        )
    assert [fetching.is_verified(files[one], one) for one in wanted] == [True, True]
    assert seen[-1] == ("download", 3_000_010, 3_000_010)
    assert len(seen) > 2
    assert sorted(repository.requested) == ["one-1.0.zip", "two-1.0.zip"]


def test_a_damaged_file_in_the_cache_is_fetched_again(tmp_path: Path, repository: type[Repository]) -> None:
    artifact = published(tmp_path, "one", b"genuine")
    (tmp_path / "cache" / "artifacts").mkdir(parents=True)
    (tmp_path / "cache" / "artifacts" / artifact.file_name).write_bytes(b"damaged")  # as long as it should be
    assert fetching.fetch_artifacts([artifact])[artifact].read_bytes() == b"genuine"


def test_a_broken_connection_is_tried_again(tmp_path: Path, repository: type[Repository]) -> None:
    artifact = published(tmp_path, "one", os.urandom(200_000))
    repository.broken.extend([False, True])
    seen: list[int] = []
    fetching.fetch_artifacts([artifact], progress=lambda stage, done, total=None, note="": seen.append(done))
    assert repository.requested == ["one-1.0.zip"] * 2
    assert seen[-1] == 200_000
    assert stored(tmp_path) == ["one-1.0.zip"]


def test_a_line_that_always_breaks_is_given_up(tmp_path: Path, repository: type[Repository]) -> None:
    artifact = published(tmp_path, "one", os.urandom(200_000))
    repository.broken.extend([True] * fetching.ATTEMPTS)
    with pytest.raises(DownloadError, match=r"org.example:one:1.0:zip could not be downloaded"):
        fetching.fetch_artifacts([artifact])
    assert len(repository.requested) == fetching.ATTEMPTS
    assert stored(tmp_path) == []


def test_a_missing_file_and_a_dead_repository(tmp_path, repository: type[Repository], monkeypatch) -> None:
    artifact = fetching.Artifact("org.example", "none", "1.0", "zip", "0" * 64, 10)
    with pytest.raises(DownloadError, match="could not be downloaded") as caught:
        fetching.fetch_artifacts([artifact])
    assert fetching.MIRROR in str(caught.value.hint)
    monkeypatch.setenv(fetching.MIRROR, "http://127.0.0.1:1")
    with pytest.raises(DownloadError, match="ConnectionError"):
        fetching.fetch_artifacts([artifact])


@pytest.mark.attack(75)
def test_a_failing_write_is_explained_and_leaves_nothing(tmp_path, repository: type[Repository]) -> None:
    artifact = published(tmp_path, "one", os.urandom(2_000_000))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, hard))  # the write itself fails, as on a full disk
    try:
        with pytest.raises(DownloadError, match="cannot write .*artifacts") as caught:
            fetching.fetch_artifacts([artifact])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "HYBRIDR_CACHE" in str(caught.value.hint)
    assert stored(tmp_path) == []
    fetching.fetch_artifacts([artifact])
    assert stored(tmp_path) == ["one-1.0.zip"]


def test_a_cache_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("HYBRIDR_CACHE", str(tmp_path / "file"))
    with pytest.raises(HybridrError, match="file") as caught:
        fetching.fetch_artifacts([])
    assert caught.value.hint


def test_one_lock_holder_at_a_time(tmp_path: Path) -> None:
    order = []

    def second() -> None:
        with programs.locked(tmp_path / "x.lock"):
            order.append("second")

    with programs.locked(tmp_path / "x.lock"):
        thread = threading.Thread(target=second)
        thread.start()
        thread.join(timeout=0.3)
        assert thread.is_alive()
        order.append("first")
    thread.join(timeout=10)
    assert order == ["first", "second"]


OBEYED = "\x1b]0;pwned\x07\x1b[2J"
PACKED = gzip.compress(b"x" * 50_000_000)[:1_000].ljust(1_000)
ANSWERS: dict[str, tuple[dict[str, str], list[bytes]]] = {
    "tampered": ({"Content-Length": "1000"}, [b"x" * 1_000]),
    "longer": ({"Content-Length": "5000000"}, [b"x" * 5_000_000]),
    "shorter": ({"Content-Length": "10"}, [b"x" * 10]),
    "lying length": ({"Content-Length": "1" + "0" * 18}, [b"x" * 1_000]),
    "odd length": ({"Content-Length": "-1"}, [b"x" * 5_000_000]),
    "endless": ({}, [b"x" * 100_000] * 1_000),
    "endless chunks": ({"Transfer-Encoding": "chunked"}, [b"186a0\r\n" + b"x" * 100_000 + b"\r\n"] * 1_000),
    "packed": ({"Content-Length": "1000", "Content-Encoding": "gzip"}, [PACKED]),
    "busy": ({"Retry-After": "100000"}, []),
    "dripping": ({"Content-Length": "1000"}, [b"x"] * 300),
    "dripping head": ({}, [b"HTTP/1.1 200 OK\r\nX-Slow: ", *[b"x"] * 300]),
}
"""What a mirror sends: headers, and the parts of what follows."""


class Hostile(Quiet):
    """A mirror that answers as `way` says, and counts what it is asked for."""

    protocol_version = "HTTP/1.1"
    way: str
    asked: list[str]

    def do_GET(self) -> None:
        self.asked.append(self.path)
        self.close_connection = True
        headers, parts = ANSWERS[self.way]
        if self.path.endswith(".sha1"):
            headers, parts = {}, [f"{OBEYED} ".encode() * 1_000_000]
        if self.way != "dripping head":
            self.send_response(429 if self.way == "busy" else 200)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
        with suppress(OSError):
            for part in parts:
                self.wfile.write(part)
                self.wfile.flush()
                time.sleep(0.1 if self.way.startswith("dripping") else 0)


@pytest.fixture
def mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Hostile]]:
    handler = type("Mirror", (Hostile,), {"asked": []})
    with serving(handler) as url:
        monkeypatch.setenv(fetching.MIRROR, url)
        yield handler


@pytest.mark.attack(130)
@pytest.mark.attack(131)
@pytest.mark.parametrize("way", [way for way in ANSWERS if not way.startswith("dripping")])
def test_a_mirror_prints_nothing_and_fills_no_disk(tmp_path, mirror, way, monkeypatch, capfd, caplog):
    mirror.way = way
    largest = [0]
    count = fetching.ByteMeter.add

    def counted(self: fetching.ByteMeter, more: int) -> None:
        files = (path for path in (tmp_path / "cache").rglob("*") if path.is_file())
        largest[0] = max([largest[0], *(path.stat().st_size for path in files)])
        count(self, more)

    monkeypatch.setattr(fetching.ByteMeter, "add", counted)
    artifact = fetching.Artifact("org.example", "one", "1.0", "zip", "0" * 64, 1_000)
    with within(30), pytest.raises(DownloadError) as caught:  # nobody's Retry-After is waited for
        fetching.fetch_artifacts([artifact])
    assert len(mirror.asked) == 1, "neither a checksum nor a second try of a file of another length"
    assert largest[0] <= 1_000 + fetching.AT_ONCE
    assert stored(tmp_path) == []
    assert OBEYED not in str(caught.value)
    assert capfd.readouterr() == ("", "")
    assert not [record for record in caplog.records if record.name.startswith("jgo")]


@pytest.mark.attack(137)
@pytest.mark.parametrize("way", ["dripping", "dripping head"])
def test_a_mirror_that_sends_a_byte_now_and_then_is_left(tmp_path, mirror, way, monkeypatch):
    mirror.way = way
    monkeypatch.setattr(fetching, "TIMEOUT_S", 1)
    artifact = fetching.Artifact("org.example", "one", "1.0", "zip", "0" * 64, 1_000)
    with within(20), pytest.raises(DownloadError, match=r"one:1.0:zip: \d+ bytes in 1 s"):
        fetching.fetch_artifacts([artifact])
    assert stored(tmp_path) == []


@pytest.mark.attack(139)
def test_leftovers_that_somebody_still_deletes_and_writes_stop_nobody(tmp_path, repository):
    """What a killed start had started goes on for a while, in the folder that the next one clears."""
    artifact = published(tmp_path, "one", b"genuine")
    left = tmp_path / "cache" / "artifacts" / ".one-x1y2"
    left.mkdir(parents=True)
    script = (
        "import os, sys, time\n"
        "end = time.monotonic() + 2\n"
        "while time.monotonic() < end:\n"
        "    try:\n"
        "        os.makedirs(sys.argv[1] + '/a/b', exist_ok=True)\n"
        "        for n in range(50): open(f'{sys.argv[1]}/a/b/{n}', 'w').close()\n"
        "        for n in range(50): os.unlink(f'{sys.argv[1]}/a/b/{n}')\n"
        "    except OSError: pass\n"
    )
    orphan = subprocess.Popen([sys.executable, "-c", script, str(left)])
    try:
        while orphan.poll() is None:
            programs.clear_leftovers(left.parent, ".*-*")
            assert fetching.fetch_artifacts([artifact])[artifact].read_bytes() == b"genuine"
            home = programs.ensure_program(left.parent / "home", lambda: False, made_in)
            assert (home / "file").read_text() == "whole"
    finally:
        orphan.wait()
    programs.clear_leftovers(left.parent, ".*-*")
    assert not left.exists()


def made_in(folder: Path) -> Path:
    (folder / "made").mkdir()
    (folder / "made" / "file").write_text("whole")
    return folder / "made"
