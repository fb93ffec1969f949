"""Reindex while clients and the node are killed, the disk floods and two writers work: nothing is lost."""

from __future__ import annotations

import logging
import os
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hybridr.cluster.embedded import process
from support.chaos import SEED_VARIABLE, WITHOUT_CATCHING_UP, Chaos, assert_equal, at_work
from support.chaos_node import NODE, ChaosNode
from support.traffic import make_source

pytestmark = pytest.mark.node
MINUTES = float(os.environ.get("HYBRIDR_CHAOS_MINUTES", "0"))
KILLS, POISONED = min(10, round(MINUTES / 2)), 0.01
SEED = os.environ.get(SEED_VARIABLE)  # before the suite takes such variables away


@pytest.fixture(scope="module")
def chaos_node(own_home: Path) -> Iterator[ChaosNode]:
    """Start a node of its own; the client's log of every 404 would hide what is said here."""
    logging.getLogger("opensearch").setLevel(logging.CRITICAL)
    try:
        yield ChaosNode()
    finally:
        process.stop(NODE, delete_data=True)
        logging.getLogger("opensearch").setLevel(logging.NOTSET)


@pytest.fixture
def dice() -> random.Random:
    """Roll from a seed that is printed; HYBRIDR_CHAOS_SEED repeats one."""
    seed = int(SEED or int.from_bytes(os.urandom(4), "little"))
    sys.stdout.write(f"{SEED_VARIABLE}={seed}\n")
    return random.Random(seed)


@pytest.mark.timeout(900)  # a node starts twice
@pytest.mark.attack(72, 73)
def test_nothing_is_lost_whatever_is_killed(chaos_node, tiny, dice):
    """Two commands at once, of which one is killed, then the node; `make chaos` kills more of everything."""
    chaos = Chaos(chaos_node, make_source(chaos_node.cluster, "gust", 600, dice), tiny, dice)
    with at_work(chaos) as (_, writers):
        one, other = chaos.pair(32, "--accept-rejects")
        chaos.kill(one)
        chaos.restart_node()
        assert other.result()["switched"], "it waited for the node"
        done = chaos.fill_while_written(writers, grows=True)
        assert done["switched"]
        assert_equal(chaos, done)
    assert (chaos.killed, chaos_node.kills) == (1, 1)


if MINUTES:  # `make chaos`: nothing is skipped where nobody asks for it

    @pytest.mark.timeout(MINUTES * 60 + 3600)
    def test_a_storm_of_minutes(chaos_node, tiny, dice):
        began, kills = time.monotonic(), chaos_node.kills
        corpus = make_source(chaos_node.cluster, "tempest", 1_200, dice, POISONED)
        chaos = Chaos(chaos_node, corpus, tiny, dice)
        rounds = 0
        with at_work(chaos) as (reader, writers):
            while time.monotonic() - began < MINUTES * 60 or chaos_node.kills - kills < KILLS:
                rounds += 1
                chaos.storm(20 + rounds)
                if rounds == 2:
                    chaos.fill_disk(19)
                    assert chaos.client(19, "--accept-rejects").result()["switched"]
            done = chaos.fill_while_written(writers)
            assert done["switched"]
            assert_equal(chaos, done)
            looks, seen = reader.done, reader.indices
        sys.stdout.write(
            f"{(time.monotonic() - began) / 60:.1f} minutes, {rounds} rounds, {chaos.killed} clients "
            f"and {chaos_node.kills - kills} nodes killed, {chaos.frozen} clients frozen, "
            f"{chaos.pairs} pairs, "
            f"{[w.done for w in writers]} writes, {looks} looks at {len(seen)} indices, "
            f"{POISONED:.0%} poisoned documents\n"
        )
        assert chaos_node.kills - kills >= KILLS
        assert chaos_node.too_busy > 0
        assert chaos.blocked == 1
        assert seen[-1] == done["destination"]

    def test_without_the_catch_up_passes_it_would_be(chaos_node, tiny, dice):
        corpus = make_source(chaos_node.cluster, "calm", 600, dice)
        chaos = Chaos(chaos_node, corpus, tiny, dice, per_second=150)
        with at_work(chaos) as (_, writers):
            done = chaos.fill_while_written(writers, WITHOUT_CATCHING_UP)
            assert done["switched"]
            with pytest.raises(AssertionError):
                assert_equal(chaos, done)
