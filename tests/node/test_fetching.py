"""Downloads from a real server on the loopback, and locks."""

from __future__ import annotations

import functools
import hashlib
import http.server
import os
import resource
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from hybridr.errors import DownloadError, HybridrError, MissingExtra
from hybridr.node import artifacts, fetching, programs


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


@pytest.mark.attack(75)
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


@pytest.mark.attack(75)
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


def test_without_jgo_the_extra_is_named(
    tmp_path: Path, repository: type[Repository], monkeypatch: pytest.MonkeyPatch
) -> None:
    artifact = published(tmp_path, "one", b"genuine")
    monkeypatch.setitem(sys.modules, "jgo.maven", None)
    with pytest.raises(MissingExtra, match="jgo") as caught:
        fetching.fetch([artifact])
    assert caught.value.hint == 'in a clone of hybridr: pip install ".[embedded]"'


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
