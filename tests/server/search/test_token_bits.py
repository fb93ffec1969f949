"""Token bits as a part of a search on a real node: the score is that of our arithmetic."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from hybridr import ReindexSettings, Search, SearchSettings
from hybridr.cluster.connection import Cluster
from hybridr.cluster.record import BITS_FIELD
from hybridr.cluster.token_field import stored_bytes
from hybridr.errors import SettingsError
from hybridr.indexing.reindexing import reindex
from support.bits import asked_bits, late_interaction
from support.corpus import drop_indices, fill_index, put, reindexed, text_number
from support.hashing import HashingEncoder

TEXT = text_number(5)
ODD = {
    "one": "anchor",
    "empty": "",
    "emoji": "\U0001f469\u200d\U0001f467 anchor \U0001f469\u200d\U0001f467",
    "invisible": "\u200b\u200b",
    "long": "anchor " + " ".join(f"w{number}" for number in range(600)) + " " + TEXT,
}
WITH_BITS = SearchSettings(signals=("token_bits",), depth=100)


@pytest.fixture(scope="module", params=[1, 3])
def search(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[Search]:
    name = f"t-bits-{request.param}"
    fill_index(cluster, name, 60, settings={"number_of_replicas": 0, "number_of_shards": request.param})
    put(cluster, name, {doc: {"text": text} for doc, text in ODD.items()})
    reindex(cluster, name, HashingEncoder(), ReindexSettings(token_bits=True, fields=("text",)))
    yield Search(cluster, name, HashingEncoder(), settings=WITH_BITS)
    drop_indices(cluster, f"{name}*")


def expected_part(search: Search, text: str, held: dict[str, bytes]) -> dict[str, float]:
    query, weights, factor = asked_bits(search, text)
    width = HashingEncoder.width
    kept = {doc: np.frombuffer(bits, np.uint8).reshape(-1, 8) for doc, bits in held.items()}
    return {doc: factor * late_interaction(query, weights, one, width) for doc, one in kept.items()}


@pytest.mark.parametrize("text", [TEXT, "anchor", f"anchor {ODD['emoji']}", " ".join([TEXT] * 9)])
def test_the_part_of_each_hit_is_ours(cluster, search, text):
    hits = search(text, 40, explain=True)
    expected = expected_part(
        search, text, stored_bytes(cluster, search.info.name, [hit.doc_id for hit in hits])
    )
    for hit in hits:
        assert hit.parts["token_bits"] == pytest.approx(expected.get(hit.doc_id, 0.0), abs=1e-4)
        assert hit.score == pytest.approx(sum(hit.parts.values()), abs=1e-4)
    assert {hit.doc_id for hit in hits} & {"one", "emoji", "long"}


def test_hits_bring_no_bits_along_and_other_searches_do_without(cluster, search):
    body = search.request(TEXT)
    assert BITS_FIELD in str(body["rescore"])
    assert not any(
        BITS_FIELD in hit["_source"] for hit in cluster.search(search.info.name, body)["hits"]["hits"]
    )
    plain = Search(cluster, search.info.name, HashingEncoder())
    assert BITS_FIELD not in str(plain.request(TEXT))
    assert plain(TEXT)[0].doc_id in ("d5", "long")


def test_an_index_without_bits_says_how_it_gets_them(cluster, index_name):
    reindexed(cluster, index_name, 5)
    with pytest.raises(SettingsError, match=f"reindex {index_name} --token-bits"):
        Search(cluster, index_name, HashingEncoder(), settings=WITH_BITS)
