"""A fusion that is one new file, on a real node: searched with, and evaluated as a system."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from hybridr import LoadSettings, Search, SearchSettings, load_encoder
from hybridr.cluster.loading import load
from hybridr.errors import SettingsError
from hybridr.evaluation.evaluation import JudgedQueries
from hybridr.files.formats import write_beir
from hybridr.indexing.reindexing import reindex
from hybridr.records import Document, Query
from hybridr.search import fusions
from hybridr.search.context import without_tokens
from hybridr.search.systems import Compared, evaluate_index
from support.members import FUSION, one_more

WORDS = "anchor basket candle desert engine forest garden harbor island jacket".split()
TEXT = "anchor garden n7"


@pytest.fixture
def maximum(tmp_path: Path) -> Iterator[None]:
    with one_more(fusions, "throwaway", FUSION, tmp_path):
        yield


@pytest.fixture
def beir(tmp_path: Path) -> Path:
    """Write a folder of forty documents and one judged query."""
    texts = [" ".join([WORDS[n % 10], WORDS[n % 7], WORDS[n % 4], f"n{n}"]) for n in range(40)]
    documents = [Document(f"d{n}", text) for n, text in enumerate(texts)]
    write_beir(tmp_path / "beir", documents, [Query("q", TEXT)], {"q": {"d7": 1}})
    return tmp_path / "beir"


def test_one_new_file_ranks(cluster, index_name, maximum, beir, minilm):
    load(cluster, beir, LoadSettings(index=index_name))
    reindex(cluster, index_name, minilm)
    encoder, settings = load_encoder(minilm), SearchSettings(fusion="throwaway", depth=20)
    search = Search(cluster, index_name, encoder, settings=settings)
    query = [Query("q", TEXT)]
    lexical, dense = (search.using(mode).run(query, 40)["q"] for mode in ("lexical", "dense"))
    hits = search(TEXT, 5)
    assert [hit.rank for hit in hits] == [1, 2, 3, 4, 5]
    assert "<em>anchor</em>" in hits[0].text
    for hit in hits:
        wanted = max(lexical.get(hit.doc_id, 0.0), 5 * dense[hit.doc_id])
        assert hit.score == pytest.approx(wanted, abs=1e-4)
        assert (hit.scores["lexical"] or 0.0) == pytest.approx(lexical.get(hit.doc_id, 0.0), abs=1e-4)
    assert list(search.run(query, 5)["q"]) == [hit.doc_id for hit in hits]
    assert [hit.doc_id for hit in search(TEXT, 2, offset=2)] == [hit.doc_id for hit in hits[2:4]]
    vector = encoder.encode_queries([TEXT])[0]
    assert search(TEXT, 5, reading=without_tokens(vector)) == hits
    with pytest.raises(SettingsError, match="one request cannot"):
        search.request(TEXT)
    compared = Compared(("bm25", "hybrid-throwaway"), measures=["nDCG@10"])
    found = evaluate_index(cluster, index_name, JudgedQueries(beir), compared, encoder=minilm)
    assert list(found.runs["hybrid-throwaway"]["q"])[:5] == [hit.doc_id for hit in hits]
