"""Late interaction by bits on a real node: its scores are ours, and those that OpenSearch itself gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hybridr.cluster.connection import Cluster, path_of
from hybridr.cluster.record import BITS_FIELD
from hybridr.cluster.token_field import BITS_MAPPING, bits_query, bits_value, held_bytes
from hybridr.encoders.bits import MOST_QUERY_TOKENS, MOST_TOKENS, bits_of, mean_state
from hybridr.encoders.opening import load_encoder
from hybridr.search.calibration import QUESTIONS, STATEMENTS
from support.bits import late_interaction
from support.corpus import bulk, create

pytestmark = pytest.mark.node
LENGTHS = [0, 1, 2, 5, 40, 300, 1, 7, 90]  # tokens; the last document has no field


def states_of(count: int, width: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(count, width)).astype(np.float32)


def filled(cluster: Cluster, name: str, width: int, shards: int = 1) -> dict[str, np.ndarray]:
    """An index of documents with bits, and with their signs as numbers for OpenSearch's own function."""
    mean = np.zeros(width, dtype=np.float32)
    properties = {BITS_FIELD: BITS_MAPPING, "signs": {"type": "object", "enabled": False}}
    settings = {"number_of_shards": shards, "number_of_replicas": 0}
    create(cluster, name, properties, settings)
    lines: list[dict[str, Any]] = []
    found = {}
    for number, length in enumerate(LENGTHS):
        states = states_of(length, width, seed=number)
        found[f"d{number}"] = bits_of(states, mean)
        signs = np.where(states > 0, 1, -1).tolist()
        lines += [{"index": {"_id": f"d{number}"}}, bits_value(found[f"d{number}"]) | {"signs": signs}]
    bulk(cluster, name, [*lines, {"index": {"_id": "bare"}}, {"signs": []}])
    return found


def scores(cluster: Cluster, name: str, query: dict[str, Any]) -> dict[str, float]:
    hits = cluster.search(name, {"size": 100, "query": query, "_source": False})["hits"]["hits"]
    return {hit["_id"]: hit["_score"] for hit in hits}


@pytest.mark.parametrize("width", [24, 384])
@pytest.mark.parametrize("shards", [1, 3])
def test_scores_are_those_of_our_arithmetic(
    cluster: Cluster, index_name: str, width: int, shards: int
) -> None:
    found = filled(cluster, index_name, width, shards)
    assert {doc: one.tobytes() for doc, one in found.items()} == held_bytes(cluster, index_name, list(found))
    for tokens in (1, 6, MOST_QUERY_TOKENS):
        query = bits_of(states_of(tokens, width, seed=99), np.zeros(width, dtype=np.float32))
        weights = np.random.default_rng(tokens).dirichlet(np.ones(tokens)).astype(np.float32)
        told = scores(cluster, index_name, bits_query(query, weights, width, 0.576))
        assert told == pytest.approx(
            {doc: 0.576 * late_interaction(query, weights, one, width) for doc, one in found.items()},
            abs=1e-6,
        )


def test_scores_are_those_of_opensearch_over_signs(cluster: Cluster, index_name: str) -> None:
    """`lateInteractionScore` adds up (1 + cosine) / 2 of each query token's nearest token."""
    found = filled(cluster, index_name, 384)
    states = states_of(5, 384, seed=7)
    query = bits_of(states, np.zeros(384, dtype=np.float32))
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


@pytest.mark.model
def test_bits_rank_as_the_states_themselves_do(cluster: Cluster, index_name: str, minilm: Path) -> None:
    """OpenSearch's own late interaction over the float states of real texts is the exact reference."""
    encoder = load_encoder(minilm)
    documents = [one.states for one in encoder.read_documents(STATEMENTS)]
    questions = [one.states for one in encoder.read_queries(QUESTIONS)]
    mean = mean_state(documents, encoder.width)
    properties = {BITS_FIELD: BITS_MAPPING, "states": {"type": "object", "enabled": False}}
    cluster.request("PUT", path_of(index_name), {"mappings": {"properties": properties}})
    lines: list[dict[str, Any]] = []
    for number, states in enumerate(documents):
        centred = (states - mean).tolist()
        lines += [{"index": {"_id": str(number)}}, bits_value(bits_of(states, mean)) | {"states": centred}]
    bulk(cluster, index_name, lines)
    agreed = []
    for number, states in enumerate(questions):
        source = "lateInteractionScore(params.q, 'states', params._source, 'cosinesimil')"
        script = {"source": source, "params": {"q": (states - mean).tolist()}}
        exact = scores(cluster, index_name, {"script_score": {"query": {"match_all": {}}, "script": script}})
        weights = np.full(len(states), 1 / len(states), dtype=np.float32)
        by_bits = scores(cluster, index_name, bits_query(bits_of(states, mean), weights, encoder.width, 1.0))
        assert max(exact, key=exact.__getitem__) == max(by_bits, key=by_bits.__getitem__) == str(number)
        pairs = [(2 * exact[doc] / len(states) - 1, by_bits[doc]) for doc in exact]
        agreed.append(np.corrcoef(np.array(pairs).T)[0, 1])
    assert min(agreed) > 0.85


def test_the_longest_document_and_query_stay_below_the_limit_of_loops(
    cluster: Cluster, index_name: str
) -> None:
    cluster.request("PUT", path_of(index_name), {"mappings": {"properties": {BITS_FIELD: BITS_MAPPING}}})
    mean = np.zeros(384, dtype=np.float32)
    longest = bits_of(states_of(MOST_TOKENS, 384, seed=1), mean)
    bulk(cluster, index_name, [{"index": {"_id": "long"}}, bits_value(longest)])
    query = bits_of(states_of(MOST_QUERY_TOKENS, 384, seed=2), mean)
    weights = np.full(MOST_QUERY_TOKENS, 1 / MOST_QUERY_TOKENS, dtype=np.float32)
    told = scores(cluster, index_name, bits_query(query, weights, 384, 1.0))
    assert told == pytest.approx({"long": late_interaction(query, weights, longest, 384)}, abs=1e-6)
