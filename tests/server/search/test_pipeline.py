"""The server's fused scores equal `fusion.py`, on one shard and on three uneven ones.

Random lists: ties, single hits, disjoint lists, an empty leg, longer lists than the depth. Of several shards
the server fuses what each of them gives, so the lists are asked for shard by shard."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from hybridr.cluster.connection import Cluster, path_of
from hybridr.search.fusions.pipeline import fuse, hybrid_query, search_pipeline, weights_of
from hybridr.search.settings import SearchSettings

CASES = 200
DEPTH = 15
AT_ONCE = 250
LAYOUTS = {"one shard": (40,), "three uneven shards": (30, 8, 2)}
Lists = list[dict[str, float]]


class Cases(NamedTuple):
    """An index, and the two lists of each case as the server ranks them, shards joined."""

    index: str
    lists: list[Lists]


def random_lists(dice: random.Random, everyone: list[str]) -> Lists:
    """Two lists of positive scores over the documents, in one of the shapes that are easy to get wrong."""
    shape = dice.choice(["free", "ties", "few ties", "equal", "single", "disjoint", "empty", "both empty"])
    first, second = (dice.sample(everyone, dice.randint(2, 30)) for _ in range(2))
    if shape == "disjoint":
        second = [doc for doc in everyone if doc not in first][:20]
    if shape == "single":
        second = second[:1]
    if shape in ("empty", "both empty"):
        second = []
    if shape == "both empty":
        first = []
    places = {"ties": 0, "few ties": 1}.get(shape, 4)
    lists = [{doc: round(dice.uniform(0.6, 20), places) for doc in docs} for docs in (first, second)]
    return [dict.fromkeys(scores, 7.3) for scores in lists] if shape == "equal" else lists


@pytest.fixture(scope="module", params=LAYOUTS, ids=lambda name: name.replace(" ", "-"))
def cases(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[Cases]:
    """Store every case's scores as two numeric fields of each document, and ask for its lists."""
    dice, sizes, index = random.Random(20), LAYOUTS[request.param], "t-parity"
    places = [shard for shard, size in enumerate(sizes) for _ in range(size)]
    everyone = [f"d{number:02d}" for number in range(len(places))]
    lists = [random_lists(dice, everyone) for _ in range(CASES)]
    documents: dict[str, dict[str, float]] = {doc: {} for doc in everyone}
    for case, pair in enumerate(lists):
        for leg, scores in enumerate(pair):
            for doc, score in scores.items():
                documents[doc][f"s{case}_{leg}"] = score
    create(cluster, index, len(sizes))
    store(cluster, index, documents, places)
    yield Cases(index, list(ranked_lists(cluster, index, len(sizes))))
    cluster.request("DELETE", path_of(index))


def create(cluster: Cluster, index: str, shards: int) -> None:
    fields = {f"s{case}_{leg}": {"type": "double", "index": False} for case in range(CASES) for leg in (0, 1)}
    settings = {
        "number_of_shards": shards,
        "number_of_replicas": 0,
        "refresh_interval": -1,
        "mapping.total_fields.limit": 2 * CASES + 10,
    }
    cluster.request("PUT", path_of(index), {"settings": settings, "mappings": {"properties": fields}})


def store(cluster: Cluster, index: str, documents: dict[str, dict[str, float]], places: list[int]) -> None:
    """Write each document into the shard that `places` names, in random order."""
    routes: dict[int, str] = {}
    for number in range(50):
        found = cluster.request("GET", path_of(index, "_search_shards"), params={"routing": str(number)})
        routes.setdefault(found["shards"][0][0]["shard"], str(number))
    lines = [
        json.dumps({"index": {"_id": doc, "routing": routes[place]}}) + "\n" + json.dumps(scores) + "\n"
        for (doc, scores), place in zip(documents.items(), places, strict=True)
    ]
    random.Random(3).shuffle(lines)
    assert not cluster.request("POST", path_of(index, "_bulk"), "".join(lines), {"refresh": "true"})["errors"]
    cluster.request("POST", path_of(index, "_forcemerge"), params={"max_num_segments": 1})
    cluster.refresh(index)  # a later one would number the documents anew, and so break ties otherwise


def ask(cluster: Cluster, index: str, searches: list[tuple[str, dict[str, Any]]]) -> Iterator[list[Any]]:
    """Send searches of a shard (or all: "") each, many at once; give their hits."""
    for start in range(0, len(searches), AT_ONCE):
        lines = ""
        for preference, body in searches[start : start + AT_ONCE]:
            header = {"preference": preference} if preference else {}
            lines += f"{json.dumps(header)}\n{json.dumps(body | {'_source': False})}\n"
        for answer in cluster.request("POST", path_of(index, "_msearch"), lines)["responses"]:
            assert not answer["_shards"]["failed"], answer
            yield answer["hits"]["hits"]


def leg(field: str) -> dict[str, Any]:
    """Score every document that has the field by its value."""
    value = {"field_value_factor": {"field": field}, "boost_mode": "replace"}
    return {"function_score": {"query": {"exists": {"field": field}}, **value}}


def ranked_lists(cluster: Cluster, index: str, shards: int) -> Iterator[Lists]:
    """Give each case's lists: the best of every shard, joined. The server breaks ties by the number of the
    document in its shard, then by the shard."""
    searches = [
        (f"_shards:{shard}", {"size": DEPTH, "query": leg(f"s{case}_{number}"), "sort": ["_score", "_doc"]})
        for case in range(CASES)
        for number in (0, 1)
        for shard in range(shards)
    ]
    answers = ask(cluster, index, searches)
    for _ in range(CASES):
        pair: Lists = []
        for _ in range(2):
            found = [
                (-hit["sort"][0], hit["sort"][1], shard, hit["_id"])
                for shard in range(shards)
                for hit in next(answers)
            ]
            pair.append({doc: -score for score, _, _, doc in sorted(found)})
        yield pair


@pytest.mark.parametrize("normalization", ["min_max", "l2", "z_score", "rrf"])
def test_fused_scores_equal_the_servers(cluster, cases, normalization):
    dice = random.Random(normalization)
    weights = [dice.choice([0.0, 0.3, 0.5, 0.65, 1.0]) for _ in range(CASES)]
    techniques = [SearchSettings(normalization=normalization, dense_weight=dense) for dense in weights]
    searches = [
        (
            "",
            {
                "size": 2 * DEPTH * 3,
                "query": hybrid_query([leg(f"s{case}_0"), leg(f"s{case}_1")], DEPTH),
                "search_pipeline": search_pipeline(technique, cluster.version),
            },
        )
        for case, technique in enumerate(techniques)
    ]
    answers = ask(cluster, cases.index, searches)
    for case, (technique, lists, hits) in enumerate(zip(techniques, cases.lists, answers, strict=True)):
        found = {hit["_id"]: hit["_score"] for hit in hits}
        fused = fuse(lists, normalization=normalization, weights=weights_of(technique))
        assert found == pytest.approx(fused, abs=1e-5), (case, technique)


def test_the_cases_hold_every_corner(cases):
    shapes = {tuple(min(len(scores), 2) for scores in lists) for lists in cases.lists}
    assert {(2, 2), (2, 1), (2, 0), (0, 0)} <= shapes
    assert any(lists[0] and not set(lists[0]) & set(lists[1]) and lists[1] for lists in cases.lists)
    assert any(len(set(lists[0].values())) < len(lists[0]) for lists in cases.lists)
    assert max(len(scores) for lists in cases.lists for scores in lists) >= DEPTH
