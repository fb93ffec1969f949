"""Vectors of tokens on a real node: written, verified, kept up to date, told of and taken away."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import numpy as np
import pytest

from hybridr import ReindexSettings
from hybridr.cluster.connection import Cluster, path_of
from hybridr.cluster.destinations import resolve
from hybridr.cluster.token_field import TOKENS_FIELD, stored_bytes, token_vectors_in
from hybridr.encoders.graph_folders import MultiVectorEncoder
from hybridr.errors import ModelError, SettingsError
from hybridr.indexing.reindexing import plan, reindex
from hybridr.status.standing import remove, status
from support.corpus import put
from support.golden_ddr import colbert as exported
from support.hashing import HashingEncoder
from support.in_place_index import check_a_life, knn_index, problems, raw


@pytest.fixture
def source(cluster: Cluster, index_name: str) -> str:
    knn_index(cluster, index_name, 20)
    put(cluster, index_name, {"empty": {"text": ""}, "odd": {"text": "?"}})
    return index_name


def wanted(in_place: bool = False, **more: Any) -> ReindexSettings:
    given = {"in_place": in_place, "fields": ("text",), "term_table": False, **more}
    return ReindexSettings(token_encoder=exported(), **given)


def assert_vectors_fit(cluster: Cluster, name: str) -> None:
    """Every document has the vectors of its present text, or none without text."""
    encoder = MultiVectorEncoder(exported())
    info = resolve(cluster, name)
    found = raw(cluster, info.name)
    kept = stored_bytes(cluster, info.name, list(found), TOKENS_FIELD)
    assert kept.keys() == {doc_id for doc_id, one in found.items() if one["text"]}
    for doc_id, held in kept.items():
        [expected] = encoder.encode_documents([found[doc_id]["text"]])
        vectors = token_vectors_in(held, encoder.dim)
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        np.testing.assert_allclose(vectors, expected, atol=0.05, err_msg=doc_id)


@pytest.mark.parametrize("in_place", [False, True], ids=["beside", "in place"])
def test_vectors_are_written_resumed_synced_and_removed(cluster, source, in_place):
    before, settings = raw(cluster, source), wanted(in_place)
    fits = partial(assert_vectors_fit, cluster, source)
    destination = check_a_life(cluster, source, settings, (21, 1), fits, "odd")
    [holding] = status(cluster, source).holdings
    fingerprint = MultiVectorEncoder(exported()).fingerprint
    assert holding.representations == (f"token vectors by {fingerprint[:12]}",)
    state = json.loads(resolve(cluster, destination).record.representations["token_vectors"])
    assert state["spread"] > 0
    if in_place:
        script = {"script": {"source": f"ctx._source.{TOKENS_FIELD} = ''"}}
        cluster.request("POST", path_of(source, "_update", "d1"), script, {"refresh": "true"})
        assert problems(cluster, source) == {"token vectors": ["d1"]}
    else:
        remove(cluster, source, discard=True)
        assert raw(cluster, source)["d2"] == before["d2"]


def test_plans_and_refusals(cluster, source):
    todo = plan(cluster, source, HashingEncoder(), wanted(representations=("dense", "token_vectors")))
    properties = todo.requests[0]["body"]["mappings"]["properties"]
    assert properties[TOKENS_FIELD] == {"type": "binary", "doc_values": True}
    assert todo.proposal.remarks[0].startswith("token vectors: about")
    with pytest.raises(SettingsError, match="the representation 'token_vectors' needs --token-encoder DIR"):
        reindex(cluster, source, HashingEncoder(), ReindexSettings(representations=("token_vectors",)))
    nowhere = wanted().model_copy(update={"token_encoder": exported() / "x"})
    with pytest.raises(ModelError, match="does not exist"):
        reindex(cluster, source, HashingEncoder(), nowhere)
