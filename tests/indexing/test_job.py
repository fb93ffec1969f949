"""The pace on a clock that only sleeping moves, and the windows of a job."""

from __future__ import annotations

import pytest

from hybridr import ReindexSettings
from hybridr.errors import ModelError, SettingsError
from hybridr.indexing.job import NO_LOAD, Pace, SearchLoad
from hybridr.indexing.recipe import TextRecipe
from hybridr.indexing.representations.passage_vectors import chosen_windows
from hybridr.records import Windows
from support.hashing import HashingEncoder

WORDS = HashingEncoder()


def test_the_choice_of_windows() -> None:
    assert TextRecipe(WORDS, ReindexSettings(), ()).windows is None
    assert TextRecipe(WORDS, ReindexSettings(passages=True), ()).windows == Windows(256, 32, 64)
    assert chosen_windows(ReindexSettings(passages=True), WORDS) == Windows(256, 32, 64)
    chosen = chosen_windows(ReindexSettings(passages=True, max_tokens=34, passage_overlap=16), WORDS)
    assert chosen == Windows(tokens=34, overlap=16, most=64)
    with pytest.raises(SettingsError, match="more than half of a window of 34 tokens"):
        chosen_windows(ReindexSettings(passages=True, max_tokens=34, passage_overlap=17), WORDS)
    with pytest.raises(ModelError, match="does not tell where its tokens are"):
        chosen_windows(ReindexSettings(passages=True), object())


class World:
    """A clock, and searches that take `ms` each, `rate` of them a second."""

    def __init__(self, ms: float = 0, rate: float = 10) -> None:
        self.now, self.ms, self.rate = 0.0, ms, rate
        self.slept: list[float] = []
        self._queries, self._spent = 1000.0, 1000.0 * ms

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.pass_(seconds)

    def pass_(self, seconds: float) -> None:
        self.now += seconds
        self._queries += seconds * self.rate
        self._spent += seconds * self.rate * self.ms

    def load(self) -> SearchLoad:
        return SearchLoad(int(self._queries), int(self._spent))

    def pace(self, per_second: float | None = None, slow_ms: float = 200) -> Pace:
        return Pace(per_second, slow_ms, self.load, clock=self.clock, sleep=self.sleep)


@pytest.mark.parametrize("work_s", [0.0, 1.0, 4.0])
def test_no_more_documents_a_second_than_allowed(work_s: float) -> None:
    world = World()
    pace = world.pace(per_second=100)
    for _ in range(20):
        pace.wait(500)
        world.pass_(work_s)
    assert world.now == pytest.approx(19 * 5 + work_s)


def test_slow_work_is_not_made_up_for_by_a_burst() -> None:
    world = World()
    pace = world.pace(per_second=100)
    pace.wait(100)
    world.pass_(60)
    pace.wait(100)
    pace.wait(100)
    assert world.slept == [1.0]


def work(world: World, pace: Pace, seconds: float) -> None:
    for _ in range(int(seconds)):
        pace.wait(500)
        world.pass_(1.0)


def test_it_pauses_longer_and_longer_while_searches_are_slow() -> None:
    world = World(ms=20)
    pace = world.pace()
    work(world, pace, 60)
    assert world.slept == []
    world.ms = 900
    work(world, pace, 60)
    assert (world.slept[:6], set(world.slept[6:])) == ([1, 2, 4, 8, 16, 30], {30})
    paused = len(world.slept)
    world.ms = 20
    work(world, pace, 60)
    assert len(world.slept) <= paused + 1, "the first look still covers slow searches"


def test_searches_that_were_slow_before_do_not_stop_it() -> None:
    world = World(ms=300)
    pace = world.pace()
    world.ms = 1200
    work(world, pace, 60)
    assert world.slept == []


def test_few_searches_no_answer_and_0_mean_full_speed() -> None:
    world = World(ms=20, rate=0.1)
    pace = world.pace()
    world.ms = 900
    work(world, pace, 60)
    quiet = World(ms=20)
    pace = Pace(None, 200, lambda: NO_LOAD, clock=quiet.clock, sleep=quiet.sleep)
    work(quiet, pace, 60)
    off = World(ms=20)
    pace = off.pace(slow_ms=0)
    off.ms = 900
    work(off, pace, 60)
    assert world.slept == quiet.slept == off.slept == []
