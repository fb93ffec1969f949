"""`hybridr tune` switches token bits on where judged queries gain by them, and searches follow."""

from __future__ import annotations

import random
from string import ascii_lowercase

import pytest

from hybridr import ReindexSettings, Search, SearchSettings
from hybridr.cluster.connection import Cluster
from hybridr.cluster.destinations import resolve
from hybridr.indexing.reindexing import reindex
from hybridr.records import Query
from hybridr.relevance.tuning import tune
from support.corpus import bulk, fill_index
from support.hashing import HashingEncoder

pytestmark = pytest.mark.node
COUNT = 40


def test_judged_queries_switch_bits_on(
    cluster: Cluster, index_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each query is a misspelt word of one document: neither its words nor its vector find that."""
    drawn = random.Random(3)
    own = ["".join(drawn.choices(ascii_lowercase, k=10)) for _ in range(COUNT)]
    fill_index(cluster, index_name, 1)
    lines = [
        line
        for number, word in enumerate(own)
        for line in ({"index": {"_id": f"d{number}"}}, {"text": f"anchor {word} candle"})
    ]
    bulk(cluster, index_name, lines)
    reindex(cluster, index_name, HashingEncoder(), ReindexSettings(token_bits=True, fields=("text",)))
    queries = [Query(f"q{number}", f"{word}s") for number, word in enumerate(own)]
    qrels = {f"q{number}": {f"d{number}": 1} for number in range(COUNT)}
    monkeypatch.setattr("hybridr.relevance.tuning.encoder_for", lambda *_, **__: HashingEncoder())
    assert "token_bits" not in Search(cluster, index_name, HashingEncoder()).signals.members
    found = tune(cluster, index_name, (queries, qrels))
    assert found.choice is not None
    assert found.choice.applied
    assert found.choice.low > 0.3
    assert "token_bits" in resolve(cluster, index_name).record.tuning.search["signals"]  # type: ignore[index, union-attr]
    search = Search(cluster, index_name, HashingEncoder())
    assert "token_bits" in search.signals.members
    assert [hits[0].doc_id for hits in map(search, (query.text for query in queries[:5]))] == [
        f"d{number}" for number in range(5)
    ]
    plain = Search(cluster, index_name, HashingEncoder(), settings=SearchSettings(tuned=False))
    assert "token_bits" not in plain.signals.members
