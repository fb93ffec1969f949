"""Downloads of pinned files (Maven artifacts, wheels) with sha256 checks, and bounded requests to the web.

The package jgo resolves Maven coordinates and knows the public repository; `HYBRIDR_MAVEN_REPOSITORY` names a
mirror. The 3.6.0 distribution contains all its modules, that of 2.19.1 only its transport; `MODULES` lists
the others, with the contents of their descriptors. pip downloads wheels, whose sha256 is checked before they
are opened; nothing is built from sources. Each wait for another machine has a time limit.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as StillRunning
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any, NamedTuple, TypeVar

import urllib3
from urllib3.exceptions import HTTPError

from ..errors import DownloadError
from ..records import Progress, silent
from .local import cache_folder, child_path, load_asset, require_space, sha256_of
from .programs import clear_leftovers, locked, storing_programs


class Artifact(NamedTuple):
    """A pinned file of a Maven repository; `size` in bytes."""

    group: str
    name: str
    version: str
    packaging: str
    sha256: str
    size: int
    classifier: str = ""

    @classmethod
    def from_entry(cls, entry: Mapping[str, Any]) -> Artifact:
        """Return the artifact of an entry in the asset `artifacts.json`."""
        group, name, version, packaging, *classifier = entry["coordinates"].split(":")
        return cls(group, name, version, packaging, entry["sha256"], entry["size"], *classifier)

    @property
    def file_name(self) -> str:
        """Return the file's name in the repository."""
        variant = f"-{self.classifier}" if self.classifier else ""
        return f"{self.name}-{self.version}{variant}.{self.packaging}"

    @property
    def coordinates(self) -> str:
        """Return Maven's name of the artifact, `group:name:version:packaging[:classifier]`."""
        variant = f":{self.classifier}" if self.classifier else ""
        return f"{self.group}:{self.name}:{self.version}:{self.packaging}{variant}"


class Module(NamedTuple):
    """A module of OpenSearch built from jars; `policy` is its policy file for Java's security manager."""

    classname: str
    jars: tuple[Artifact, ...]
    extends: tuple[str, ...] = ()
    policy: str = ""


_PINNED = load_asset("artifacts.json")
DISTRIBUTIONS = {
    version: Artifact.from_entry(distribution) for version, distribution in _PINNED["distributions"].items()
}
PLUGINS = {
    version: {name: Artifact.from_entry(plugin) for name, plugin in plugins.items()}
    for version, plugins in _PINNED["plugins"].items()
}
MODULES = {
    version: {
        name: Module(
            entry["classname"],
            tuple(map(Artifact.from_entry, entry["jars"])),
            tuple(entry.get("extends", ())),
            "".join(f"{line}\n" for line in entry.get("policy", ())),
        )
        for name, entry in modules.items()
    }
    for version, modules in _PINNED["modules"].items()
}
WORD_BREAKING = tuple(map(Artifact.from_entry, _PINNED["word_breaking"]))
"""A Java runtime without Thai word breaking cannot build any index: "Failed to build analyzers: [thai]"."""


DOWNLOAD = "download"
CONNECTIONS = 4
ATTEMPTS = 3
TIMEOUT_S = 60
MIN_BYTES_PER_S = 1_000  # measured over TIMEOUT_S
OK = 200
AT_ONCE, STEP = 8_192, 1_000_000  # bytes read at once; bytes between two progress reports
MIRROR = "HYBRIDR_MAVEN_REPOSITORY"


def fetch_artifacts(artifacts: Sequence[Artifact], *, progress: Progress = silent) -> dict[Artifact, Path]:
    """Download the missing artifacts and return artifact -> verified local file; progress counts bytes.

    Raises DownloadError if one cannot be fetched or stored, or its sha256 is not the pinned one.
    """
    folder = cache_folder() / "artifacts"
    with storing_programs(folder), locked(folder / ".lock"):
        clear_leftovers(folder, ".*-*")  # of killed downloads: this process holds the lock
        missing = [
            artifact
            for artifact in artifacts
            if not is_verified(child_path(folder, artifact.file_name), artifact)
        ]
        require_space(folder, sum(artifact.size for artifact in missing))
        meter = ByteMeter(progress, sum(artifact.size for artifact in missing))
        with ThreadPoolExecutor(CONNECTIONS) as pool:
            list(pool.map(partial(download_artifact, folder=folder, meter=meter), missing))
    return {artifact: child_path(folder, artifact.file_name) for artifact in artifacts}


def is_verified(path: Path, artifact: Artifact) -> bool:
    """Return whether the file `path` has the artifact's size and sha256."""
    return path.is_file() and path.stat().st_size == artifact.size and sha256_of(path) == artifact.sha256


def download_artifact(artifact: Artifact, folder: Path, meter: ByteMeter) -> None:
    """Download one artifact into `folder`, verify its sha256, and rename it into place.

    Only a broken connection is retried; a missing, different or slow file raises DownloadError at once.
    """
    import requests

    failure: Exception | None = None
    options = {"prefix": f".{artifact.name}-", "dir": str(folder)}
    with tempfile.TemporaryDirectory(**options, ignore_cleanup_errors=True) as temporary:
        for attempt in range(ATTEMPTS):
            received = DownloadAttempt(meter, artifact)
            try:
                file = await_download(
                    partial(resolve, artifact, Path(temporary) / str(attempt), received), received
                )
            except requests.RequestException as error:
                failure = error
                meter.add(-received.count)
                continue
            except RuntimeError as error:
                failure = error
                break
            if (digest := sha256_of(file)) != artifact.sha256:
                raise DownloadError(
                    f"{artifact.file_name}: the sha256 is {digest} instead of {artifact.sha256} "
                    f"({file.stat().st_size:,} of {artifact.size:,} bytes)",
                    hint="run the command again; if this repeats, the repository or a proxy changes the file",
                )
            file.replace(folder / artifact.file_name)
            return
    raise DownloadError(
        f"{artifact.coordinates} could not be downloaded ({type(failure).__name__})",
        hint=f"check the network and proxy settings, or set {MIRROR} to a Maven mirror; then run it again",
    ) from failure


def resolve(artifact: Artifact, folder: Path, received: DownloadAttempt) -> Path:
    """Find an artifact's Maven repository with jgo, download the file into `folder`, and return its path.

    jgo's own download is not used: it has no size limit, waits as long as a `Retry-After` says, and logs the
    repository's checksum unescaped. The pinned sha256 is checked instead.
    """
    from jgo.maven import MavenContext, PythonResolver

    class BoundedResolver(PythonResolver):
        """jgo's resolver, but with downloads of at most the pinned number of bytes."""

        def download(self, artifact: Any) -> Path | None:
            """Download the artifact from the first repository that has it, else raise RuntimeError."""
            for repository in artifact.context.remote_repos.values():
                url = f"{repository}/{artifact.component.path_prefix.as_posix()}/{artifact.filename}"
                if received.stream(url, artifact.cached_path):
                    return Path(artifact.cached_path)
            raise RuntimeError(f"{artifact.filename} is in no repository")

    logging.getLogger("jgo").setLevel(logging.CRITICAL)
    mirror = os.environ.get(MIRROR)
    context = MavenContext(
        resolver=BoundedResolver(),
        repo_cache=folder,
        local_repos=[],
        timeout=TIMEOUT_S,
        remote_repos={"mirror": mirror} if mirror else None,
    )
    component = context.project(artifact.group, artifact.name).at_version(artifact.version)
    path: Path = component.artifact(artifact.classifier, artifact.packaging).resolve()
    return path


def await_download(work: Callable[[], Path], received: DownloadAttempt) -> Path:
    """Run a download and return its path. Raises its errors, and DownloadError if it is too slow.

    A server that sends a byte now and then would keep a read waiting for ever. So the download runs in a
    thread that is abandoned if fewer than `MIN_BYTES_PER_S` arrive.
    """
    download = run_in_thread(work)
    while True:
        old_count = received.count
        try:
            return download.result(TIMEOUT_S)
        except StillRunning:
            if download.done():
                raise
        if received.count - old_count < MIN_BYTES_PER_S * TIMEOUT_S:
            received.is_abandoned = True
            raise DownloadError(
                f"{received.artifact.coordinates}: {received.count - old_count:,} bytes in {TIMEOUT_S} s",
                hint=f"run the command again; or set {MIRROR} to another Maven mirror",
            )


class ByteMeter:
    """Sums the bytes of parallel downloads and reports them as progress."""

    def __init__(self, progress: Progress, total: int) -> None:
        self._progress = progress
        self._total = total
        self._done = 0
        self._reported = 0
        self._lock = threading.Lock()

    def add(self, count: int) -> None:
        """Count bytes that arrived; a negative number subtracts those of a broken connection."""
        with self._lock:
            self._done += count
            if abs(self._done - self._reported) >= STEP or self._done == self._total:
                self._reported = self._done
                self._progress(DOWNLOAD, self._done, self._total, "bytes")


class DownloadAttempt:
    """One download attempt, which fails beyond the pinned number of bytes; `is_abandoned` ends it."""

    def __init__(self, meter: ByteMeter, artifact: Artifact) -> None:
        self._meter, self.artifact = meter, artifact
        self.count, self.is_abandoned = 0, False

    def stream(self, url: str, file: Path) -> bool:
        """Download a url to a file; return False if it is missing. Raises DownloadError for a wrong size."""
        import requests

        headers = {"Accept-Encoding": "identity"}
        with requests.get(url, stream=True, timeout=TIMEOUT_S, headers=headers) as response:
            if response.status_code != OK:
                return False
            length = response.headers.get("Content-Length", "")
            if length.isdecimal() and int(length) != self.artifact.size:
                raise self.length_error(f"{int(length):,}")
            file.parent.mkdir(parents=True, exist_ok=True)
            with file.open("wb") as target:
                try:
                    for chunk in response.raw.stream(AT_ONCE, decode_content=False):
                        if self.is_abandoned:
                            raise DownloadError(f"{self.artifact.coordinates}: the download was abandoned")
                        self.count += len(chunk)
                        self._meter.add(len(chunk))
                        if self.count > self.artifact.size:
                            raise self.length_error(f"more than {self.artifact.size:,}")
                        target.write(chunk)
                except HTTPError as error:
                    raise requests.ConnectionError(error) from error
        return True

    def length_error(self, received_length: str) -> DownloadError:
        """Return the error for a file whose length differs from the pinned one."""
        return DownloadError(
            f"{self.artifact.coordinates} has {received_length} bytes instead of {self.artifact.size:,}",
            hint=f"the repository or a proxy changes the file; set {MIRROR} to another Maven mirror",
        )


MAX_BYTES, MAX_S = 500_000_000, 3_600.0
"""Limits of a download by pip: bytes of one file, seconds of the call. The largest pinned wheel has 84 MB."""
BOUNDED_PIP = """
import runpy, sys
limit = int(sys.argv.pop(1))
try:
    import resource
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
except ImportError:  # Windows has no such limit
    pass
runpy.run_module("pip", run_name="__main__", alter_sys=True)
"""


def run_pip(
    verb: str, package: str, hashes: Sequence[str], folder: Path, target: Sequence[str]
) -> subprocess.CompletedProcess[str]:
    """Run pip's `verb` ("download" or "install") for one package without dependencies; return the process.

    Only wheels with one of the sha256 `hashes` are accepted: a source package would run its own code. The
    size of each file that pip writes is limited. The requirements file is written to `folder`; the options
    `target` say where the result goes. After `MAX_S` the return code is 1.
    """
    requirements = folder / "requirements.txt"
    requirements.write_text(" ".join([package, *(f"--hash=sha256:{digest}" for digest in hashes)]) + "\n")
    quiet = ["--quiet", "--no-input", "--progress-bar", "off", "--disable-pip-version-check", "--no-deps"]
    strict = ["--only-binary", ":all:", "--require-hashes", "--requirement", str(requirements)]
    command = [sys.executable, "-c", BOUNDED_PIP, str(MAX_BYTES), verb, *quiet, *strict, *target]
    # pip does not get hybridr's variables: passwords, tokens, addresses.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HYBRIDR_")}
    try:
        return subprocess.run(
            command, capture_output=True, text=True, check=False, env=environment, timeout=MAX_S
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 1, "", f"pip did not finish within {MAX_S:,.0f} s")


MAX_ANSWER_BYTES = 1_000_000
T = TypeVar("T")


class WebAnswer(NamedTuple):
    """The status and the content of an HTTP answer."""

    status: int
    content: bytes


class BoundedRetry(urllib3.Retry):
    """A retry policy of urllib3 that obeys `Retry-After`, but waits at most `MAX_WAIT_S`."""

    MAX_WAIT_S = 10.0

    def parse_retry_after(self, retry_after: str) -> float:
        """Return the seconds that a `Retry-After` asks for, at most `MAX_WAIT_S`."""
        return min(float(super().parse_retry_after(retry_after)), self.MAX_WAIT_S)


def ask_web(
    method: str,
    url: str,
    seconds: float,
    *,
    headers: Mapping[str, str],
    body: bytes | None = None,
    retries: urllib3.Retry | bool = False,
) -> WebAnswer:
    """Send an HTTP request and return its answer, cut at MAX_ANSWER_BYTES. No redirect is followed.

    Raises urllib3's HTTPError, and TimeoutError if everything, retries included, takes more than `seconds`.
    """

    def ask() -> WebAnswer:
        with urllib3.PoolManager() as pool:
            response = pool.request(
                method,
                url,
                body=body,
                headers=dict(headers),
                timeout=seconds,
                retries=retries,
                redirect=False,
                preload_content=False,
            )
            return WebAnswer(response.status, response.read(MAX_ANSWER_BYTES))

    # A socket's timeout restarts with each byte, so the request runs in a daemon thread, which is abandoned
    # when the time is over.
    outcome = run_in_thread(ask)
    try:
        return outcome.result(seconds)
    except StillRunning:
        if outcome.done():
            raise
        raise TimeoutError(f"no complete answer within {seconds:.0f} s") from None


def run_in_thread(work: Callable[[], T]) -> Future[T]:
    """Start `work` in a daemon thread and return the future of its result."""
    outcome = Future[T]()

    def run() -> None:
        try:
            outcome.set_result(work())
        except BaseException as error:
            outcome.set_exception(error)

    Thread(target=run, name="hybridr-deadline", daemon=True).start()
    return outcome
