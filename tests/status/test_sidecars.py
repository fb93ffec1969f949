"""The family of sidecars: one new file, and status tells of it, remove takes it away."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hybridr.families import member_names
from hybridr.status import leftovers, sidecars, standing
from hybridr.status.sidecars import FAMILY
from support.members import one_more
from support.places import ROOT

NOTES = '''
from hybridr.status.sidecars import Sidecar


class Notes(Sidecar):
    """A note beside each index."""

    name = "throwaway"
    result_key = "notes"
    label = "note"
    where = ".notes"

    @staticmethod
    def state(cluster, info):
        return {"of": info}

    @staticmethod
    def lines(kept):
        return [f"a note of {kept['of']}"]

    @staticmethod
    def stored_names(cluster, infos):
        return [f"note of {info}" for info in infos]

    drop = stored_names
'''


@pytest.fixture
def notes(tmp_path: Path) -> Iterator[None]:
    with one_more(sidecars, "throwaway", NOTES, tmp_path):
        yield


def test_a_new_file_is_told_of(notes: None) -> None:
    found = {one.label: one for one in leftovers.sidecars()}
    assert set(found) >= {"term_table", "note"}
    held = holding({"note": {"of": "docs"}})
    assert (held.sidecar_lines(), held.to_json()["note"]) == (["a note of docs"], {"of": "docs"})
    assert found["note"].stored_names(None, ["docs"]) == ["note of docs"]  # type: ignore[arg-type, list-item]


def test_without_the_file_nobody_tells_of_it() -> None:
    assert "throwaway" not in member_names(FAMILY)
    assert holding({"note": {"of": "docs"}}).sidecar_lines() == []


@pytest.mark.parametrize("verb", ["status", "remove"])
def test_the_shipped_roles_may_look_where_they_lie(verb: str) -> None:
    role = (ROOT / "opensearch" / "roles" / f"{verb}.json").read_text(encoding="utf-8")
    for one in leftovers.sidecars():
        assert f'"{one.where}"' in role, one.name


def holding(kept: dict[str, Any]) -> standing.IndexStatus:
    words = ("docs-hybridr-1", "complete", [], 3, 3, "float", None, "f", None, None, None, None, [])
    return standing.IndexStatus(*words, sidecar_states=kept)  # type: ignore[arg-type]
