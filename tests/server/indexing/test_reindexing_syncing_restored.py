"""A snapshot restored over the source: nobody may take its new operations for those of before."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from hybridr.cluster.connection import Cluster, path_of
from hybridr.errors import DataError
from hybridr.indexing.reindexing import reindex, sync
from hybridr.indexing.rollback import rollback
from hybridr.indexing.verification import verify
from hybridr.status.standing import status
from support.corpus import fill_index, put_documents, sources
from support.hashing import HashingEncoder


@pytest.fixture
def restored(cluster: Cluster, index_name: str) -> Iterator[str]:
    """A source with 50 documents of which its 80 vectors know nothing; give the alias of these."""
    place = f"/_snapshot/{index_name}"
    cluster.request("PUT", place, {"type": "fs", "settings": {"location": index_name}})
    fill_index(cluster, index_name, 40)
    waiting = {"wait_for_completion": "true"}
    cluster.request("PUT", f"{place}/first", {"indices": index_name}, waiting)
    put_documents(cluster, index_name, range(40, 80))
    put_documents(cluster, index_name, range(30), suffix=" later")
    alias = reindex(cluster, index_name, HashingEncoder()).alias
    cluster.request("POST", path_of(index_name, "_close"))
    only = {"indices": index_name, "include_global_state": False}
    cluster.request("POST", f"{place}/first/_restore", only, waiting)
    put_documents(cluster, index_name, range(100, 110), suffix=" since")
    yield alias
    cluster.request("DELETE", f"{place}/first")
    cluster.request("DELETE", place)


def test_vectors_of_before_a_restore_are_never_taken_for_current(cluster, index_name, restored, cli):
    before = cluster.indices(restored)[0].name
    with pytest.raises(DataError, match="restored from a snapshot since") as refused:
        sync(cluster, index_name, HashingEncoder())
    assert refused.value.hint is not None
    assert f"hybridr reindex {index_name}" in refused.value.hint
    assert "lineage" in [one.name for one in verify(cluster, index_name).findings if not one.ok]
    (holding,) = status(cluster, index_name).holdings
    assert (holding.restored, holding.lag) == (True, None)
    assert "OUTDATED" in cli(cluster, f"status {index_name}").out
    done = reindex(cluster, index_name, HashingEncoder())
    assert done.destination != before
    assert sources(cluster, restored) == sources(cluster, index_name)
    assert len(sources(cluster, restored)) == 50
    put_documents(cluster, index_name, [3], suffix=" changed")
    assert sync(cluster, index_name, HashingEncoder()).copied == 1
    assert not [one for one in verify(cluster, index_name, HashingEncoder()).findings if not one.ok]


def test_a_rollback_deletes_nothing_that_the_restore_brought_back(cluster, index_name, restored):
    there = sources(cluster, index_name)
    done = rollback(cluster, index_name, copy_back=True)
    assert (done["returned"]["deleted"], done["returned"]["deletes_known"]) == (0, False)
    assert sources(cluster, index_name) == there
