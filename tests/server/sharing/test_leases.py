"""Leases on a real node: nothing is held twice, what is lost is found, no clock is compared with another."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from hybridr.cluster.connection import Cluster
from hybridr.errors import ClusterError, NotFound, Unreachable
from hybridr.sharing import board
from hybridr.sharing.board import Board, Pulse, drop_leases, lease_index, leased_shares
from hybridr.sharing.leases import Holder, Ledger

pytestmark = pytest.mark.node
PLAN = {"until": [[0, 99]], "settled": True}


class Clock:
    """A clock of its own, that only the test moves."""

    def __init__(self, now: float = 0.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def name(cluster: Cluster, index_name: str) -> Iterator[str]:
    yield index_name
    drop_leases(cluster, index_name)


def ledger_of(cluster: Cluster, name: str, key: str = "job", clock: Clock | None = None) -> Ledger:
    clock = clock or Clock()
    return Ledger(cluster, name, key, clock=clock, sleep=clock.sleep)


def shared_out(cluster: Cluster, name: str, shares: int, clock: Clock | None = None) -> Ledger:
    ledger = ledger_of(cluster, name, clock=clock)
    assert ledger.left() is None
    ledger.begin(PLAN, [{"share": number} for number in range(shares)])
    return ledger


def test_eight_workers_that_want_the_same_hold_no_share_twice(cluster: Cluster, name: str) -> None:
    ledger = shared_out(cluster, name, 24)
    opened, held, begun = ledger.leases(), Counter[int](), Counter[int]()
    guard = threading.Lock()

    def work(number: int) -> None:
        """Two begin with each, and go on with those of the next."""
        holder, first = Holder(Board(cluster, name)), number // 2 * 6
        near = (opened * 2)[first : first + 12]
        while lease := holder.take(near):
            near = []
            with guard:
                held[lease.number] += 1
                begun[lease.number] += 1
                assert held[lease.number] == 1
            with guard:
                held[lease.number] -= 1
            assert holder.finish({"rejected": 0}, 10)

    workers = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert begun == Counter(range(24))
    tally = ledger.look()
    assert tally is not None
    assert tally.done
    assert tally.documents == 240


def test_a_share_costs_one_request(cluster: Cluster, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """64 workers whose shares take ten seconds ask six times a second, and beats come only after that."""
    ledger = shared_out(cluster, name, 20)
    near, asked, plain = ledger.leases(), Counter[str](), Cluster.request

    def counted(self: Cluster, method: str, path: str, *given: Any, **options: Any) -> Any:
        asked[path] += 1
        return plain(self, method, path, *given, **options)

    monkeypatch.setattr(Cluster, "request", counted)
    holder, done = Holder(Board(cluster, name)), 0
    while holder.take(near):
        near, done = [], done + 1
        assert holder.finish({"rejected": 0}, 10)
    assert done == 20
    assert sum(asked.values()) == 21


def test_a_lost_holder_is_found_by_the_drivers_clock_alone(
    cluster: Cluster, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clocks of the world, of the driver and of two workers are hours apart, which nobody notices."""
    monkeypatch.setattr(time, "time", lambda: 0.0)
    clock = Clock(5_000.0)
    ledger = shared_out(cluster, name, 2, clock)
    first, second = ledger.leases()
    lost, slow = (Holder(Board(cluster, name), clock=Clock(now)) for now in (9e9, -9e9))
    assert lost.take([first])
    assert slow.take([second])
    for _ in range(6):
        assert ledger.look().held == 2  # type: ignore[union-attr]
        slow._beat(1)
        clock.now += 5.0
    tally = ledger.look()
    assert tally is not None
    assert (tally.open, tally.held, tally.documents) == (1, 1, 1)
    (again,) = ledger.find("open", 5)[0]
    assert (again.number, again.state["again"]) == (0, True)
    taken = Holder(Board(cluster, name)).take([again])
    assert taken is not None
    assert lost.finish({"rejected": 0}, 10) is False, "who was lost can end nothing"
    assert ledger.read(["0"])["0"] == taken


def test_seconds_without_an_answer_count_for_nobodys_silence(
    cluster: Cluster, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    ledger = shared_out(cluster, name, 2, clock)
    assert Holder(Board(cluster, name)).take(ledger.leases()[:1])
    assert ledger.look().held == 1  # type: ignore[union-attr]
    with monkeypatch.context() as away:

        def refused(*given: Any, **options: Any) -> Any:
            raise Unreachable("away")

        away.setattr(Cluster, "search", refused)
        clock.now += 600
        ledger._beat_at = clock.now
        assert ledger.look() is None
    clock.now += 1
    ledger._beat_at = clock.now
    assert ledger.look().held == 1  # type: ignore[union-attr]


def test_a_holder_that_cannot_show_its_life_stops_in_time(
    cluster: Cluster, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(board, "PULSE", Pulse(beat_s=0.01))
    ledger = shared_out(cluster, name, 2)
    clock, lost = Clock(), threading.Event()
    holder = Holder(Board(cluster, name), clock=clock)
    assert holder.take(ledger.leases()[:1])

    def refused(*given: Any, **options: Any) -> Any:
        raise Unreachable("away")

    monkeypatch.setattr(Board, "write", refused)
    clock.now = 29.0
    with holder.shown(lambda: 0, lost.set):
        assert not lost.wait(0.1)
        clock.now = 30.0
        assert lost.wait(60)


def test_a_holder_stops_before_its_share_is_given_away_while_its_beat_hangs(
    cluster: Cluster, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pulse = Pulse(beat_s=0.2, expiry_s=0.8)
    monkeypatch.setattr(board, "PULSE", pulse)
    ledger = shared_out(cluster, name, 2)
    holder, lost, answered = Holder(Board(cluster, name)), threading.Event(), threading.Event()
    before = time.monotonic()
    assert holder.take(ledger.leases()[:1])

    def hanging(*given: Any, **options: Any) -> Any:
        answered.wait(30)
        raise Unreachable("too late")

    monkeypatch.setattr(Board, "write", hanging)
    with holder.shown(lambda: 0, lost.set):
        try:
            assert lost.wait(10)
            assert time.monotonic() - before < pulse.expiry_s + 2, "the beat hangs on"
            assert holder._clock() - holder._shown_at >= pulse.expiry_s - pulse.beat_s
        finally:
            answered.set()


def test_a_second_driver_is_refused_while_the_first_lives(cluster: Cluster, name: str) -> None:
    clock, other = Clock(), Clock()
    first = shared_out(cluster, name, 3, clock)

    def beating(seconds: float) -> None:
        other.sleep(seconds)
        clock.sleep(seconds)
        first.look()

    second = Ledger(cluster, name, "job", clock=other, sleep=beating)
    with pytest.raises(ClusterError, match=f"another hybridr fills '{name}' at this moment"):
        second.left()
    with pytest.raises(ClusterError, match="another hybridr"):
        ledger_of(cluster, name).begin(PLAN, [{"share": 0}])


def test_a_killed_driver_is_followed_and_notices_it_if_it_was_not_dead(cluster: Cluster, name: str) -> None:
    clock = Clock()
    first = shared_out(cluster, name, 3, clock)
    holder = Holder(Board(cluster, name))
    assert holder.take(first.leases()[:1])
    assert holder.finish({"rejected": 0}, 7)
    second = ledger_of(cluster, name)
    assert second.left() == PLAN
    assert [lease.state["state"] for lease in second.leases()] == ["done", "open", "open"]
    clock.now += 60
    with pytest.raises(ClusterError, match="another hybridr"):
        first.look()


def test_a_driver_that_ended_is_followed_at_once_and_other_jobs_are_not(cluster: Cluster, name: str) -> None:
    first, clock = shared_out(cluster, name, 3), Clock()
    first.leave()
    assert ledger_of(cluster, name, clock=clock).left() == PLAN
    assert clock.now == 0.0
    other = ledger_of(cluster, name, "another job")
    assert other.left() is None
    assert not cluster.exists(lease_index(name))


def test_what_is_left_is_cleared_unless_its_driver_lives(cluster: Cluster, name: str) -> None:
    ledger_of(cluster, name).clear()
    shared_out(cluster, name, 2).leave()
    clock, other = Clock(), Clock()
    ledger_of(cluster, name, clock=clock).clear()
    assert (clock.now, cluster.exists(lease_index(name))) == (0.0, False)
    living = shared_out(cluster, name, 2, clock)

    def beating(seconds: float) -> None:
        other.sleep(seconds)
        clock.sleep(seconds)
        living.look()

    Ledger(cluster, name, "job", clock=other, sleep=beating).clear()
    assert cluster.exists(lease_index(name))
    ledger_of(cluster, name).clear()  # it shows no life any more
    assert not cluster.exists(lease_index(name))


def test_who_comes_late_makes_no_index_anew(cluster: Cluster, name: str) -> None:
    ledger = shared_out(cluster, name, 2)
    holder, late = Holder(Board(cluster, name)), Holder(Board(cluster, name))
    leases = ledger.leases()
    assert holder.take(leases[:1])
    ledger.end()
    with pytest.raises(NotFound):
        holder.finish({"rejected": 0}, 1)
    with pytest.raises(NotFound):
        late.take(leases[1:])
    assert not cluster.exists(lease_index(name))
    assert leased_shares(cluster, name) is None


def test_an_answer_that_is_lost_does_no_harm(
    cluster: Cluster, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger, plain = shared_out(cluster, name, 2), Cluster.request

    def twice(self: Cluster, method: str, path: str, *given: Any, **options: Any) -> Any:
        if path.endswith("_bulk"):
            plain(self, method, path, *given, **options)
        return plain(self, method, path, *given, **options)

    monkeypatch.setattr(Cluster, "request", twice)
    holder = Holder(Board(cluster, name))
    assert holder.take(ledger.leases())
    assert holder.finish({"rejected": 0}, 5)
    assert holder.take()
    holder.give_back()
    tally = leased_shares(cluster, name)
    assert tally is not None
    assert (tally.shares, tally.open, tally.held, tally.documents) == (2, 1, 0, 5)
