"""The same request has the same answer, and pages join, on any number of shards however uneven."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from hybridr import Search, SearchSettings, connect
from hybridr.cluster.connection import Cluster
from hybridr.cluster.routing import routing_values, text_preference
from hybridr.errors import SettingsError
from hybridr.indexing.reindexing import reindex
from hybridr.records import Query
from hybridr.search.checks import Mode
from support.corpus import WORDS, bulk, create, drop_indices
from support.hashing import HashingEncoder

COUNT, SHALLOW = 300, 20
DICE = random.Random(3)
ODDS = [1 / (place + 1) for place in range(len(WORDS))]
TEXTS = list(dict.fromkeys(" ".join(DICE.choices(WORDS, k=DICE.randint(1, 5))) for _ in range(40)))[:5]


def encoder() -> HashingEncoder:
    return HashingEncoder(dim=32)


def fill(cluster: Cluster, name: str, shards: int, replicas: int) -> None:
    """Put most documents into the first shards; every tenth is there twice, so that scores tie."""
    settings = {"number_of_shards": shards, "number_of_replicas": replicas}
    create(cluster, name, {"text": {"type": "text"}}, settings)
    values = routing_values(cluster.index_info(name))
    dice, text, lines = random.Random(5), "owl", []
    for number in range(COUNT):
        if number % 10:
            text = " ".join(dice.choices(WORDS, ODDS, k=dice.choice([2, 5, 12])))
        [routing] = dice.choices(values, [3.0**-place for place in range(shards)])
        lines += [{"index": {"_id": f"d{number}", "routing": routing}}, {"text": text}]
    bulk(cluster, name, lines)


@pytest.fixture(scope="module", params=[(1, 0), (5, 1)], ids=lambda one: f"{one[0]}-shards")
def index(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[str]:
    name = f"t-repeat-{request.param[0]}"
    fill(cluster, name, *request.param)
    reindex(cluster, name, encoder())
    yield name
    drop_indices(cluster, f"{name}*")


def opened(cluster: Cluster, index: str, mode: Mode = "hybrid", **settings: Any) -> Search:
    """A search as a program that has just started opens it."""
    return Search(connect(cluster.url), index, encoder(), mode, settings=SearchSettings(**settings))


def ranked(search: Search, texts: Sequence[str] = TEXTS) -> dict[str, list[tuple[str, float]]]:
    found = search.run([Query(text, text) for text in texts], 49)
    return {text: list(scores.items()) for text, scores in found.items()}


def paged(search: Search, text: str, length: int, size: int = 7) -> list[tuple[str, float, int]]:
    hits = [hit for start in range(0, length, size) for hit in search(text, size, offset=start)]
    return [(hit.doc_id, hit.score, hit.rank) for hit in hits][:length]


def whole(search: Search, text: str, length: int) -> list[tuple[str, float, int]]:
    return [(hit.doc_id, hit.score, hit.rank) for hit in search(text, length)]


def test_again_and_again_the_same_answer_in_every_state_of_the_index(cluster, index):
    name = opened(cluster, index).info.name
    for state in ("new", "deleted", "merged", "opened again"):
        if state == "deleted":
            for doc_id in list(dict(ranked(opened(cluster, index), TEXTS[:1])[TEXTS[0]]))[:3]:
                body = {"query": {"ids": {"values": [doc_id]}}}
                cluster.request("POST", f"/{name}/_delete_by_query", body, {"refresh": "true"})
        elif state == "merged":
            cluster.request("POST", f"/{name}/_forcemerge", params={"max_num_segments": "1"})
        elif state == "opened again":
            cluster.request("POST", f"/{name}/_close")
            cluster.request("POST", f"/{name}/_open")
            cluster.wait_until_usable(name)
        first = ranked(opened(cluster, index))
        assert all(len(found) == 49 for found in first.values())
        assert ranked(opened(cluster, index)) == first, state
        for text in TEXTS[:2]:
            hits = whole(opened(cluster, index), text, 49)
            assert [doc for doc, _, _ in hits] == [doc for doc, _ in first[text]]
            assert paged(opened(cluster, index), text, 49) == hits, state


@pytest.mark.parametrize("mode", ["hybrid", "dense", "lexical"])
def test_pages_beyond_the_depth_join_too(cluster, index, mode):
    search = opened(cluster, index, mode, depth=SHALLOW)
    for text in TEXTS[:1]:
        found = whole(search, text, 112)
        assert paged(search, text, 112) == found
        assert paged(search, text, 112, 30) == found
        assert len({doc for doc, _, _ in found}) == len(found)
        assert [rank for _, _, rank in found] == list(range(1, len(found) + 1))
        assert found[:SHALLOW] == whole(search, text, SHALLOW)
        beyond = search(text, 10, offset=COUNT + 10)
        assert not beyond, "no more documents than there are"


def test_all_documents_are_found_in_the_end(cluster, index):
    search = opened(cluster, index, depth=SHALLOW)
    found = search(TEXTS[0], COUNT)
    assert len({hit.doc_id for hit in found}) == len(found) == cluster.count(search.info.name)

    # One request does not reach beyond the depth.
    assert search.request(TEXTS[0], 10, offset=10)["from"] == 10
    assert search.request(TEXTS[0], 30)["size"] == 30
    with pytest.raises(SettingsError, match="hits 12 to 21 are beyond the 20 candidates") as refused:
        search.request(TEXTS[0], 10, offset=11)
    assert refused.value.hint == "--depth 21 for all pages"
    assert search.using("lexical").request(TEXTS[0], 10, offset=50)["from"] == 50


class TermTableBuilder:
    """A client that keeps which copies of the shards each search names."""

    name = "listener"

    def __init__(self, client: Any) -> None:
        self.client, self.named = client, []  # type: ignore[var-annotated]

    def send(self, method: str, path: str, content: Any, params: Any, timeout_s: Any) -> Any:
        if path.endswith("_search"):
            self.named.append((params or {}).get("preference"))
        if path.endswith("_msearch"):
            self.named += [json.loads(line).get("preference") for line in content.splitlines()[::2]]
        return self.client.send(method, path, content, params, timeout_s)


@pytest.mark.parametrize(
    ("mode", "feedback", "settings"),
    [
        ("lexical", None, {}),
        ("lexical", "rm3", {}),
        ("dense", None, {"depth": 10}),
        ("hybrid", None, {"depth": 10}),
        ("hybrid", None, {"fusion": "pipeline"}),
    ],
)
def test_the_same_copies_rank_for_the_same_text(cluster, index, mode, feedback, settings):
    listener = TermTableBuilder(cluster.client)
    heard = Cluster(listener, cluster.url)
    search = Search(heard, index, encoder(), mode, feedback, settings=SearchSettings(**settings))
    chosen = [text_preference(text)["preference"] for text in TEXTS[:3]]
    assert len(set(chosen)) == 3
    search(TEXTS[3], 5)  # the first one asks once, without ranking, where routing values lead
    listener.named.clear()
    for text, copies in zip(TEXTS, chosen, strict=False):
        search(text, 5)
        if "fusion" not in settings:
            search(text, 5, offset=10)
        told = [one for one in listener.named if one is not None]
        assert set(told) == {copies}
        assert None not in listener.named
        listener.named.clear()
    search.run([Query(text, text) for text in TEXTS[:3]], 5)
    assert set(listener.named) == set(chosen)
