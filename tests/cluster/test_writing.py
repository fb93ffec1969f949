from __future__ import annotations

import json

from hybridr.cluster.writing import Action, by_bytes, encoded


def test_bulk_bodies_are_cut_by_bytes() -> None:
    actions = [Action(str(number), b"x" * 40) for number in range(5)] + [Action("big", b"y" * 500)]
    assert [len(group) for group in by_bytes(actions, 100)] == [2, 2, 1, 1]
    assert json.loads(encoded({"n": 2**70, "s": "\ud800"})) == {"n": 2**70, "s": "\ud800"}
