"""The command `hybridr`, also `python -m hybridr_cli`."""

from __future__ import annotations

import atexit
import os
import sys
import threading
from contextlib import suppress
from typing import NoReturn

from . import main


def command() -> NoReturn:
    """Run the command line of the process, and end the process with its exit code.

    Modules and graphs are not freed one by one, which would take a sixth of the CPU time of one search.
    Non-daemon threads are joined and functions of `atexit` are called, as in any Python process.
    """
    code = main()
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # the reader of the stream has exited
            stream.flush()
    os._exit(code)


if __name__ == "__main__":
    command()
