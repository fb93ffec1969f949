"""BM25 and RM3 on a node give the scores of their formulas, document lengths in Lucene's one byte."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest

from hybridr import Query, Search
from hybridr.cluster.connection import Cluster
from hybridr.cluster.loading import load
from hybridr.cluster.settings import LoadSettings
from hybridr.files.formats import write_beir
from hybridr.records import Document
from hybridr.search.feedback import rm3
from rankings import Formula

LENGTHS = [1, 5, 23, 24, 25, 39, 40, 41, 57, 71, 90, 127, 150, 200, 301, 400] * 3
CLOSE = 1e-5  # scores are in single precision


@pytest.fixture(params=[(1.2, 0.75), (0.9, 0.4)], ids=str)
def shelf(
    cluster: Cluster, index_name: str, tmp_path: Path, request: pytest.FixtureRequest
) -> tuple[list[Counter[str]], tuple[float, float]]:
    """Fill an index with words that no analyser changes; give term -> frequency of each document."""
    dice = random.Random(3)
    words = [f"w{number}" for number in range(400)]
    odds = [1 / (number + 1) for number in range(400)]
    texts = [dice.choices(words, odds, k=length) for length in LENGTHS]
    documents = [Document(f"d{number}", " ".join(text)) for number, text in enumerate(texts)]
    write_beir(tmp_path / "shelf", documents, [], {})
    k1, b = request.param
    load(cluster, tmp_path / "shelf", LoadSettings(index=index_name, language="en", k1=k1, b=b))
    return [Counter(text) for text in texts], (k1, b)


def test_bm25_is_the_formula(shelf, cluster, index_name):
    documents, (k1, b) = shelf
    found = Search(cluster, index_name, mode="lexical").run([Query("q", "w30 w9 w40 w40")])["q"]
    scores, exact = (
        Formula(documents, k1, b, in_bytes=in_bytes).scores({"w30": 1, "w9": 1, "w40": 2})
        for in_bytes in (True, False)
    )
    wanted = {f"d{place}": score for place, score in enumerate(scores) if score > 0}
    assert len(wanted) > 10
    assert found == pytest.approx(wanted, rel=CLOSE)
    lost = [abs(score / exact[int(doc_id[1:])] - 1) for doc_id, score in found.items()]
    assert max(lost) > 100 * CLOSE, "with exact lengths the scores are others"


def test_rm3_is_bm25_of_the_weighed_terms(shelf, cluster, index_name):
    documents, (k1, b) = shelf
    formula = Formula(documents, k1, b, in_bytes=True)
    first = formula.scores({"w30": 1, "w9": 1})
    best = [place for place in sorted(range(len(first)), key=lambda place: -first[place]) if first[place] > 0]
    weights = rm3(
        ["w30", "w9"],
        [(documents[place], first[place]) for place in best[:10]],
        Counter(term for document in documents for term in document),
        len(documents),
    )
    assert len(weights) > 5
    second = sum(weight * formula.scores({term: 1}) for term, weight in weights.items())
    wanted = {f"d{place}": score for place, score in enumerate(second) if score > 0}
    found = Search(cluster, index_name, mode="lexical", feedback="rm3").run([Query("q", "w30 w9")])["q"]
    assert found == pytest.approx(wanted, rel=CLOSE)
