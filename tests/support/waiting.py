"""How long something may take."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


def wait_until(condition: Callable[[], Any], seconds: float = 120.0) -> None:
    """Wait until a condition holds, for so long at most."""
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, f"it does not hold after {seconds:g} s"
        time.sleep(0.01)


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Fail when the block takes longer."""
    began = time.monotonic()
    yield
    assert time.monotonic() - began < seconds, f"it took more than {seconds:g} s"
