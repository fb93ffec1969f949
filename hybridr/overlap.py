"""Lets one stage of a pipeline work while the next one does, with a bounded number of items between them."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")
S = TypeVar("S")
END = object()


def prefetched(items: Iterable[T], size: int = 2) -> Generator[T, None, None]:
    """Yield `items`, computed in a thread that is at most `size` items ahead.

    An exception of the thread is raised here. When the consumer stops early, so does the thread after its
    item, and this waits for it: a thread inside native code must not outlive the interpreter.
    """
    handed: queue.Queue[Any] = queue.Queue(size)
    stop = threading.Event()
    thread = threading.Thread(target=_hand_over, args=(items, handed, stop), daemon=True)
    thread.start()
    try:
        while (item := handed.get()) is not END:
            if isinstance(item, BaseException):
                raise item
            yield item
    finally:
        stop.set()
        thread.join()


def _hand_over(items: Iterable[T], handed: queue.Queue[Any], stop: threading.Event) -> None:
    try:
        for item in items:
            if not _put(handed, item, stop):
                break
        _put(handed, END, stop)
    except BaseException as error:  # whatever it is, the consumer must see it
        _put(handed, error, stop)
    finally:
        if hasattr(items, "close"):
            items.close()


def _put(handed: queue.Queue[Any], item: Any, stop: threading.Event) -> bool:
    while not stop.is_set():
        try:
            handed.put(item, timeout=0.1)
            return True
        except queue.Full:
            continue
    return False


def mapped(function: Callable[[S], T], items: Iterable[S], calls: int) -> Generator[T, None, None]:
    """Yield `function(item)` in the order of `items`, with up to `calls` calls under way at once.

    An exception is raised where its result would have come. Calls under way end before this does.
    """
    with ThreadPoolExecutor(calls) as pool:
        waiting: deque[Future[T]] = deque()
        try:
            for item in items:
                waiting.append(pool.submit(function, item))
                if len(waiting) >= calls:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()
