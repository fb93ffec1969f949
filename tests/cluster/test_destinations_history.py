"""What the history in a record keeps, without a cluster."""

from __future__ import annotations

import pytest

from hybridr.cluster.destinations import MAX_EVENTS, event_change
from hybridr.cluster.record import Record


def events_of(record: Record) -> list[str]:
    return [event["event"] for event in record.history]


@pytest.mark.parametrize("moves", [["switched"], ["switched", "rolled back"]])
def test_the_newest_move_of_the_alias_stays_in_a_full_history(moves: list[str]) -> None:
    """Without it an index that clients searched would be one that nobody ever did."""
    record = Record()
    for event in ["filled", *moves, *["tuned"] * (2 * MAX_EVENTS)]:
        record = event_change(event, {})(record)  # type: ignore[arg-type]
    assert events_of(record) == [moves[-1], *["tuned"] * (MAX_EVENTS - 1)]


def test_of_a_history_without_a_move_the_last_events_stay() -> None:
    record = Record()
    for number in range(MAX_EVENTS + 5):
        record = event_change("tuned", {"number": number})(record)
    assert [event["number"] for event in record.history] == list(range(5, MAX_EVENTS + 5))
