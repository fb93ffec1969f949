"""Records of an index that somebody else wrote: each is refused, by the name of what is wrong with it."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest

from hybridr.cluster.destinations import has_readable_record
from hybridr.cluster.record import IndexInfo, parse_record
from hybridr.cluster.record_parts import VERSION
from hybridr.errors import DataError
from hybridr.search.settings import SearchSettings, with_tuning
from support import hostile

WHOLE = {"role": "vectors", "source": "docs", "source_uuid": "u", "job": "j", "state": "complete"}
WHOLE |= {"encoder": "0" * 64, "similarity": "ip", "vector_field": "v", "fields": ["text"]}


@pytest.mark.attack(65)
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"dim": "many"}, "holds a wrong 'dim'"),
        ({"role": "king"}, "holds a wrong 'role'"),
        ({"tuning": {"search": 7}}, r"holds a wrong 'tuning\.search'"),
        ({1: 2}, "cannot be read"),
        ({"fields": 5}, "holds a wrong 'fields'"),
        ({"fields": [5]}, r"holds a wrong 'fields\.0'"),
        ({"similarity": "evil"}, "holds a wrong 'similarity'"),
        ({"deployment": []}, "holds a wrong 'deployment'"),
        ({"deployment": {"way": "transparent"}}, r"holds a wrong 'deployment\.pipeline'"),
        ({"synced": {"x": 1}}, r"holds a wrong 'synced\.x"),
        ({"term_table": {"fingerprint": "../x"}}, r"holds a wrong 'term_table\.fingerprint'"),
        ({"term_table": {"fingerprint": "0" * 64 + "\n"}}, r"holds a wrong 'term_table\.fingerprint'"),
        ({"encoder": ""}, "lacks encoder"),
    ],
)
def test_a_record_that_cannot_be_is_refused_by_name(change: dict[str, Any], words: str) -> None:
    with pytest.raises(DataError, match=f"hybridr's record in 'x' {words}"):
        parse_record(WHOLE | change, "hybridr's record in 'x'")


@pytest.mark.attack(65)
@pytest.mark.parametrize(("stamp", "said"), [({"version": 99}, "99"), ({}, "None")])
def test_a_record_of_another_version_is_refused(stamp: dict[str, int], said: str) -> None:
    info = IndexInfo("x", {}, {"_meta": {"hybridr": WHOLE | stamp}}, {})
    with pytest.raises(DataError, match=f"is of version {said}, this hybridr reads 3"):
        assert info.record


@pytest.mark.attack(65)
@pytest.mark.parametrize("shape", hostile.SHAPES, ids=str)
def test_a_record_of_any_shape_is_a_record_or_an_error(shape: str) -> None:
    value = hostile.SHAPES[shape]
    info = IndexInfo("x", {}, {"_meta": {"hybridr": value}}, {})
    if shape == "an object":
        with pytest.raises(DataError, match="is of version"):
            assert info.record
    else:
        with pytest.raises(DataError, match="is .*, not an object"):
            assert info.record


PATHS = ["../x", "..", ".", "/no-such-folder/x", "a/../../b", "..\\x", "a\0b", "a\n"]
PATTERNS = ["*", "_all", "a,b", "a:b", "a?x", "-x", "<x>", "a b"]
NAMES = ("source", "alias", "previous")


@pytest.mark.attack(82)
@pytest.mark.parametrize(
    ("name", "path"), [*product((*NAMES, "source_uuid", "encoder"), PATHS), *product(NAMES, PATTERNS)]
)
def test_no_name_in_a_record_is_a_path_or_a_pattern(name: str, path: str) -> None:
    info = IndexInfo("x", {}, {"_meta": {"hybridr": WHOLE | {name: path, "version": VERSION}}}, {})
    with pytest.raises(DataError, match=f"hybridr's record in 'x' holds a wrong '{name}'"):
        assert info.record
    assert not has_readable_record(info), "nobody's destination"


@pytest.mark.parametrize(
    "name", ["docs", ".hidden", ".ds-logs-000001", "産品", "a=b&c", "Alias", "a'b", "a..b"]
)
def test_every_name_that_an_index_can_have_reads(name: str) -> None:
    record = parse_record(
        WHOLE | {"source": name, "previous": name, "alias": name, "aliases": {name: "made"}}, ""
    )
    assert record.source == record.previous == record.alias == name


@pytest.mark.attack(83)
@pytest.mark.parametrize("part", ["search", "pipeline"])
def test_no_record_names_a_file_of_this_machine(tmp_path: Path, part: str) -> None:
    """A template is read and sent: it is the user's to name."""
    secret = tmp_path / "secret.json"
    found = {"depth": 50, "query_template": str(secret)}
    info = IndexInfo(
        "x", {}, {"_meta": {"hybridr": WHOLE | {"tuning": {part: found}, "version": VERSION}}}, {}
    )
    taken = with_tuning(SearchSettings(), info, part)  # type: ignore[arg-type]
    assert (taken.depth, taken.query_template) == (50, None)
    own = with_tuning(SearchSettings(query_template=secret), info, part)  # type: ignore[arg-type]
    assert own.query_template == secret
