"""A role loses a right in the middle of the work: it is said which one, and nothing is lost when it is back.

Once in the suite, and many times in `make chaos`, at another moment each time.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from hybridr import ReindexSettings, connect
from hybridr.cluster.connection import Cluster
from hybridr.cluster.embedded.state import NodeState
from hybridr.errors import AccessDenied
from hybridr.indexing.reindexing import reindex, sync
from hybridr.indexing.verification import verify
from hybridr.status.standing import status
from support.corpus import delete, drop_indices, fill_index, put_documents, sources, text_number
from support.hashing import HashingEncoder
from support.rights import PASSWORD, change_role, make_users, role_of

pytestmark = pytest.mark.secure
INDEX, USER = "t-lost-rights", "carol"
ROUNDS = max(1, round(float(os.environ.get("HYBRIDR_CHAOS_MINUTES", "0"))))
PATIENT = ReindexSettings(patience_s=5, read_documents=10)
LOST = {
    "indices:data/write/bulk*": "indices:data/write/bulk",
    "indices:data/read/search": "indices:data/read/search",
    "indices:data/read/mget*": "indices:data/read/mget",
}
"""What a role loses, and what is said to be missing."""


@pytest.fixture(scope="module")
def admin(secure_node: NodeState) -> Iterator[Cluster]:
    cluster = connect(secure_node.url)
    yield cluster
    drop_indices(cluster, f"{INDEX}*")


@pytest.fixture(scope="module")
def carol(admin: Cluster, secure_node: NodeState) -> Cluster:
    """A user whose role is changed while she works."""
    make_users(admin, {USER: role_of("reindex", INDEX)})
    return connect(secure_node.url, user=USER, password=PASSWORD)


def grant(admin: Cluster, verb: str, without: str = "") -> None:
    """Give her the role of a verb, without one of its rights."""
    role = role_of(verb, INDEX)
    for permission in role["index_permissions"]:
        permission["allowed_actions"] = [one for one in permission["allowed_actions"] if one != without]
    change_role(admin, USER, role)


class Interrupted(HashingEncoder):
    """Calls something after so many texts."""

    def __init__(self, after: int, call: Callable[[], object]) -> None:
        super().__init__()
        self.after, self.call = after, call

    def encode_documents(self, texts: Any, *, max_tokens: int | None = None) -> np.ndarray:
        found = super().encode_documents(texts, max_tokens=max_tokens)
        if len(self.encoded) >= self.after:
            self.after = 10**9
            self.call()
        return found


@pytest.mark.timeout(600 + 60 * ROUNDS)
@pytest.mark.parametrize("lost", LOST)
def test_a_right_that_is_lost_in_the_middle_is_named_and_nothing_is_lost(admin, carol, lost):
    dice = random.Random()
    for _ in range(ROUNDS):
        drop_indices(admin, f"{INDEX}*")
        fill_index(admin, INDEX, 80)
        grant(admin, "reindex")
        encoder = Interrupted(dice.randint(1, 60), lambda: grant(admin, "reindex", lost))
        with pytest.raises(AccessDenied, match=LOST[lost]):
            reindex(carol, INDEX, encoder, PATIENT)
        assert not admin.exists(f"{INDEX}-hybridr"), "no alias before all is there"
        put_documents(admin, INDEX, [3, 90], suffix=" meanwhile")
        grant(admin, "reindex")
        done = reindex(carol, INDEX, HashingEncoder(), PATIENT)
        assert done.switched
        assert done.skipped + done.encoded >= 81
        assert_equal(admin, done.destination)

        grant(admin, "sync")
        put_documents(admin, INDEX, range(40, 60), suffix=" later")
        delete(admin, INDEX, "d7")
        encoder = Interrupted(dice.randint(1, 10), lambda: grant(admin, "sync", lost))
        with pytest.raises(AccessDenied, match=LOST[lost]):
            sync(carol, INDEX, encoder, PATIENT)
        [held] = status(admin, INDEX).holdings
        assert held.lag.inserts + held.lag.updates + held.lag.deletes > 0, "what is not there yet is told"
        grant(admin, "sync")
        sync(carol, INDEX, HashingEncoder(), PATIENT)
        assert_equal(admin, done.destination)


def assert_equal(admin: Cluster, destination: str) -> None:
    """Compare all documents and vectors of the source and the index with vectors."""
    admin.refresh(INDEX)
    admin.refresh(destination)
    assert sources(admin, destination) == sources(admin, INDEX)
    assert text_number(3) + " meanwhile" in {one["text"] for one in sources(admin, destination).values()}
    found = verify(admin, INDEX, HashingEncoder(), sample=100)
    assert found.problems() == []
