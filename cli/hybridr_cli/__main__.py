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
    """Run the command line that the process was started with, and end the process.

    It ends without freeing its modules and graphs one by one, which is a sixth of the processor time of one
    search. As ever, threads that Python waits for are waited for, and functions of `atexit` are called.
    """
    code = main()
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # whoever read it is gone; it was said what could be
            stream.flush()
    os._exit(code)


if __name__ == "__main__":
    command()
