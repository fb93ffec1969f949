from __future__ import annotations

from typing import Any

import pytest

from hybridr.cluster.connection import Cluster
from hybridr.vocabulary.terms import IdfSums

pytestmark = pytest.mark.node


def test_idf_sums_are_remembered(cluster: Cluster, searchable: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    sums = IdfSums(cluster, "t-searchable-hybridr", ["text"])
    first = sums.of(["anchor ladder", "anchor", "anchor anchor", ""])
    assert first[1] == first[2] > 0 == first[3]
    assert first[0] > first[1]
    monkeypatch.setattr(Cluster, "request", None)
    assert sums.of(["anchor", "anchor ladder"]) == [first[1], first[0]]
