"""Verification finds one changed source, vector, id or fingerprint."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import hybridr_cli
from hybridr import ReindexSettings
from hybridr.cluster.connection import Cluster, path_of
from hybridr.errors import ClusterError, DataError
from hybridr.indexing.job import written_here_mark
from hybridr.indexing.reindexing import reindex
from hybridr.indexing.syncing import sync
from hybridr.indexing.verification import Verification, verify
from support.corpus import fill_index, put_documents
from support.hashing import HashingEncoder

pytestmark = pytest.mark.node
COUNT = 40


@pytest.fixture
def filled(cluster: Cluster, index_name: str) -> str:
    fill_index(cluster, index_name, COUNT)
    return reindex(cluster, index_name, HashingEncoder(), ReindexSettings()).destination


def found(cluster: Cluster, name: str) -> Verification:
    return verify(cluster, name, HashingEncoder(), sample=10)


def differing(result: Verification) -> dict[str, list[str]]:
    return {finding.name: finding.differing for finding in result.findings if not finding.ok}


def test_an_untouched_pair_agrees(cluster: Cluster, index_name: str, filled: str) -> None:
    result = found(cluster, index_name)
    assert result.ok
    assert (result.source, result.destination) == (index_name, filled)
    assert {finding.name: finding.looked_at for finding in result.findings}["missing"] == COUNT


COMPANIONS = {"hybridr_seq_no": 7, "hybridr_encoder": HashingEncoder().fingerprint}


def update(cluster: Cluster, index: str, document: dict[str, object]) -> None:
    cluster.request("POST", path_of(index, "_update", "d7"), {"doc": document}, {"refresh": "true"})


def delete(cluster: Cluster, index: str) -> None:
    cluster.request("DELETE", path_of(index, "_doc", "d7"), params={"refresh": "true"})


CHANGES: dict[str, Callable[[Cluster, str, str], None]] = {
    "document": lambda cluster, _, copy: update(cluster, copy, {"price": 99.0, **COMPANIONS}),
    "vector": lambda cluster, _, copy: update(cluster, copy, {"hybridr_vector": [1.0] * 16, **COMPANIONS}),
    "without a vector of this encoder": lambda cluster, _, copy: update(cluster, copy, {"price": 99.0}),
    "older than the source": lambda cluster, source, _: put_documents(cluster, source, [7], suffix=" newer"),
    "missing": lambda cluster, source, copy: (
        delete(cluster, copy),
        put_documents(cluster, source, [7], suffix=" newer"),
    ),
}


def test_a_sample_takes_no_request_a_document(
    cluster: Cluster, index_name: str, filled: str, sent: list[tuple[str, str]]
) -> None:
    assert verify(cluster, index_name, HashingEncoder(), sample=COUNT).ok
    assert sum(path.endswith("/_mget") for _, path in sent) < 5


@pytest.mark.parametrize("change", CHANGES)
def test_one_change_is_found_by_name(cluster: Cluster, index_name: str, filled: str, change: str) -> None:
    CHANGES[change](cluster, index_name, filled)
    result = found(cluster, index_name)
    assert not result.ok
    assert differing(result)[change] == ["d7"]
    assert any(change in problem for problem in result.problems())


def test_one_document_too_many_is_counted(cluster: Cluster, index_name: str, filled: str) -> None:
    put_documents(cluster, filled, [COUNT + 1])
    assert f"{COUNT + 1} in" in "".join(found(cluster, index_name).problems())


def test_what_clients_wrote_there_is_right_once_it_was_synced(
    cluster: Cluster, index_name: str, filled: str
) -> None:
    put_documents(cluster, filled, [7, COUNT + 1], suffix=" by a client")
    assert not found(cluster, index_name).ok
    sync(cluster, index_name, HashingEncoder())
    result = verify(cluster, index_name, HashingEncoder(), sample=COUNT)
    assert result.ok, result.problems()
    update(
        cluster, filled, {"hybridr_vector": [1.0] * 16, **COMPANIONS, "hybridr_seq_no": written_here_mark(7)}
    )
    assert differing(verify(cluster, index_name, HashingEncoder(), sample=COUNT))["vector"] == ["d7"]


def test_command_exits_1_and_names_the_document(
    cluster: Cluster, index_name: str, minilm_encoder_folder: str, capsys: pytest.CaptureFixture[str]
) -> None:
    fill_index(cluster, index_name, 5)
    on = ["--url", cluster.url, "--encoder", str(minilm_encoder_folder)]
    assert hybridr_cli.main(["reindex", index_name, *on]) == 0
    assert hybridr_cli.main(["verify", index_name, *on]) == 0
    capsys.readouterr()
    put_documents(cluster, index_name, [3], suffix=" changed")
    assert hybridr_cli.main(["verify", index_name, *on]) == 1
    assert "older than the source: 1 of 5 documents: d3" in capsys.readouterr().out


def test_reindex_does_not_switch_to_a_wrong_copy(cluster: Cluster, index_name: str, filled: str) -> None:
    update(cluster, filled, {"hybridr_vector": [1.0] * 16, **COMPANIONS})
    with pytest.raises(ClusterError, match="the alias was not switched: vector: 1 of .* documents: d7"):
        reindex(cluster, index_name, HashingEncoder())


def test_nothing_to_verify(cluster: Cluster, index_name: str) -> None:
    fill_index(cluster, index_name, 2)
    with pytest.raises(DataError, match="has no vectors to verify"):
        found(cluster, index_name)
