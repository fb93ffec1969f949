"""The dense leg: mappings of each form, queries, refusals, costs, and how far bytes may be from floats."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from hybridr import ReindexSettings
from hybridr.cluster.connection import Cluster
from hybridr.cluster.retrievers.dense import (
    MAX_NEIGHBOURS,
    DenseRetriever,
    as_numbers,
    dense_query,
    to_stored_values,
    vector_mapping,
    with_passages,
)
from hybridr.cluster.settings import VectorSettings
from hybridr.cluster.vector_forms import (
    FORMS,
    cost_of,
    form_of,
    lacks_native_libraries,
    obstacle,
    require_form,
)
from hybridr.errors import ClusterError, SettingsError

OLD, NEW = (2, 19, 1), (3, 6, 0)


def leg(most_passages: int | None = None) -> DenseRetriever:
    return DenseRetriever(VectorSettings(vector_field="v"), 1, "cosine", most_passages)


def test_bodies_with_and_without_passages() -> None:
    asked = {"vector": [1.0], "k": 5, "method_parameters": {"ef_search": 10}, "_name": "dense"}
    assert dense_query([1.0], "v", 5, "dense") == {"knn": {"v": asked | {"ignore_unmapped": True}}}
    ids = {"ids": {"values": ["a"]}}
    nested = with_passages(dense_query([1.0], "v", 5, "dense", passages=True, filter=ids))["nested"]
    assert (nested["path"], nested["score_mode"], nested["_name"]) == ("v", "max", "dense")
    assert nested["query"]["knn"]["v.vector"]["filter"] == ids


def test_true_scores_are_asked_in_groups_that_k_covers() -> None:
    ids = [f"d{number}" for number in range(400)]
    groups = leg(64).scoring_query(np.array([1.0]), ids)["bool"]["should"]
    asked = [group["nested"]["query"]["knn"]["v.vector"] for group in groups]
    assert sum((query["filter"]["ids"]["values"] for query in asked), []) == ids
    assert all(len(query["filter"]["ids"]["values"]) * 64 <= query["k"] <= MAX_NEIGHBOURS for query in asked)
    assert leg().scoring_query(np.array([1.0]), ids)["knn"]["v"]["k"] == 400


def mapped(version: tuple[int, int, int] = NEW, **settings: Any) -> dict[str, Any]:
    return vector_mapping(384, "cosine", ReindexSettings(**settings), version)


def test_floats_are_mapped_as_ever() -> None:
    graph = {"m": 16, "ef_construction": 100}
    method = {"name": "hnsw", "engine": "lucene", "space_type": "cosinesimil", "parameters": graph}
    assert mapped() == {"type": "knn_vector", "dimension": 384, "method": method}


def test_each_form_has_its_own_mapping() -> None:
    assert mapped(vectors="byte")["data_type"] == "byte"
    assert mapped(vectors="sq")["method"]["parameters"]["encoder"] == {
        "name": "sq",
        "parameters": {"bits": 7, "confidence_interval": 1.0},
    }
    assert mapped(OLD, vectors="sq") == mapped(NEW, vectors="sq")
    disk = mapped(vectors="on_disk", engine="faiss")
    assert (disk["mode"], disk["compression_level"]) == ("on_disk", "32x")
    assert "encoder" not in disk["method"]["parameters"], "on_disk cannot be combined with an encoder"
    assert mapped(vectors="on_disk")["compression_level"] == "4x"


def test_half_floats_are_named_as_the_version_wants_them() -> None:
    """3.6 refuses an `sq` without `bits`; before it there is none."""
    named = {
        version: mapped(version, vectors="sq", engine="faiss")["method"]["parameters"]["encoder"]
        for version in (OLD, NEW)
    }
    assert named[OLD] == {"name": "sq", "parameters": {"type": "fp16"}}
    assert named[NEW] == {"name": "sq", "parameters": {"bits": 16}}


@pytest.mark.parametrize(
    ("settings", "said", "hint"),
    [
        ({"compression": "4x"}, "a level of on_disk, not of float", "--vectors on_disk"),
        ({"vectors": "on_disk", "compression": "8x"}, "lucene has no on_disk 8x", "--engine faiss"),
        ({"vectors": "on_disk", "compression": "4x", "engine": "faiss"}, "faiss has no on_disk 4x", "lucene"),
        ({"vectors": "byte", "engine": "faiss"}, "faiss has no byte", "--engine lucene --vectors byte"),
    ],
)
def test_what_no_version_has_is_refused(settings: dict[str, Any], said: str, hint: str) -> None:
    with pytest.raises(SettingsError, match=said) as refused:
        form_of(ReindexSettings(**settings))
    assert hint in str(refused.value.hint)


def refusal(version: tuple[int, int, int], similarity: str, bare: bool, **settings: Any) -> ClusterError:
    with pytest.raises(ClusterError) as refused:
        require_form(form_of(ReindexSettings(**settings)), similarity, version, bare=bare)
    return refused.value


def test_versions_that_lack_a_form() -> None:
    one_bit = {"vectors": "on_disk", "compression": "32x"}
    error = refusal(OLD, "cosine", False, **one_bit)
    assert "needs OpenSearch 3.6.0, this is 2.19.1" in error.message
    assert error.hint == "--engine lucene --vectors on_disk --compression 4x"
    assert obstacle(form_of(ReindexSettings(**one_bit)), "cosine", NEW, bare=False) is None
    mapped_only = {"vectors": "on_disk", "compression": "1x", "engine": "faiss"}
    assert "needs OpenSearch 3.1.0" in refusal(OLD, "cosine", False, **mapped_only).message


@pytest.mark.parametrize(
    "settings",
    [{"engine": "faiss", "vectors": kind} for kind in ("float", "sq", "on_disk")]
    + [{"vectors": "on_disk", "compression": "32x"}],
)
def test_what_would_kill_an_embedded_node(settings: dict[str, Any]) -> None:
    error = refusal(NEW, "cosine", True, **settings)
    assert "would kill this embedded node" in error.message
    assert "--engine lucene" in str(error.hint)


def test_bytes_are_for_cosine_only() -> None:
    error = refusal(NEW, "ip", True, vectors="byte")
    assert "keeps directions, not lengths" in error.message
    assert error.hint == "--engine lucene --vectors sq"


def test_costs_by_hand() -> None:
    """A million vectors of 384 values and m 16, as OpenSearch's documentation computes them."""
    costs = {(one.engine, one.vectors, one.compression): cost_of(one, 10**6, 384, 16, NEW) for one in FORMS}
    sizes = {("lucene", "float", None): 4 * 384, ("lucene", "byte", None): 384}
    sizes |= {("faiss", "sq", None): 2 * 384, ("faiss", "on_disk", "32x"): 384 / 8}
    assert {form: costs[form].memory_bytes for form in sizes} == {
        form: round(1.1 * (size + 8 * 16) * 10**6) for form, size in sizes.items()
    }
    assert {cost.bytes_per_vector for cost in costs.values()} == {1536, 768, 384, 192, 96, 48}
    assert cost_of(FORMS[4], 1, 9, 16, NEW).bytes_per_vector == 2, "bits are rounded up to bytes"


@pytest.mark.parametrize(
    ("version", "form", "seen"),
    [
        (NEW, {}, 9_915_879),
        (NEW, {"vectors": "byte"}, 2_865_004),
        (NEW, {"vectors": "sq"}, 10_692_263),
        (OLD, {}, 16_595_492),
        (OLD, {"vectors": "byte"}, 3_980_730),
        (OLD, {"vectors": "sq"}, 17_371_884),
    ],
)
def test_disk_is_what_was_seen(version: tuple[int, int, int], form: dict[str, Any], seen: int) -> None:
    """Size of the index files of 2,000 documents of 384 values, with some 0.3 MB that are no vectors."""
    estimate = cost_of(form_of(ReindexSettings(**form)), 2_000, 384, 16, version).disk_bytes
    assert 0.95 < (estimate + 300_000) / seen < 1.15


def unit_vectors(count: int, dim: int, seed: int) -> np.ndarray:
    drawn = np.random.default_rng(seed).normal(size=(count, dim)).astype(np.float32)
    return drawn / np.linalg.norm(drawn, axis=1, keepdims=True)


@pytest.mark.parametrize("dim", [2, 384])
def test_bytes_are_as_near_as_rounding_allows(dim: int) -> None:
    """Rounding moves each value by half a step at most, a step being the largest value / 127."""
    vectors = unit_vectors(200, dim, dim)
    kept = to_stored_values(vectors, "byte")
    assert kept.dtype == np.int8
    assert (np.abs(kept.astype(int)).max(axis=1) == 127).all()
    step = np.abs(vectors).max(axis=1, keepdims=True) / 127
    assert (np.abs(kept * step - vectors) <= step / 2 + 1e-6).all()


def test_odd_vectors() -> None:
    assert to_stored_values(np.zeros((1, 4), np.float32), "byte").tolist() == [[0, 0, 0, 0]]
    assert to_stored_values(np.zeros((0, 4), np.float32), "byte").shape == (0, 4)
    assert to_stored_values(np.array([[0.0, -1e-30, 0.0]]), "byte").tolist() == [[0, -127, 0]]
    floats = unit_vectors(3, 4, 0)
    for kept in ("float", "sq", "on_disk"):
        assert to_stored_values(floats, kept) is floats


def test_numbers_of_a_request_are_short_and_near() -> None:
    vector = np.random.default_rng(1).normal(size=384).astype(np.float32)
    vector /= np.linalg.norm(vector)
    numbers = as_numbers(vector)
    assert numbers == pytest.approx(vector.tolist(), abs=6e-9)
    assert max(map(len, map(str, numbers))) <= len("-0.12345678") + 4  # 1e-05 and such
    assert len(json.dumps(numbers)) < 0.65 * len(json.dumps(vector.tolist()))
    assert as_numbers(np.array([3, -127], dtype=np.int8)) == [3, -127]
    assert all(isinstance(number, int) for number in as_numbers(np.array([3], dtype=np.int8)))


@pytest.mark.parametrize(
    ("attributes", "lacks"),
    [
        ({}, False),
        ({"hybridr_embedded": "true"}, True),
        ({"hybridr_embedded": "true", "hybridr_faiss": "false"}, True),
        ({"hybridr_embedded": "true", "hybridr_faiss": "true"}, False),
    ],
)
def test_only_a_bare_embedded_node_lacks_engines(attributes: dict[str, str], lacks: bool) -> None:
    client: Any = None
    cluster = Cluster(client, "http://127.0.0.1:9")
    cluster.nodes = [{"attributes": attributes}]
    assert lacks_native_libraries(cluster) is lacks
