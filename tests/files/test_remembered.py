"""What this machine remembers: several may write at once, and only the last indices are kept."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from hybridr.files.local import state_folder, write_json
from hybridr.files.remembered import (
    ENCODERS,
    MOST_INDICES,
    REGISTER,
    SCALES,
    SPREADS,
    folder_of,
    known_in,
    remember_scales,
    remember_spread,
    scales_known,
    texts,
)


def test_what_several_remember_at_once_all_stays() -> None:
    """Each reads the file, changes it and writes it: without a lock the later would undo the earlier."""
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: remember_spread(f"key {number}", float(number)), range(64)))
    assert {f"key {number}" for number in range(64)} <= known_in(SPREADS).keys()


def test_the_scales_of_the_last_indices_are_kept() -> None:
    for number in range(MOST_INDICES + 3):
        remember_scales(f"index {number}", {"shape": float(number)})
    remember_scales("index 5", {"shape": 0.5})
    assert len(known_in(SCALES)) == MOST_INDICES
    assert scales_known("index 5") == {"shape": 0.5}
    assert scales_known("index 2") == scales_known("index 0") == {}, "the oldest go"
    assert scales_known(f"index {MOST_INDICES + 2}") == {"shape": MOST_INDICES + 2.0}


def test_entries_that_hybridr_did_not_write_are_passed_over(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("HYBRIDR_HOME", str(tmp_path))
    write_json(state_folder() / REGISTER, {str(tmp_path): 3, str(tmp_path / "state"): {"index": 5}})
    write_json(state_folder() / ENCODERS, {"a": 3})
    assert [text.path for text in texts()] == [tmp_path / "state"]
    assert texts("docs") == []
    assert folder_of("a") is None
