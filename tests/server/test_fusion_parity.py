"""The server's fused scores equal `fusion.py`: random lists, ties, single hits, disjoint and empty legs."""

from __future__ import annotations

import random
from itertools import product
from typing import Any

import pytest

from hybridr.bodies import hybrid_query, search_pipeline
from hybridr.cluster import Cluster, path_of
from hybridr.fusion import COMBINATIONS, fuse
from hybridr.hits import checked
from hybridr.settings import SearchSettings
from hybridr.writing import Rejects, index_action, write

pytestmark = pytest.mark.node

TECHNIQUES = [
    *product(("min_max", "l2"), COMBINATIONS),
    ("z_score", "arithmetic_mean"),
    ("rrf", "arithmetic_mean"),
]
CASES = 200
DOCUMENTS = 40
Lists = list[dict[str, float]]


def random_lists(dice: random.Random) -> Lists:
    """Two lists of positive scores over the documents, in one of the shapes that are easy to get wrong."""
    shape = dice.choice(["free", "ties", "single", "disjoint", "empty"])
    everyone = [f"d{number:02d}" for number in range(DOCUMENTS)]
    first = dice.sample(everyone, dice.randint(2, 30))
    second = dice.sample(everyone, dice.randint(2, 30))
    if shape == "disjoint":
        second = [doc for doc in everyone if doc not in first][:20]
    if shape == "single":
        second = second[:1]
    if shape == "empty":
        second = []
    places = 0 if shape == "ties" else 4
    return [{doc: round(dice.uniform(0.6, 20), places) for doc in docs} for docs in (first, second)]


@pytest.fixture(scope="module")
def cases(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Store every case's scores as two numeric fields of each document."""
    dice = random.Random(20)
    lists = [random_lists(dice) for _ in range(CASES)]
    index = "t-parity"
    types = {f"s{case}_{leg}": {"type": "double"} for case in range(CASES) for leg in (0, 1)}
    settings = {"number_of_shards": 1, "number_of_replicas": 0}
    cluster.request("PUT", path_of(index), {"settings": settings, "mappings": {"properties": types}})
    documents: dict[str, dict[str, float]] = {f"d{number:02d}": {} for number in range(DOCUMENTS)}
    for case, pair in enumerate(lists):
        for leg, scores in enumerate(pair):
            for doc, score in scores.items():
                documents[doc][f"s{case}_{leg}"] = score
    rejects = Rejects(tmp_path_factory.mktemp("parity") / "rejects.jsonl")
    write(cluster, index, [index_action(*item) for item in documents.items()], rejects=rejects)
    cluster.refresh(index)
    yield index, lists
    cluster.request("DELETE", path_of(index))


def leg(field: str) -> dict[str, Any]:
    """Score every document that has the field by its value."""
    value = {"field_value_factor": {"field": field}, "boost_mode": "replace"}
    return {"function_score": {"query": {"exists": {"field": field}}, **value}}


def server_list(cluster: Cluster, index: str, field: str) -> dict[str, float]:
    """The list as the server ranks it, ties included."""
    hits = checked(cluster.search(index, {"size": DOCUMENTS, "query": leg(field)}))
    return {hit["_id"]: hit["_score"] for hit in hits}


@pytest.mark.parametrize(("normalization", "combination"), TECHNIQUES)
def test_fused_scores_equal_the_servers(
    cluster: Cluster, cases: tuple[str, list[Lists]], normalization: str, combination: str
) -> None:
    index, lists = cases
    dice = random.Random(f"{normalization} {combination}")
    for case in range(len(lists)):
        weight = dice.choice([0.0, 0.3, 0.5, 0.65, 1.0])
        settings = SearchSettings(normalization=normalization, combination=combination, dense_weight=weight)
        body = {
            "size": DOCUMENTS,
            "query": hybrid_query([leg(f"s{case}_0"), leg(f"s{case}_1")], DOCUMENTS),
            "search_pipeline": search_pipeline(settings, cluster.version),
        }
        found = {hit["_id"]: hit["_score"] for hit in checked(cluster.search(index, body))}
        legs = [server_list(cluster, index, f"s{case}_{number}") for number in (0, 1)]
        assert [set(scores) for scores in legs] == [set(scores) for scores in lists[case]]
        expected = fuse(
            legs, normalization=normalization, combination=combination, weights=[1 - weight, weight]
        )
        assert found == pytest.approx(expected, abs=1e-5), (case, weight)
