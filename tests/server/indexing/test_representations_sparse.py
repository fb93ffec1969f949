"""Weights of tokens on a real node: written, verified, kept up to date, told of and taken away."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hybridr import ReindexSettings
from hybridr.cluster.connection import Cluster, path_of
from hybridr.cluster.destinations import resolve, write_record
from hybridr.cluster.retrievers.sparse import SPARSE_FIELD, feature_name
from hybridr.encoders.graph_folders import SparseEncoder
from hybridr.errors import FingerprintMismatch, ModelError, SettingsError
from hybridr.files.remembered import forget_encoder
from hybridr.indexing.reindexing import plan, reindex, sync
from hybridr.indexing.verification import verify
from hybridr.status.standing import remove, status
from support.corpus import put, put_documents
from support.hashing import HashingEncoder
from support.in_place_index import check_a_life, knn_index, problems, raw
from support.sparse import exported


@pytest.fixture
def source(cluster: Cluster, index_name: str) -> str:
    knn_index(cluster, index_name, 20)
    texts = {"empty": "", "signs": "a. b * c %", "odd": "\x07"}
    put(cluster, index_name, {doc_id: {"text": text} for doc_id, text in texts.items()})
    return index_name


def wanted(in_place: bool = False, **more: Any) -> ReindexSettings:
    given = {"in_place": in_place, "fields": ("text",), "term_table": False, **more}
    return ReindexSettings(sparse_encoder=exported(), **given)


def assert_weights_fit(cluster: Cluster, name: str) -> None:
    """Every document has the weights of its present text, or none without text."""
    documents = raw(cluster, resolve(cluster, name).name)
    encoder = SparseEncoder(exported())
    for doc_id, found in documents.items():
        if not found["text"]:
            assert SPARSE_FIELD not in found
            continue
        [expected] = encoder.encode_documents([found["text"]])
        assert len(expected) > 5
        weights = {feature_name(token): weight for token, weight in expected.items()}
        assert found[SPARSE_FIELD] == pytest.approx(weights, rel=1e-3, abs=1e-4), doc_id


def test_weights_are_written_resumed_synced_and_removed(cluster, source):
    before, settings = raw(cluster, source), wanted(in_place=True)
    check_a_life(cluster, source, settings, (22, 1), lambda: assert_weights_fit(cluster, source), "signs")
    [holding] = status(cluster, source).holdings
    fingerprint = SparseEncoder(exported()).fingerprint
    assert holding.representations == (f"sparse weights by {fingerprint[:12]}",)
    script = {"script": {"source": f"ctx._source.{SPARSE_FIELD}.clear()"}}
    cluster.request("POST", path_of(source, "_update", "d1"), script, {"refresh": "true"})
    assert problems(cluster, source) == {"sparse weights": ["d1"]}
    assert SPARSE_FIELD in remove(cluster, source)["fields"]
    assert raw(cluster, source)["d2"] == before["d2"]


def test_weights_are_planned_and_another_encoder_is_another_index(cluster, source):
    settings = wanted(representations=("dense", "sparse"), term_table=True)
    todo = plan(cluster, source, HashingEncoder(), settings)
    assert todo.requests[0]["body"]["mappings"]["properties"][SPARSE_FIELD] == {"type": "rank_features"}
    assert todo.proposal.remarks[0].startswith("sparse weights: about")
    made = reindex(cluster, source, HashingEncoder(), settings).destination
    assert_weights_fit(cluster, source)
    other = wanted(alias=f"{source}-2").model_copy(update={"sparse_encoder": exported("unicoil")})
    assert reindex(cluster, source, HashingEncoder(), other).destination != made
    state = json.loads(resolve(cluster, made).record.representations["sparse"])
    assert state["spread"] > 0


def test_refusals(cluster, source):
    with pytest.raises(SettingsError, match="the representation 'sparse' needs --sparse-encoder DIR"):
        reindex(cluster, source, HashingEncoder(), ReindexSettings(representations=("sparse",)))
    nowhere = wanted().model_copy(update={"sparse_encoder": exported() / "x"})
    with pytest.raises(ModelError, match="does not exist"):
        reindex(cluster, source, HashingEncoder(), nowhere)
    made = reindex(cluster, source, HashingEncoder(), wanted()).destination
    state = json.loads(resolve(cluster, source).record.representations["sparse"])
    forget_encoder(state["encoder"])
    with pytest.raises(ModelError, match="is not known on this machine"):
        verify(cluster, source, HashingEncoder())
    write_record(cluster, made, representations={"sparse": json.dumps({**state, "encoder": "f" * 64})})
    put_documents(cluster, source, [3], suffix=" by a client")
    with pytest.raises(FingerprintMismatch, match="but ffffffffffff wrote the index"):
        sync(cluster, source, HashingEncoder(), wanted())
