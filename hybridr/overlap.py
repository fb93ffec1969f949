"""Lets one stage of a pipeline work while the next one does, with a bounded queue between them."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

T = TypeVar("T")
END = object()


def prefetched(items: Iterable[T], size: int = 2) -> Iterator[T]:
    """Yield `items`, computed in a thread that is at most `size` items ahead.

    An exception of the thread is raised here; when the consumer stops early, so does the thread.
    """
    handed: queue.Queue[Any] = queue.Queue(size)
    stop = threading.Event()

    def put(item: Any) -> None:
        while not stop.is_set():
            try:
                return handed.put(item, timeout=0.1)
            except queue.Full:
                continue

    def work() -> None:
        try:
            for item in items:
                put(item)
                if stop.is_set():
                    break
            put(END)
        except BaseException as error:  # whatever it is, the consumer must see it
            put(error)
        finally:
            if hasattr(items, "close"):
                items.close()

    threading.Thread(target=work, daemon=True).start()
    try:
        while (item := handed.get()) is not END:
            if isinstance(item, BaseException):
                raise item
            yield item
    finally:
        stop.set()
