"""What `hybridr status` prints of an index's history."""

from __future__ import annotations

from hybridr_cli.commands.status import in_words


def test_an_event_is_told_in_words() -> None:
    tuned = {"search": {"fusion": "absolute", "retrievers": {"dense": 1.2}}, "pipeline": None, "queries": 25}
    assert in_words(tuned) == "search (fusion absolute, retrievers (dense 1.2)), queries 25"
