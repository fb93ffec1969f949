"""Late interaction by bits on a real node: its scores are ours, and those that OpenSearch itself gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hybridr.cluster.connection import Cluster, path_of
from hybridr.cluster.record import BITS_FIELD
from hybridr.cluster.token_field import BITS_MAPPING, binary_value, bits_query, stored_bytes
from hybridr.encoders.derived import MAX_QUERY_TOKENS, MAX_TOKENS, pack_bits
from support.bits import late_interaction
from support.corpus import bulk, create, put

LENGTHS = [0, 1, 2, 5, 40, 300, 1, 7, 90]  # tokens; the last document has no field


def states_of(count: int, width: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(count, width)).astype(np.float32)


def filled(cluster: Cluster, name: str, width: int, shards: int = 1) -> dict[str, np.ndarray]:
    """An index of documents with bits, and with their signs as numbers for OpenSearch's own function."""
    mean = np.zeros(width, dtype=np.float32)
    properties = {BITS_FIELD: BITS_MAPPING, "signs": {"type": "object", "enabled": False}}
    settings = {"number_of_shards": shards, "number_of_replicas": 0}
    create(cluster, name, properties, settings)
    found, documents = {}, {"bare": {"signs": []}}
    for number, length in enumerate(LENGTHS):
        states = states_of(length, width, seed=number)
        found[f"d{number}"] = pack_bits(states, mean)
        signs = np.where(states > 0, 1, -1).tolist()
        documents[f"d{number}"] = binary_value(BITS_FIELD, found[f"d{number}"]) | {"signs": signs}
    put(cluster, name, documents)
    return found


def scores(cluster: Cluster, name: str, query: dict[str, Any]) -> dict[str, float]:
    hits = cluster.search(name, {"size": 100, "query": query, "_source": False})["hits"]["hits"]
    return {hit["_id"]: hit["_score"] for hit in hits}


@pytest.mark.parametrize("width", [24, 384])
@pytest.mark.parametrize("shards", [1, 3])
def test_scores_are_those_of_our_arithmetic(cluster, index_name, width, shards):
    found = filled(cluster, index_name, width, shards)
    assert {doc: one.tobytes() for doc, one in found.items()} == stored_bytes(
        cluster, index_name, list(found)
    )
    for tokens in (1, 6, MAX_QUERY_TOKENS):
        query = pack_bits(states_of(tokens, width, seed=99), np.zeros(width, dtype=np.float32))
        weights = np.random.default_rng(tokens).dirichlet(np.ones(tokens)).astype(np.float32)
        told = scores(cluster, index_name, bits_query(query, weights, width, 0.576))
        assert told == pytest.approx(
            {doc: 0.576 * late_interaction(query, weights, one, width) for doc, one in found.items()},
            abs=1e-6,
        )


def test_scores_are_those_of_opensearch_over_signs(cluster, index_name):
    """`lateInteractionScore` adds up (1 + cosine) / 2 of each query token's nearest token."""
    found = filled(cluster, index_name, 384)
    states = states_of(5, 384, seed=7)
    query = pack_bits(states, np.zeros(384, dtype=np.float32))
    source = "lateInteractionScore(params.q, 'signs', params._source, 'cosinesimil')"
    params = {"q": np.where(states > 0, 1.0, -1.0).tolist()}
    some = {"ids": {"values": [doc for doc, one in found.items() if len(one)]}}
    script = {"source": source, "params": params}
    reference = scores(cluster, index_name, {"script_score": {"query": some, "script": script}})
    weights = np.full(5, 0.2, dtype=np.float32)
    told = scores(cluster, index_name, bits_query(query, weights, 384, 1.0))
    near = {doc: max(0.0, 2 * one / 5 - 1) for doc, one in reference.items()}
    assert {doc: told[doc] for doc in near} == pytest.approx(near, abs=1e-6)
    assert len(near) == len(LENGTHS) - 1


def test_the_longest_document_and_query_stay_below_the_limit_of_loops(cluster, index_name):
    cluster.request("PUT", path_of(index_name), {"mappings": {"properties": {BITS_FIELD: BITS_MAPPING}}})
    mean = np.zeros(384, dtype=np.float32)
    longest = pack_bits(states_of(MAX_TOKENS, 384, seed=1), mean)
    bulk(cluster, index_name, [{"index": {"_id": "long"}}, binary_value(BITS_FIELD, longest)])
    query = pack_bits(states_of(MAX_QUERY_TOKENS, 384, seed=2), mean)
    weights = np.full(MAX_QUERY_TOKENS, 1 / MAX_QUERY_TOKENS, dtype=np.float32)
    told = scores(cluster, index_name, bits_query(query, weights, 384, 1.0))
    assert told == pytest.approx({"long": late_interaction(query, weights, longest, 384)}, abs=1e-6)
