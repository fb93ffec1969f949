"""What a cluster says of the terms of a text is read, or is no answer of OpenSearch."""

from __future__ import annotations

from typing import Any

import pytest

from hybridr.cluster.connection import connect
from hybridr.errors import ClusterError
from hybridr.vocabulary.terms import term_vectors
from support.hostile_cluster import ROOT, Given, hostile


@pytest.mark.attack(63)
@pytest.mark.parametrize(
    "vectors",
    [
        5,
        {"text": 5},
        {"text": {}},
        {"text": {"terms": 5}},
        {"text": {"terms": {"a": 5}}},
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
