from __future__ import annotations

import math

import pytest

from hybridr.attainable import idf_sum, lucene_idf


def vectors_of(**document_frequencies: int) -> dict[str, object]:
    terms = {term: {"term_freq": 2, "doc_freq": n} for term, n in document_frequencies.items()}
    return {"text": {"terms": terms, "field_statistics": {"doc_count": 10}}}


def test_the_sum_by_hand() -> None:
    expected = math.log(1 + 8.5 / 2.5) + math.log(1 + 5.5 / 5.5)
    assert idf_sum(vectors_of(rare=2, common=5, unknown=0), "text") == pytest.approx(expected)
    assert idf_sum({}, "text") == 0


def test_only_the_ten_rarest_terms_of_a_long_query_count() -> None:
    rare, common = {f"r{i}": 1 for i in range(10)}, {f"c{i}": 9 for i in range(30)}
    assert idf_sum(vectors_of(**rare, **common), "text") == pytest.approx(10 * lucene_idf(10, 1))
