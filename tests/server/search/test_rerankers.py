"""`--rerank mmr` on a real node: deterministic, pages that join, less alike than before."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hybridr import Search, SearchSettings
from hybridr.cluster.connection import Cluster
from hybridr.errors import SettingsError
from hybridr.records import Hit, Query
from support.corpus import text_number

DEPTH, TEXT = 40, text_number(5)


@pytest.fixture(scope="module")
def searches(cluster: Cluster, searchable: Any) -> tuple[Search, Search]:
    name, encoder = searchable
    plain = Search(cluster, name, encoder, settings=SearchSettings(depth=DEPTH))
    settings = SearchSettings(depth=DEPTH, rerank="mmr", rerank_settings={"relevance": 0.5})
    return plain, Search(cluster, name, encoder, settings=settings)


def likeness(search: Search, hits: list[Hit]) -> float:
    """The mean cosine between the documents of hits."""
    vectors = search.encoder.encode_documents([text_number(int(hit.doc_id[1:])) for hit in hits])
    return float((vectors @ vectors.T)[~np.eye(len(hits), dtype=bool)].mean())


def test_the_best_become_less_alike(searches):
    plain, diverse = searches
    before, after = plain(TEXT, 10), diverse(TEXT, 10)
    assert before[0].doc_id == after[0].doc_id
    assert likeness(plain, after) < likeness(plain, before)
    assert {hit.doc_id for hit in diverse(TEXT, DEPTH)} == {hit.doc_id for hit in plain(TEXT, DEPTH)}
    assert list(diverse.run([Query("q", TEXT)], 10)["q"]) == [hit.doc_id for hit in after]


def test_pages_join_also_beyond_the_depth(searches):
    _, diverse = searches
    whole = diverse(TEXT, DEPTH + 20)
    paged = [hit for start in range(0, DEPTH + 20, 12) for hit in diverse(TEXT, 12, offset=start)]
    assert paged[: len(whole)] == whole
    assert [hit.rank for hit in whole] == list(range(1, len(whole) + 1))
    assert len({hit.doc_id for hit in whole}) == len(whole)

    # No one request does it.
    with pytest.raises(SettingsError, match="a re-ranker ranks in this process"):
        searches[1].request(TEXT)
