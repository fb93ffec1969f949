"""One task at a time, its progress and how it ends."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from hybridr.errors import DataError
from hybridr.records import Progress
from hybridr.serving.page.workbench import PageWork, Tasks
from hybridr.serving.requests import Refused


def ended(tasks: Tasks, work: PageWork) -> dict[str, Any]:
    tasks.start("measure", work)
    for thread in threading.enumerate():
        if thread.name == "hybridr-measure":
            thread.join(10)
    return tasks.state


def test_one_at_a_time_with_its_progress() -> None:
    tasks, told, go_on = Tasks(), threading.Event(), threading.Event()

    def work(progress: Progress) -> dict[str, Any]:
        progress("ask", 3, 12)
        told.set()
        go_on.wait(10)
        return {"said": "well"}

    tasks.start("tune", work)
    assert told.wait(10)
    assert tasks.state == {"task": "tune", "state": "running", "stage": "ask", "done": 3, "total": 12}
    with pytest.raises(Refused, match="'tune' is under way"):
        tasks.start("evaluate", work)
    go_on.set()
    for thread in threading.enumerate():
        if thread.name == "hybridr-tune":
            thread.join(10)
    assert (tasks.state["state"], tasks.state["result"]) == ("done", {"said": "well"})


def test_a_failure_is_told_without_what_is_inside() -> None:
    def known(progress: Progress) -> dict[str, Any]:
        raise DataError("9 judged queries", hint="judge more")

    def unknown(progress: Progress) -> dict[str, Any]:
        raise ValueError("a secret")

    tasks = Tasks()
    said = ended(tasks, known)
    assert (said["state"], said["error"], said["hint"]) == ("failed", "9 judged queries", "judge more")
    said = ended(tasks, unknown)
    assert (said["state"], said["error"]) == ("failed", "the server failed")
    assert "a secret" not in str(said)
    assert ended(tasks, lambda progress: {"said": "again"})["state"] == "done"
