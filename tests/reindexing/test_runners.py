"""How shares are run: each runner gives the same, and a new one is a new file."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hybridr.cluster.connection import Cluster
from hybridr.cluster.reading import Share, SourceDocument
from hybridr.cluster.writing import Rejects
from hybridr.errors import SettingsError
from hybridr.files.family import names_of
from hybridr.progress import silent
from hybridr.reindexing import filling, runners
from hybridr.reindexing.job import Filling, Job, Meter, Pending
from hybridr.reindexing.runners import runner
from hybridr.reindexing.settings import ReindexSettings
from support.hashing import HashingEncoder

THROWN_AWAY = """
class Backwards:
    name = "throwaway"
    def run(self, work, shares, stop):
        return [work(share) for share in reversed(shares)][::-1]
"""


@pytest.fixture
def backwards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A runner in a file of its own, which is all that there is to it."""
    (tmp_path / "throwaway.py").write_text(THROWN_AWAY)
    monkeypatch.setattr(runners, "__path__", [*runners.__path__, str(tmp_path)])


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> Job:
    monkeypatch.setattr(filling, "settled_position", lambda *_: None)
    settings = ReindexSettings(workers=3, slow_search_ms=0)
    cluster: Any = object.__new__(Cluster)
    return Job(cluster, "a", "b", HashingEncoder(), ("text",), settings, Rejects(Path("unused")))


def one_document_a_share(job: Job, share: Share, done: Filling, meter: Meter) -> Iterator[list[Pending]]:
    if done.until.seq_no.get(0, -1) < 0:
        number = share.part[0]
        yield [Pending(SourceDocument(f"d{number}", {"text": "anchor"}, 1, 0, 1, None), None, None)]
        done.until.seq_no[0] = 0


WORK = filling.Work(one_document_a_share, lambda job, page: [], lambda job, page, done: None)


@pytest.mark.parametrize("name", ["threads", "throwaway"])
def test_every_runner_works_on_all_shares(
    job: Job, backwards: None, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(runners, "CHOSEN", name)
    total = Filling()
    filling.read_to_the_end(job, WORK, None, 5, Meter(silent, 3), total)
    assert (total.encoded, total.until.seq_no, total.settled) == (3, {0: 0}, False)
    assert runner().run(lambda share: share.part, [Share((n, 4)) for n in range(4)], lambda: None) == [
        (0, 4),
        (1, 4),
        (2, 4),
        (3, 4),
    ]


def test_a_new_runner_is_a_new_file(backwards: None, monkeypatch: pytest.MonkeyPatch) -> None:
    assert set(names_of("reindexing.runners")) >= {"throwaway", "threads"}
    assert runner().name == "threads"
    monkeypatch.setattr(runners, "CHOSEN", "throwaway")
    assert runner().name == "throwaway"


def test_a_runner_that_there_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runners, "CHOSEN", "nowhere")
    with pytest.raises(SettingsError, match=r"no reindexing\.runners 'nowhere': threads"):
        runner()


def test_when_one_share_fails_the_others_are_asked_to_stop() -> None:
    stop = threading.Event()

    def work(number: int) -> bool:
        if number == 0:
            raise ValueError("the first share")
        return stop.wait(60)

    with pytest.raises(ValueError, match="the first share"):
        runner().run(work, [0, 1, 2], stop.set)
    assert stop.is_set()
