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
    search. Functions of `atexit` are called, threads that Python waits for are waited for, as ever.
    """
    code = main()
    if all(thread.daemon for thread in threading.enumerate() if thread is not threading.main_thread()):
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):  # whoever read it is gone; it was said what could be
                stream.flush()
        os._exit(code)
    sys.exit(code)


if __name__ == "__main__":
    command()
