"""How shares are run: each runner gives the same, and a new one is a new file."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from hybridr.cluster.connection import Cluster
from hybridr.cluster.reading import Position, Share, SourceDocument
from hybridr.cluster.record import IndexInfo
from hybridr.cluster.writing import Rejects
from hybridr.errors import SettingsError
from hybridr.families import member_names
from hybridr.indexing import filling, runners
from hybridr.indexing.job import Filling, Job, Meter, Pending
from hybridr.indexing.recipe import TextRecipe
from hybridr.indexing.runners import ray as on_ray
from hybridr.indexing.runners import runner
from hybridr.indexing.runners.threads import Threads
from hybridr.indexing.settings import ReindexSettings
from hybridr.records import silent
from support.hashing import HashingEncoder

THROWN_AWAY = """
class Backwards:
    name = "throwaway"
    def __init__(self, settings):
        pass
    def check(self):
        pass
    def run(self, task, shares):
        return [task(share) for share in reversed(shares)][::-1]
"""
SHARES = [Share(Position({0: number})) for number in range(4)]


@pytest.fixture
def backwards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A runner in a file of its own, which is all that there is to it."""
    (tmp_path / "throwaway.py").write_text(THROWN_AWAY)
    monkeypatch.setattr(runners, "__path__", [*runners.__path__, str(tmp_path)])


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> Job:
    monkeypatch.setattr(Cluster, "exists", lambda *_: True)
    monkeypatch.setattr(filling, "update_mapping", lambda _: None)
    monkeypatch.setattr(filling, "settled_position", lambda *_: None)
    monkeypatch.setattr(filling, "visible_position", lambda *_: Position({0: 0}))
    monkeypatch.setattr(filling, "cut_into_shares", lambda *given: [] if given[2].seq_no else SHARES[:3])
    settings = ReindexSettings(workers=3, slow_search_ms=0)
    cluster: Any = object.__new__(Cluster)
    recipe, source = TextRecipe(HashingEncoder(), settings, ("text",)), IndexInfo("a", {}, {}, {})
    return Job(cluster, "a", "b", recipe, Rejects(Path("unused")), initial_infos=(source,))


def place_of(share: Share) -> int:
    assert share.since
    return share.since.seq_no[0]


def one_document_a_share(job: Job, share: Share, done: Filling, meter: Meter) -> Iterator[list[Pending]]:
    number = place_of(share)
    yield [Pending(SourceDocument(f"d{number}", {"text": "anchor"}, 1, 0, 1, None))]


WORK = filling.Work(one_document_a_share, lambda job, page: [], lambda job, page, done: None)


class Parts:
    """A task that tells which share it was given."""

    meter = Meter(silent, 0)

    def __init__(self) -> None:
        self.stop = threading.Event()

    def __call__(self, share: Share) -> int:
        return place_of(share)


@pytest.mark.parametrize("name", ["threads", "throwaway"])
def test_every_runner_works_on_all_shares(job: Job, backwards: None, name: str) -> None:
    chosen = job.settings.model_copy(update={"runner": name})
    total = Filling()
    job = replace(job, recipe=replace(job.recipe, settings=chosen))
    filling.fill_in_passes(filling.Fill(job, WORK, Meter(silent, 3)), None, 5, total)
    assert (total.encoded, total.until.seq_no, total.settled) == (3, {0: 0}, False)
    assert runner(chosen).run(Parts(), SHARES) == [0, 1, 2, 3]


def test_a_new_runner_is_a_new_file(backwards: None) -> None:
    assert set(member_names("indexing.runners")) >= {"throwaway", "threads", "ray"}
    assert runner(ReindexSettings()).name == "threads"
    assert runner(ReindexSettings(runner="throwaway")).name == "throwaway"


def test_when_one_share_fails_the_others_are_asked_to_stop() -> None:
    class Failing(Parts):
        def __call__(self, share: Share) -> Any:
            if place_of(share) == 0:
                raise ValueError("the first share")
            return self.stop.wait(60)

    task = Failing()
    with pytest.raises(ValueError, match="the first share"):
        Threads(ReindexSettings(workers=3)).run(task, SHARES)
    assert task.stop.is_set()


def test_ray_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_ray, "find_spec", lambda name: None if name == "ray" else find_spec(name))
    with pytest.raises(SettingsError, match="needs the package 'ray'") as caught:
        runner(ReindexSettings(runner="ray")).check()
    assert caught.value.hint == 'in a clone of hybridr: pip install ".[ray]"'


def test_one_share_alone_needs_no_ray(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """What comes in last, before and after the switch, is little: it is worked on where it is found."""
    monkeypatch.setattr(on_ray, "within_ray", None)
    here = runner(ReindexSettings(runner="ray"))
    assert (here.run(Parts(), SHARES[:1]), here.run(Parts(), [])) == ([0], [])
