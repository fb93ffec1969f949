"""Long tasks of the page, one at a time, in a thread of the server's process."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock, Thread
from typing import Any, TypeAlias

from ...errors import HybridrError
from ...records import Progress
from ..requests import Refused
from ..telemetry import LOGGER

PageWork: TypeAlias = Callable[[Progress], dict[str, Any]]
"""What reports its progress and gives its result as JSON values."""


class Tasks:
    """The task under way, or the last one, as JSON values."""

    def __init__(self) -> None:
        self._state: dict[str, Any] = {"state": "none"}
        self._lock = Lock()

    @property
    def state(self) -> dict[str, Any]:
        """Give `task`, its `state` (none, running, done or failed), its progress and its result or error."""
        with self._lock:
            return dict(self._state)

    def start(self, name: str, work: PageWork) -> None:
        """Begin a task. Raises Refused (409) while another one runs."""
        with self._lock:
            if self._state["state"] == "running":
                raise Refused(409, f"'{self._state['task']}' is under way", "one task at a time: wait for it")
            self._state = {"task": name, "state": "running"}
        Thread(target=self._run, args=(work,), name=f"hybridr-{name}", daemon=True).start()

    def _run(self, work: PageWork) -> None:
        try:
            self._tell(state="done", result=work(self._progress))
        except HybridrError as error:
            self._tell(state="failed", error=error.message, hint=error.hint)
        except Exception:
            LOGGER.exception("a task of the page failed")
            self._tell(state="failed", error="the server failed", hint="the server's log names the error")

    def _progress(self, stage: str, done: int, total: int | None = None, note: str = "") -> None:
        self._tell(stage=stage, done=done, total=total)

    def _tell(self, **facts: Any) -> None:
        with self._lock:
            self._state |= facts
