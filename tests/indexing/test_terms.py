"""What a cluster says of the terms of a text is read, or is no answer of OpenSearch."""

from __future__ import annotations

from typing import Any

import pytest

from hybridr import connect
from hybridr.errors import ClusterError
from hybridr.indexing.terms.terms import shared_terms, term_vectors
from support.hostile_cluster import ROOT, Given, hostile


@pytest.mark.attack(63)
@pytest.mark.parametrize(
    "vectors",
    [
        5,
        {"text": 5},
        {"text": {"terms": 5}},
        {"text": {"terms": {"a": {"doc_freq": "x"}}}},
        {"text": {"terms": {}, "field_statistics": {"doc_count": []}}},
        {"text": {"terms": {"a": {"tokens": 5}}}},
        {"text": {"terms": {"a": {"tokens": [{"position": "x"}]}}}},
    ],
)
def test_term_vectors_of_wrong_shape_are_a_cluster_error(vectors: Any) -> None:
    for body in ({"docs": [{"term_vectors": vectors}]}, {"docs": vectors}, {}):
        with hostile({"/": Given(ROOT), "*": Given(body)}) as (url, _), pytest.raises(ClusterError):
            term_vectors(connect(url), "docs", ["text"], [{"_id": "1"}])


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        ("index_not_found_exception", 404),
        ("no_shard_available_action_exception", 503),
        ("node_disconnected_exception", 500),
        ("mapper_parsing_exception", None),
    ],
)
def test_a_shard_that_fails_is_no_text_without_words(kind: str, status: int | None) -> None:
    """Searches would be ranked without their words, and these be remembered for a minute."""
    failed = {"_index": "docs", "error": {"type": kind, "reason": "gone"}}
    answer = {"docs": [{"term_vectors": {}}, failed]}
    with hostile({"/": Given(ROOT), "*": Given(answer)}) as (url, _):
        if status is None:
            assert len(term_vectors(connect(url), "docs", ["text"], [{}, {}])) == 2
            return
        with pytest.raises(ClusterError) as raised:
            term_vectors(connect(url), "docs", ["text"], [{}, {}])
    assert raised.value.status == status


def test_what_one_field_holds_is_not_counted_again() -> None:
    """Of one text all fields have all terms; a count is a search of its own."""
    title = {"both": {"doc_freq": 1}, "text": {}, "none": {}, "late": {}}
    text = {"both": {"doc_freq": 2}, "text": {"doc_freq": 3}, "none": {}, "late": {"doc_freq": 1}}
    shards = [
        {"title": {"terms": title}, "text": {"terms": text}},
        {"title": {"terms": {"late": {"doc_freq": 1}}}},
    ]
    fields = ("text", "title")
    assert shared_terms(shards, only_counted=True) == [("both", fields), ("late", fields)]
    assert [term for term, _ in shared_terms(shards, only_counted=False)] == ["both", "text", "none", "late"]
