"""The life of an index in any order: writers of each side, reindexes, rounds, ways back, removals, kills."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from hybridr.cluster.connection import Cluster
from support.life import IDS, Life

pytestmark = [pytest.mark.node, pytest.mark.elastic]
STEPS = int(os.environ.get("HYBRIDR_LIFE_STEPS", "0"))
"""As many as asked for by `make test-life`, on each product; each index lives for thirty."""
AN_INDEX = 30
DOCUMENT = st.sampled_from(IDS)
KILL = st.one_of(st.none(), st.integers(0, 25))
HOW = st.sampled_from(["", "copy_back", "discard"])


class Machine(RuleBasedStateMachine):
    """Everything that may happen to one index; a subclass says on which cluster."""

    cluster: Cluster
    steps = 0

    def __init__(self) -> None:
        super().__init__()
        self.life = Life(self.cluster)

    def teardown(self) -> None:
        self.life.close()

    def check_invariants(self, *arguments: object, **more: object) -> None:
        type(self).steps += 1

    @rule(doc_id=DOCUMENT, deletes=st.booleans())
    def the_source_writes(self, doc_id: str, deletes: bool) -> None:
        self.life.write_source(doc_id, deletes=deletes)

    @rule(doc_id=DOCUMENT, deletes=st.booleans(), by_name=st.booleans())
    def the_application_writes(self, doc_id: str, deletes: bool, by_name: bool) -> None:
        self.life.write_alias(doc_id, deletes=deletes, by_name=by_name)

    @rule(doc_id=DOCUMENT, deletes=st.booleans(), place=st.integers(0, 3))
    def somebody_writes_into_an_index_that_was_left(self, doc_id: str, deletes: bool, place: int) -> None:
        self.life.write_left(doc_id, place, deletes=deletes)

    @rule(variant=st.integers(0, 3), kill=KILL)
    def reindex(self, variant: int, kill: int | None) -> None:
        self.life.reindex(variant, kill)

    @rule(kill=KILL)
    def sync(self, kill: int | None) -> None:
        self.life.sync(kill)

    @rule(how=HOW, kill=KILL)
    def rollback(self, how: str, kill: int | None) -> None:
        self.life.rollback(how, kill)

    @rule(how=HOW, kill=KILL)
    def remove(self, how: str, kill: int | None) -> None:
        self.life.remove(how, kill)


def live(cluster: Cluster, steps: int) -> int:
    """Let indices live for so many steps in all; return how many were made."""
    machine = type("MachineOnACluster", (Machine,), {"cluster": cluster, "steps": 0})
    chosen = settings(
        max_examples=max(1, steps // AN_INDEX),
        stateful_step_count=AN_INDEX,
        deadline=None,
        database=None,
        derandomize=not STEPS,
        suppress_health_check=list(HealthCheck),
        print_blob=True,
    )
    run_state_machine_as_test(machine, settings=chosen)
    return int(machine.steps)


@pytest.mark.timeout(36_000 if STEPS else 900)
@pytest.mark.parametrize(("product", "steps"), [("cluster", 90), ("elastic", 60)])
def test_nothing_that_anybody_wrote_is_lost(product, steps, request):
    done = live(request.getfixturevalue(product), STEPS or steps)
    assert done


def test_ways_back_in_a_row(cluster):
    """Copied back, written again, and copied back once more, without a round between."""
    life = Life(cluster)
    for variant in range(3):
        life.reindex(variant % 2, None)
        life.write_alias("d0")
    for _ in range(4):
        life.write_alias("d1")
        life.write_alias("d2", deletes=True)
        life.rollback("copy_back")
        life.write_alias("d2")
    life.close()
