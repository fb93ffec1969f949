"""What this machine remembers: several may write at once, and only the last indices are kept."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from hybridr.errors import DataError, SettingsError
from hybridr.files.local import state_folder, write_json
from hybridr.files.remembered import (
    ENCODERS,
    IRREPLACEABLE,
    MAX_INDICES,
    REGISTER,
    REJECTS,
    SCALES,
    SPREADS,
    delete_texts,
    file_of_index,
    forget_encoder,
    known_encoder_folder,
    known_scales,
    local_texts,
    read_state_file,
    remember_encoder,
    remember_scales,
    remember_spread,
    remember_text,
)


def test_what_several_remember_at_once_all_stays() -> None:
    """Each reads the file, changes it and writes it: without a lock the later would undo the earlier."""
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: remember_spread(f"key {number}", float(number)), range(64)))
    assert {f"key {number}" for number in range(64)} <= read_state_file(SPREADS).keys()


def test_the_scales_of_the_last_indices_are_kept() -> None:
    for number in range(MAX_INDICES + 3):
        remember_scales(f"index {number}", {"shape": float(number)})
    remember_scales("index 5", {"shape": 0.5})
    assert len(read_state_file(SCALES)) == MAX_INDICES
    assert known_scales("index 5") == {"shape": 0.5}
    assert known_scales("index 2") == known_scales("index 0") == {}, "the oldest go"
    assert known_scales(f"index {MAX_INDICES + 2}") == {"shape": MAX_INDICES + 2.0}


def test_an_equal_value_makes_its_index_the_newest_again() -> None:
    for number in range(MAX_INDICES):
        remember_scales(f"index {number}", {"shape": 1.0})
    remember_scales("index 0", {"shape": 1.0})
    remember_scales("another index", {"shape": 1.0})
    assert known_scales("index 0") == {"shape": 1.0}
    assert known_scales("index 1") == {}, "the oldest is left out"


def test_entries_that_hybridr_did_not_write_are_passed_over(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("HYBRIDR_HOME", str(tmp_path))
    write_json(state_folder() / REGISTER, {str(tmp_path): 3, str(tmp_path / "state"): {"index": 5}})
    write_json(state_folder() / ENCODERS, {"a": 3})
    assert [text.path for text in local_texts()] == [tmp_path / "state"]
    assert local_texts("docs") == []
    assert known_encoder_folder("a") is None


@pytest.mark.parametrize("damage", ['{"/tmp/tokens": {"kind": "tok', "[]"])
def test_a_damaged_file_is_named_where_nothing_else_knows_what_it_said(tmp_path, monkeypatch, damage):
    monkeypatch.setenv("HYBRIDR_HOME", str(tmp_path))
    for file in (*IRREPLACEABLE, SCALES):
        write_json(state_folder() / file, {})
        (state_folder() / file).write_text(damage)
    file_of_index(REJECTS, "docs", "u1").parent.mkdir()
    rejects = file_of_index(REJECTS, "docs", "u1")
    rejects.write_text("{}")
    for ask in (
        local_texts,
        lambda: remember_text(tmp_path, "x"),
        lambda: known_encoder_folder("a"),
        lambda: read_state_file(REGISTER),
    ):
        with pytest.raises(DataError, match="cannot be read; it lists the") as caught:
            ask()
        assert "move it away" in str(caught.value.hint)
    with pytest.raises(DataError, match="encoders.json"):
        remember_encoder("a", tmp_path)
    assert {(state_folder() / file).read_text() for file in IRREPLACEABLE} == {damage}, "not written over"
    forget_encoder("a")
    remember_scales("docs", {"shape": 1.0})  # measured again
    assert [text.path for text in delete_texts(local_texts("docs"))] == [rejects]


def test_files_of_several_indices_of_one_name_are_not_deleted_unasked(tmp_path, monkeypatch):
    monkeypatch.setenv("HYBRIDR_HOME", str(tmp_path))
    files = [file_of_index(REJECTS, "docs", uuid) for uuid in ("u1", "u2")]
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("{}")
    with pytest.raises(SettingsError, match="several indices have the same name.*docs#u1, docs#u2"):
        delete_texts(local_texts("docs"))
    assert all(file.exists() for file in files)
    assert [text.path for text in delete_texts(local_texts("docs#u1"))] == files[:1]
    files[0].write_text("{}")
    assert len(delete_texts(local_texts("docs"), of_one_name=True)) == 2
