"""A lock between processes, so that two starts at once do not install or start the same thing."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..errors import NodeError


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
