"""What a record of an index with vectors has room for, without a cluster."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from hybridr.cluster import writing
from hybridr.cluster.record import Record
from hybridr.cluster.writing import accepted_ids, cut_to_room, refused_ids


def test_long_ids_of_refused_documents_do_not_fill_the_state_of_the_cluster() -> None:
    """A thousand ids of 512 bytes, twice, were a megabyte in the mapping of each index."""
    long = [f"{number:0512}" for number in range(1000)]
    assert cut_to_room(reversed(long)) == tuple(long[:31])
    assert sum(map(len, cut_to_room(long))) <= 16_000
    short = [f"d{number:04}" for number in range(2000)]
    assert cut_to_room(short) == tuple(short[:1000])


@pytest.mark.parametrize(
    ("count", "width", "whole"), [(3, 4, True), (999, 8, True), (1000, 8, False), (31, 512, False)]
)
def test_accepted_documents_that_had_no_room_are_all_that_were_refused(monkeypatch, count, width, whole):
    accepted = tuple(f"{number:0{width}}" for number in range(count))
    info: Any = SimpleNamespace(name="docs-hybridr-1", record=Record(accepted=accepted))
    monkeypatch.setattr(writing, "refused_ids", lambda info: [*accepted, "another"])
    assert accepted_ids(info) == {*accepted, *(() if whole else ("another",))}


@pytest.mark.parametrize(
    ("state", "rejected", "refused"),
    [("complete", 1, ["d1"]), ("filling", 1, ["d1", "d3"]), ("complete", 2, ["d1", "d3"])],
    ids=["the-record-names-all", "a-fill-that-was-killed", "the-record-had-no-room"],
)
def test_a_file_that_another_machine_has_outdated_counts_only_where_the_record_says_less(
    monkeypatch: pytest.MonkeyPatch, state: Any, rejected: int, refused: list[str]
) -> None:
    monkeypatch.setattr(writing, "rejects_of", lambda *_: SimpleNamespace(ids=lambda: ["d3"]))
    info: Any = SimpleNamespace(
        name="docs-hybridr-1", uuid="u", record=Record(state=state, rejected=rejected, refused=("d1",))
    )
    assert refused_ids(info) == refused
