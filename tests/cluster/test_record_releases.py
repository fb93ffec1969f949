"""Records between releases: what 0.1.0 wrote reads; what it cannot read of ours it says in a line."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from typing import Any

import pytest

from hybridr.cluster.record import Record, checked
from hybridr.cluster.record_parts import VERSION, Deployment, FittedTable, Load, Part, Tuned
from hybridr.errors import DataError
from support.places import GOLDEN

FOLDER = GOLDEN / "records"
WRITTEN: dict[str, Any] = json.loads((FOLDER / "written_by_9d8aa5a.json").read_text(encoding="utf-8"))
WHOLE = {**WRITTEN["notes"], **WRITTEN["loaded"], **WRITTEN["library-hybridr-1"]}
PARTS: dict[str, type[Part]] = {
    "deployment": Deployment,
    "tuning": Tuned,
    "term_table": FittedTable,
    "load": Load,
}
FIELDS = [("", name) for name in Record.model_fields if name != "version"]
FIELDS += [(part, name) for part, kind in PARTS.items() for name in kind.model_fields]
ONE_LINE = f"x is of version {VERSION}, this hybridr reads 1"


@pytest.fixture(scope="module")
def earlier() -> Iterator[Any]:
    """The module of release 0.1.0 that reads records."""
    name = "hybridr.cluster.reader_of_9d8aa5a"
    loader = SourceFileLoader(name, str(FOLDER / "reader_of_9d8aa5a.py.txt"))
    spec = spec_from_loader(name, loader)
    assert spec is not None
    with pytest.MonkeyPatch.context() as patch:
        module = module_from_spec(spec)
        patch.setitem(sys.modules, name, module)
        loader.exec_module(module)
        yield module


@pytest.mark.parametrize("index", WRITTEN)
def test_what_the_last_release_wrote_reads_and_it_reads_what_comes_of_it(index: str, earlier: Any) -> None:
    record = checked(WRITTEN[index], "x")
    assert record.to_json() == WRITTEN[index]
    synced = record.changed(synced={0: 7}, rejected=1, refused=("d1",))
    assert earlier.checked(synced.to_json(), "x").to_json() == synced.to_json()


@pytest.mark.parametrize(("part", "name"), FIELDS)
def test_the_last_release_reads_each_field_or_says_what_to_upgrade(
    part: str, name: str, earlier: Any
) -> None:
    """A new field that fails here says since when records have it: `Since(2)`."""
    kind = PARTS.get(part, Record)
    default = kind.model_fields[name].get_default(call_default_factory=True)
    inner = {name: default, **(WHOLE[part] if part else WHOLE)}
    written = checked({**WHOLE, part: inner} if part else inner, "x").to_json()
    assert name in (written[part] if part else written)
    if written["version"] == 1:
        assert earlier.checked(written, "x").to_json() == written
    else:
        with pytest.raises(DataError, match=ONE_LINE):
            earlier.checked(written, "x")


def test_what_a_newer_release_added_is_kept_where_this_one_may_read_it() -> None:
    newer = {**WHOLE, "version": VERSION, "colour": {"red": 1}}
    newer["deployment"] = {**WHOLE["deployment"], "region": "north"}
    record = checked(newer, "x")
    assert record.to_json() == newer
    changed = record.changed(synced={0: 9}).without("token_bits").to_json()
    assert (changed["colour"], changed["deployment"]["region"]) == ({"red": 1}, "north")
    assert changed["version"] == VERSION


def test_what_this_release_may_not_read_is_told_in_a_line_with_what_to_do() -> None:
    with pytest.raises(DataError, match=f"is of version {VERSION + 1}, this hybridr reads up to") as caught:
        checked({**WHOLE, "version": VERSION + 1}, "x")
    assert "docs/upgrades.md" in str(caught.value.hint)


def test_a_part_of_a_later_version_raises_that_of_the_whole() -> None:
    table = {**WHOLE["term_table"], "own": True}
    assert checked({**WHOLE, "term_table": table}, "x").to_json()["version"] == 2
    assert checked(WHOLE, "x").changed(accepted=("d1",)).to_json()["version"] == 2
