"""Hits are those of an answer of `_search`, or there are none."""

from __future__ import annotations

from typing import Any

import pytest

from hybridr.errors import ClusterError
from hybridr.search.hits import checked_hits


@pytest.mark.attack(63)
@pytest.mark.parametrize(
    "answer", [{}, {"hits": {"hits": [{"_id": "1"}]}}, {"hits": {"hits": []}, "_shards": 5}]
)
def test_hits_of_wrong_shape_are_a_cluster_error(answer: dict[str, Any]) -> None:
    with pytest.raises(ClusterError):
        checked_hits(answer)
