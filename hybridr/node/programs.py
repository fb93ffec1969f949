"""Programs in the cache: each is made in a temporary folder, and is there whole or not at all."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from ..errors import NodeError
from ..files.atomic import storing
from ..files.folders import below
from .ownership import make_reachable, open_to_all


def ensure_program(home: Path, is_there: Callable[[], bool], make: Callable[[Path], Path]) -> Path:
    """Give the folder of a program; unless it is there, `make` makes it somewhere below a temporary folder.

    What a process that was killed left of it is deleted. Raises DownloadError, NodeError.
    """
    if is_there():
        return home
    with storing_programs(home.parent):
        make_reachable(home.parent)
        with locked(below(home.parent, f".{home.name}.lock")):
            if not is_there():  # another process may have made it while this one waited
                for left in home.parent.glob(f".{home.name}-*"):
                    shutil.rmtree(left)
                with tempfile.TemporaryDirectory(prefix=f".{home.name}-", dir=home.parent) as temporary:
                    made = make(Path(temporary))
                    open_to_all(made)
                    shutil.rmtree(home, ignore_errors=True)
                    made.rename(home)
    return home


def storing_programs(folder: Path) -> AbstractContextManager[None]:
    """Turn a full disk or a read-only cache into a DownloadError that says how to move the cache."""
    return storing(folder, "free some space or make it writable, or set HYBRIDR_CACHE to another folder")


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock file `path`; wait while another process holds it (the lock ends with its holder)."""
    if sys.platform == "win32":
        raise NodeError("the embedded node runs on Linux and macOS", hint="use docker-compose.yml, or WSL")
    import fcntl

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("a")
    except OSError as error:
        raise NodeError(
            f"cannot write {path}: {error.strerror}",
            hint="make the folder writable, or set HYBRIDR_HOME to another one",
        ) from error
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
