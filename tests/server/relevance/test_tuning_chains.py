"""`hybridr tune` puts a re-ranker behind searches, and switches token bits on, where judged queries gain."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from string import ascii_lowercase

import pytest

from hybridr import ReindexSettings, Search, SearchSettings
from hybridr.cluster.connection import Cluster
from hybridr.cluster.destinations import resolve
from hybridr.files.formats import write_beir
from hybridr.indexing.reindexing import reindex
from hybridr.records import Document, Query
from hybridr.relevance.tuning import reset_tuning, tune
from hybridr.search import rerankers
from support.corpus import fill_index, put
from support.hashing import HashingEncoder
from support.members import one_more

COUNT = 40
SPELLS = '''
from pathlib import Path

from pydantic import Field

from hybridr.search.rerankers import add_scores
from hybridr.search.rerankers import Reranker
from hybridr.settings import Stage


class SpellingSettings(Stage):
    """How much spelling counts."""

    table = "search.rerank_settings"
    strength: float = Field(0.1, gt=0)
    first: int = Field(5, ge=1)


class Spelling(Reranker):
    """Knows the plural."""

    name = "throwaway"
    needs_texts = True
    tuned_by = "strength", "first"
    own_settings = SpellingSettings

    def __init__(self, behind, own):
        self.own, self.reach = own, own.first

    def rescored(self, lists):
        return [
            add_scores(
                one,
                self.name,
                [float(one.query[:-1] in one.contents[hit.doc_id]) for hit in one.hits[: self.reach]],
                self.own.strength,
            )
            for one in lists
        ]
'''


def misspelt(
    cluster: Cluster, index: str, settings: ReindexSettings
) -> tuple[list[Document], list[Query], dict[str, dict[str, int]]]:
    """Make an index in which each query misspells the word of one document: neither its words nor its vector
    find that."""
    drawn = random.Random(3)
    own = ["".join(drawn.choices(ascii_lowercase, k=10)) for _ in range(COUNT)]
    documents = [Document(f"d{number}", f"anchor {word} candle") for number, word in enumerate(own)]
    fill_index(cluster, index, 1)
    put(cluster, index, {doc.doc_id: {"text": doc.text} for doc in documents})
    reindex(cluster, index, HashingEncoder(), settings)
    queries = [Query(f"q{number}", f"{word}s") for number, word in enumerate(own)]
    return documents, queries, {f"q{number}": {f"d{number}": 1} for number in range(COUNT)}


@pytest.fixture
def judged(cluster: Cluster, index_name: str, tmp_path: Path) -> Iterator[list[Query]]:
    documents, queries, qrels = misspelt(cluster, index_name, ReindexSettings(fields=("text",)))
    write_beir(tmp_path / "beir", documents, queries, qrels)
    with one_more(rerankers, "throwaway", SPELLS, tmp_path):
        yield queries


def right(search: Search, queries: list[Query]) -> int:
    """Count the queries whose document comes first."""
    return sum(search(query.text)[0].doc_id == f"d{query.query_id[1:]}" for query in queries)


def test_a_chain_that_gains_is_kept_and_taken_back(cluster, index_name, judged, tmp_path, monkeypatch, cli):
    encoder = HashingEncoder()
    monkeypatch.setattr("hybridr.relevance.tuning.encoder_for", lambda *_, **__: encoder)
    before = Search(cluster, index_name, encoder)
    command = ["tune", index_name, "--url", cluster.url, "--beir", str(tmp_path / "beir")]
    said = cli.typed([*command, "--rerank", "throwaway"]).out
    assert "re-ranking: throwaway of" in said
    assert "undo: hybridr tune" in said
    kept = resolve(cluster, index_name).record
    assert kept.tuning.chain["rerank"] == ["throwaway"]

    tuned = Search(cluster, index_name, encoder)
    assert tuned.remarks == []
    assert right(tuned, judged) == COUNT > right(before, judged)
    assert tuned.body("anchor"), "one request goes without"
    assert tuned.reranked_by == []
    assert Search(cluster, index_name, encoder, mode="lexical").reordering.members == ()
    for asked in (
        SearchSettings(rerank="none"),
        SearchSettings(tuned=False),
        SearchSettings(fusion="absolute"),
    ):
        assert Search(cluster, index_name, encoder, settings=asked).reordering.members == ()

    monkeypatch.setattr("hybridr.search.rerankers.throwaway.Spelling.obstacle", lambda _: "it is lost")
    lacking = Search(cluster, index_name, encoder)
    assert "left out: 'throwaway' cannot order hits here: it is lost" in lacking.remarks[-1]
    plain = Search(cluster, index_name, encoder, settings=SearchSettings(rerank="none"))
    for query in judged:
        assert [hit.doc_id for hit in lacking(query.text)] == [hit.doc_id for hit in plain(query.text)]

    reset_tuning(cluster, index_name)
    assert resolve(cluster, index_name).record.tuning is None


def test_a_chain_that_does_not_gain_stays_off(cluster, index_name, judged, tmp_path, monkeypatch, cli):
    monkeypatch.setattr("hybridr.relevance.tuning.encoder_for", lambda *_, **__: HashingEncoder())
    monkeypatch.setattr("hybridr.search.rerankers.throwaway.add_scores", lambda one, *_: list(one.hits))
    command = ["tune", index_name, "--url", cluster.url, "--beir", str(tmp_path / "beir"), "--json"]
    found = cli.typed([*command, "--rerank", "throwaway"]).json
    assert found["chain"]["applied"] is False
    assert resolve(cluster, index_name).record.tuning.chain is None  # type: ignore[union-attr]


def test_judged_queries_switch_bits_on(cluster, index_name, monkeypatch):
    _, queries, qrels = misspelt(cluster, index_name, ReindexSettings(token_bits=True, fields=("text",)))
    monkeypatch.setattr("hybridr.relevance.tuning.encoder_for", lambda *_, **__: HashingEncoder())
    assert "token_bits" not in Search(cluster, index_name, HashingEncoder()).signals.members
    found = tune(cluster, index_name, (queries, qrels))
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
