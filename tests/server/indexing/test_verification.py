"""Verification finds one changed source, vector, id or fingerprint."""

from __future__ import annotations

import pytest

from hybridr import ReindexSettings
from hybridr.cluster.connection import Cluster, path_of
from hybridr.errors import ClusterError
from hybridr.indexing.job import written_here_mark
from hybridr.indexing.reindexing import reindex, sync
from hybridr.indexing.verification import Verification, verify
from support.corpus import put_documents, reindexed, update
from support.hashing import HashingEncoder

COUNT = 40


@pytest.fixture
def filled(cluster: Cluster, index_name: str) -> str:
    return reindexed(cluster, index_name, COUNT, HashingEncoder(), ReindexSettings()).destination


def found(cluster: Cluster, name: str) -> Verification:
    return verify(cluster, name, HashingEncoder(), sample=10)


def differing(result: Verification) -> dict[str, list[str]]:
    return {finding.name: finding.differing for finding in result.findings if not finding.ok}


def test_an_untouched_pair_agrees_and_one_document_too_many_is_counted(cluster, index_name, filled, sent):
    result = found(cluster, index_name)
    assert result.ok
    assert (result.source, result.destination) == (index_name, filled)
    assert {finding.name: finding.looked_at for finding in result.findings}["missing"] == COUNT

    # A sample takes no request a document.
    sent.clear()
    assert verify(cluster, index_name, HashingEncoder(), sample=COUNT).ok
    assert sum(path.endswith("/_mget") for _, path in sent) < 5

    # One document too many is counted.
    put_documents(cluster, filled, [COUNT + 1])
    problems = "".join(found(cluster, index_name).problems())
    assert f"{COUNT + 1} in" in problems
    assert problems.endswith(f"clients wrote 1 since: hybridr sync {index_name}")
    sync(cluster, index_name, HashingEncoder())
    assert found(cluster, index_name).ok


COMPANIONS = {"hybridr_seq_no": 7, "hybridr_encoder": HashingEncoder().fingerprint}


def change_one_each(cluster: Cluster, source: str, copy: str) -> dict[str, str]:
    """Change a document in each way; give which one a verification has to name for what."""
    update(cluster, copy, "d7", price=99.0, **COMPANIONS)
    update(cluster, copy, "d9", hybridr_vector=[1.0] * 16, **COMPANIONS | {"hybridr_seq_no": 9})
    update(cluster, copy, "d11", price=99.0)
    put_documents(cluster, source, [13], suffix=" newer")
    cluster.request("DELETE", path_of(copy, "_doc", "d15"), params={"refresh": "true"})
    put_documents(cluster, source, [15], suffix=" newer")
    names = ("document", "vector", "without a vector of this encoder", "older than the source", "missing")
    return dict(zip(names, ("d7", "d9", "d11", "d13", "d15"), strict=True))


def test_one_change_is_found_by_name(cluster, index_name, filled):
    changed = change_one_each(cluster, index_name, filled)
    result = verify(cluster, index_name, HashingEncoder(), sample=COUNT)
    for name, doc_id in changed.items():
        assert doc_id in differing(result)[name], name
        assert any(name in problem for problem in result.problems())
    assert set(sum(differing(result).values(), [])) == set(changed.values())


def test_what_clients_wrote_there_is_right_once_it_was_synced(cluster, index_name, filled):
    put_documents(cluster, filled, [7, COUNT + 1], suffix=" by a client")
    assert not found(cluster, index_name).ok
    sync(cluster, index_name, HashingEncoder())
    result = verify(cluster, index_name, HashingEncoder(), sample=COUNT)
    assert result.ok, result.problems()
    marked = COMPANIONS | {"hybridr_seq_no": written_here_mark(7)}
    update(cluster, filled, "d7", hybridr_vector=[1.0] * 16, **marked)
    assert differing(verify(cluster, index_name, HashingEncoder(), sample=COUNT))["vector"] == ["d7"]


def test_reindex_does_not_switch_to_a_wrong_copy(cluster, index_name, filled):
    update(cluster, filled, "d7", hybridr_vector=[1.0] * 16, **COMPANIONS)
    with pytest.raises(ClusterError, match="the alias was not switched: vector: 1 of .* documents: d7"):
        reindex(cluster, index_name, HashingEncoder())
