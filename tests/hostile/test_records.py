"""Records of an index that somebody else wrote: each is refused, by the name of what is wrong with it."""

from __future__ import annotations

from typing import Any

import pytest

from hybridr.cluster.record import IndexInfo, checked
from hybridr.errors import DataError
from support import hostile

WHOLE = {
    "role": "vectors",
    "source": "docs",
    "source_uuid": "u",
    "job": "j",
    "state": "complete",
    "encoder": "0" * 64,
    "similarity": "ip",
    "vector_field": "v",
    "fields": ["text"],
}


@pytest.mark.attack(65)
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"dim": "many"}, "holds a wrong 'dim'"),
        ({"fields": 5}, "holds a wrong 'fields'"),
        ({"fields": [5]}, r"holds a wrong 'fields\.0'"),
        ({"similarity": "evil"}, "holds a wrong 'similarity'"),
        ({"deployment": []}, "holds a wrong 'deployment'"),
        ({"deployment": {"way": "transparent"}}, r"holds a wrong 'deployment\.pipeline'"),
        ({"synced": {"x": 1}}, r"holds a wrong 'synced\.x"),
        ({"term_table": {"fingerprint": "../x"}}, r"holds a wrong 'term_table\.fingerprint'"),
        ({"own": 1}, "holds an unknown 'own'"),
        ({"version": 99}, "is of version 99, this hybridr reads 1"),
        ({"encoder": ""}, "says nothing of encoder"),
    ],
)
def test_a_record_that_cannot_be_is_refused_by_name(change: dict[str, Any], words: str) -> None:
    with pytest.raises(DataError, match=f"hybridr's record in 'x' {words}"):
        checked(WHOLE | change, "hybridr's record in 'x'")


@pytest.mark.attack(65)
@pytest.mark.parametrize("shape", hostile.SHAPES, ids=str)
def test_a_record_of_any_shape_is_a_record_or_an_error(shape: str) -> None:
    value = hostile.SHAPES[shape]
    info = IndexInfo("x", {}, {"_meta": {"hybridr": value}}, {})
    if shape == "an object":
        with pytest.raises(DataError, match="holds an unknown 'a'"):
            assert info.record
    else:
        with pytest.raises(DataError, match="is no object but"):
            assert info.record
