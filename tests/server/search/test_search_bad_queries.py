"""Queries and options that make no sense: a clear message, before the cluster is asked where possible."""

from __future__ import annotations

import pytest

from hybridr import Search
from hybridr.cluster.connection import Cluster
from hybridr.errors import ClusterError, DataError, SettingsError
from support.corpus import filled_and_reindexed, text_number
from support.hashing import HashingEncoder

MODES = ("lexical", "dense", "hybrid")


@pytest.fixture(scope="module")
def books(cluster: Cluster):
    with filled_and_reindexed(cluster, "t-bad-queries", 20, HashingEncoder()) as name:
        yield name


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("text", ["", "  \n", "\x00\x07\u200b"])
def test_a_query_without_a_visible_character_is_refused(cluster, books, mode, text):
    with pytest.raises(DataError, match="the query is empty"):
        Search(cluster, books, HashingEncoder(), mode)(text)


@pytest.mark.parametrize("mode", MODES)
def test_control_characters_and_long_words_are_searched(cluster, books, mode):
    search = Search(cluster, books, HashingEncoder(), mode)
    odd = text_number(7) + ' "}]} \x00\x1b\x7f\r\n\u2028 飛 {"match_all":{}}'
    assert "d7" in [hit.doc_id for hit in search(odd, 20)]
    assert len(search("x" * 100_000)) == (0 if mode == "lexical" else 10)

    # K is 1 to 10 000.
    assert len(search(text_number(7), 10_000)) <= 20
    for k in (0, -1, 10_001):
        with pytest.raises(SettingsError, match=r"k is 1 to 10,000"):
            search("anchor", k)

    # More words than the cluster takes are told.
    with pytest.raises(ClusterError, match="maxClauseCount") as refused:
        Search(cluster, books, HashingEncoder(), mode)("word " * 20_000)
    assert "too many words" in (refused.value.hint or "")
