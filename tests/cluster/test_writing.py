from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hybridr.cluster import connection
from hybridr.cluster.connection import Cluster, json_bytes
from hybridr.cluster.writing import (
    Action,
    MemoryRejects,
    Outcome,
    Rejects,
    bulk_action,
    count_item,
    group_by_bytes,
    write,
)
from hybridr.errors import ClusterError, DataError, DownloadError, NotFound, Unreachable


def test_bulk_bodies_are_cut_by_bytes() -> None:
    actions = [Action(str(number), b"x" * 40) for number in range(5)] + [Action("big", b"y" * 500)]
    assert [len(group) for group in group_by_bytes(actions, 100)] == [2, 2, 1, 1]
    assert json.loads(json_bytes({"n": 2**70, "s": "\ud800"})) == {"n": 2**70, "s": "\ud800"}


@pytest.mark.attack(76)
def test_a_full_disk_of_a_node_is_nobody_s_bad_document() -> None:
    error = {"type": "i_o_exception", "reason": "No space left on device"}
    outcome, rejects = Outcome(), MemoryRejects()
    with pytest.raises(ClusterError, match="cannot store documents: No space left"):
        count_item(outcome, rejects, Action("a", b"{}\n{}\n"), 500, error)
    assert outcome.rejected == 0
    count_item(outcome, rejects, Action("a", b"{}\n{}\n"), 400, {"reason": "No space left for that shape"})
    assert outcome.rejected == 1


@pytest.mark.attack(76)
def test_a_full_disk_here_is_said_with_what_was_refused(monkeypatch, tmp_path):
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    rejects = Rejects(tmp_path / "full-here.jsonl")
    monkeypatch.setattr("pathlib.Path.touch", full)
    with pytest.raises(DataError, match=r"full-here.jsonl.* cannot be written: No space left") as caught:
        rejects.add(Action("a7", b"{}\n{}\n"), "not a number\x1b")
    assert str(caught.value.hint).startswith("free space or make the file writable")
    assert str(caught.value.hint).endswith("'a7' was refused because of: not a number\\u001b")


@pytest.mark.parametrize(
    "torn", [b'{"_id": "b", "rea', b"\0\0\0\0", b'{"reason": "no id"}', b"[1]", b'{"_id": 3}', b"\xff\xfe{"]
)
def test_half_a_line_of_a_killed_writer_breaks_no_later_run(tmp_path: Path, torn: bytes) -> None:
    file = tmp_path / "rejects.jsonl"
    Rejects(file).add(Action("a", b"{}\n{}\n"), "reason")
    with file.open("ab") as lines:
        lines.write(torn)
    assert Rejects(file).ids() == ["a"]
    later = Rejects(file)
    later.add(Action("c", b"{}\n{}\n"), "reason")
    assert later.ids() == Rejects(file).ids() == ["a", "c"]


def test_where_nothing_may_be_written_nothing_has_to_be_deleted(monkeypatch, tmp_path):
    """A read-only disk refuses to delete even what is not there."""

    def read_only(*_: object, **__: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr("pathlib.Path.unlink", read_only)
    rejects = Rejects(tmp_path / "rejects.jsonl")
    rejects.clear()
    rejects.save()
    rejects.add(Action("a", b"{}\n{}\n"), "reason")
    with pytest.raises(DownloadError, match="cannot write"):
        rejects.delete()


def test_an_index_that_is_gone_is_no_success_and_a_missing_document_is_deleted() -> None:
    outcome, rejects = Outcome(), MemoryRejects()
    gone = {"type": "index_not_found_exception", "reason": "no such index [docs-hybridr-1]"}
    with pytest.raises(NotFound, match="no such index"):
        count_item(outcome, rejects, Action("a", b"{}\n{}\n"), 404, gone)
    assert outcome == Outcome()
    assert count_item(outcome, rejects, Action("a", b"{}\n"), 404, None) == []
    assert outcome == Outcome(written=1)


class Busy:
    """A client whose index takes one document of each request, once it has refused them all."""

    name = "busy"

    def __init__(self, refusals: int) -> None:
        self.refusals, self.sent = refusals, list[int]()

    def send(self, method: str, path: str, body: bytes, *_: Any) -> Any:
        self.sent.append(body.count(b"_id"))
        taken = int(len(self.sent) > self.refusals)
        statuses = [201] * taken + [429] * (self.sent[-1] - taken)
        return {"items": [{"index": {"status": status}} for status in statuses]}


def test_busy_items_are_sent_again_and_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "RETRY_WAIT_S", (0.001, 0.001))
    actions, client = [bulk_action("index", name, {}) for name in "abc"], Busy(refusals=2)
    done = write(Cluster(client, "http://x"), "docs", actions, rejects=MemoryRejects(), patience_s=5)
    assert (done.written, client.sent) == (3, [3, 3, 3, 2, 1])
    with pytest.raises(Unreachable, match="'docs' was too busy for 3 documents for 0 s"):
        write(Cluster(Busy(9), "http://x"), "docs", actions, rejects=MemoryRejects(), patience_s=0)
