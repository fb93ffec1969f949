"""Downloads of pinned artifacts: streamed, checked against their sha256, then renamed into the cache.

PyPI's jgo resolves Maven coordinates and knows the public repository; `HYBRIDR_MAVEN_REPOSITORY` names
a mirror. Where jgo is not installed, a Maven on the PATH does the same.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from ..errors import DownloadError, extra
from ..files.atomic import require_space
from ..files.folders import below, cache_folder
from ..files.manifest import sha256_of
from ..progress import Progress, silent
from .artifacts import Artifact
from .programs import locked, storing_programs

DOWNLOAD = "download"
CONNECTIONS = 4
ATTEMPTS = 3
TIMEOUT_S = 60
STEP = 1_000_000  # bytes between two reports
MIRROR = "HYBRIDR_MAVEN_REPOSITORY"


def fetch(artifacts: Sequence[Artifact], *, progress: Progress = silent) -> dict[Artifact, Path]:
    """Give the verified local file of each artifact; progress counts bytes.

    Raises DownloadError when one cannot be fetched or stored, or its sha256 is not the pinned one.
    """
    folder = cache_folder() / "artifacts"
    with storing_programs(folder), locked(folder / ".lock"):
        for left in folder.glob(".*-*"):
            shutil.rmtree(left)  # of a download that was killed; this process holds the lock
        missing = [
            artifact for artifact in artifacts if not verified(below(folder, artifact.file_name), artifact)
        ]
        require_space(folder, sum(artifact.size for artifact in missing))
        meter = ByteMeter(progress, sum(artifact.size for artifact in missing))
        with ThreadPoolExecutor(CONNECTIONS) as pool:
            list(pool.map(lambda artifact: download_artifact(artifact, folder, meter), missing))
    return {artifact: below(folder, artifact.file_name) for artifact in artifacts}


def verified(path: Path, artifact: Artifact) -> bool:
    """Tell whether `path` holds exactly the pinned bytes."""
    return path.is_file() and path.stat().st_size == artifact.size and sha256_of(path) == artifact.sha256


def download_artifact(artifact: Artifact, folder: Path, meter: ByteMeter) -> None:
    """Fetch one artifact beside its place in `folder`, verify it, and rename it into place."""
    with tempfile.TemporaryDirectory(prefix=f".{artifact.name}-", dir=folder) as temporary:
        received = retrieve(artifact, Path(temporary), meter)
        found = sha256_of(received)
        if found != artifact.sha256:
            raise DownloadError(
                f"{artifact.file_name}: sha256 is {found}, needed is {artifact.sha256} "
                f"({received.stat().st_size:,} of {artifact.size:,} bytes)",
                hint="run the command again; if this repeats, the repository or a proxy changes the file",
            )
        received.replace(folder / artifact.file_name)


def retrieve(artifact: Artifact, folder: Path, meter: ByteMeter) -> Path:
    """Stream one artifact; a broken connection is tried again, a missing file is not."""
    with extra("embedded", "the embedded node"):
        import requests
        from jgo.maven import MavenContext, PythonResolver

    mirror = os.environ.get(MIRROR)
    failure: Exception | None = None
    for attempt in range(ATTEMPTS):
        received = Received(meter)
        context = MavenContext(
            resolver=PythonResolver(progress_callback=received.file),
            repo_cache=folder / str(attempt),
            local_repos=[],
            timeout=TIMEOUT_S,
            remote_repos={"mirror": mirror} if mirror else None,
        )
        component = context.project(artifact.group, artifact.name).at_version(artifact.version)
        try:
            path: Path = component.artifact(artifact.classifier, artifact.packaging).resolve()
            return path
        except requests.RequestException as error:
            failure = error
            received.forget()
        except RuntimeError as error:
            failure = error
            break
    raise DownloadError(
        f"{artifact.coordinates} could not be downloaded ({type(failure).__name__})",
        hint=f"check the network and proxy settings, or set {MIRROR} to a Maven mirror; then run it again",
    ) from failure


class ByteMeter:
    """Sum the bytes of parallel downloads."""

    def __init__(self, progress: Progress, total: int) -> None:
        self._progress = progress
        self._total = total
        self._done = 0
        self._told = 0
        self._lock = threading.Lock()

    def add(self, count: int) -> None:
        """Count bytes that arrived; negative ones were lost with a broken connection."""
        with self._lock:
            self._done += count
            if abs(self._done - self._told) >= STEP or self._done == self._total:
                self._told = self._done
                self._progress(DOWNLOAD, self._done, self._total, "bytes")


class Received:
    """The bytes of one attempt, in the form that jgo reports them."""

    def __init__(self, meter: ByteMeter) -> None:
        self._meter = meter
        self._count = 0

    @contextmanager
    def file(self, name: str, size: int) -> Iterator[Callable[[int], None]]:
        """Receive the sizes of the chunks of one file."""
        yield self._add

    def forget(self) -> None:
        """Take back what a broken attempt had counted."""
        self._meter.add(-self._count)
        self._count = 0

    def _add(self, count: int) -> None:
        self._count += count
        self._meter.add(count)
