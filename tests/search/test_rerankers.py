"""The family of re-rankers: one new file, and a search may be ordered anew."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hybridr.cluster.record import IndexInfo
from hybridr.errors import SettingsError
from hybridr.families import member_names
from hybridr.records import Query
from hybridr.search import rerankers
from hybridr.search.rerankers import FAMILY
from hybridr.search.search import Reordering, Search
from hybridr.search.settings import SearchSettings
from support.members import one_more

SHORTEST = '''
from hybridr.search.rerankers import Reranker


class Shortest(Reranker):
    """The shorter the text, the better."""

    name = "throwaway"

    def __init__(self, behind, own):
        pass

    needs_texts = True
    reach = 20

    def rescored(self, lists):
        return [self.one(each.hits, each.contents) for each in lists]

    def one(self, hits, texts):
        long = {doc: float(len(text)) for doc, text in texts.items()}
        best = sorted(hits, key=lambda hit: long[hit.doc_id])
        return [hit._replace(score=-long[hit.doc_id], rank=rank) for rank, hit in enumerate(best, 1)]
'''
TEXTS = {"a": "a sea of words", "b": "sea", "c": "the sea"}


class OneAnswer:
    """A cluster whose answer is always the same; keeps what it was asked."""

    version = (3, 6, 0)

    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []

    def search(self, index: str, body: dict[str, Any], params: Any = None, **_: Any) -> dict[str, Any]:
        self.bodies.append(body)
        hits = [
            {"_id": doc, "_score": 1.0, "_source": {"text": text}, "highlight": {"text": ["<em>sea</em>"]}}
            | {"_seq_no": 1, "_primary_term": 1, "_version": 1}
            for doc, text in TEXTS.items()
        ]
        return {"hits": {"hits": hits}}

    def msearch(self, index: str, bodies: list[dict[str, Any]], texts: Any = ()) -> list[dict[str, Any]]:
        return [self.search(index, body) for body in bodies]


@pytest.fixture
def shortest(tmp_path: Path) -> Iterator[None]:
    with one_more(rerankers, "throwaway", SHORTEST, tmp_path):
        yield


@pytest.fixture
def search(monkeypatch: pytest.MonkeyPatch) -> Search:
    monkeypatch.setattr(Reordering, "scales", lambda self, queries: [1.0] * len(queries))
    info = IndexInfo("docs", {"index.uuid": "1"}, {"properties": {"text": {"type": "text"}}}, {})
    settings = SearchSettings(lexical_fields=("text",), depth=20)
    return Search(OneAnswer(), info, mode="lexical", settings=settings)  # type: ignore[arg-type]


def test_a_new_file_orders_the_best_hits_anew(shortest: None, search: Search) -> None:
    assert "throwaway" in member_names(FAMILY)
    again = search.reranked("throwaway")
    assert [hit.doc_id for hit in search("sea", 2)] == ["a", "b", "c"]
    assert [(hit.doc_id, hit.rank) for hit in again("sea", 2)] == [("b", 1), ("c", 2)]
    assert [hit.doc_id for hit in again("sea", 2, offset=1)] == ["c", "a"]
    bodies = search.cluster.bodies  # type: ignore[attr-defined]
    assert [body["size"] for body in bodies[-2:]] == [20, 3], "all candidates, then their whole texts"
    assert list(again.run([Query("q", "sea")], 1)["q"]) == ["b"]


def test_no_one_request_ranks_so(shortest: None, search: Search) -> None:
    with pytest.raises(SettingsError, match="one request cannot"):
        search.reranked("throwaway").request("sea")
    assert search.request("sea")["query"] == {"match": {"text": {"query": "sea"}}}


def test_an_unknown_one_is_refused(search: Search) -> None:
    with pytest.raises(SettingsError, match="no search.rerankers 'longest'"):
        search.reranked("longest")
