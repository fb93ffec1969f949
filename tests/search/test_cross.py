"""The cross-encoder's remark on hits that it was to read and did not."""

from __future__ import annotations

from hybridr.records import Hit
from hybridr.search.rerankers.cross import CrossReranker, CrossSettings


def test_hits_that_it_was_never_to_read_are_not_counted_as_late() -> None:
    reranker = CrossReranker.__new__(CrossReranker)  # without a model
    reranker.settings = CrossSettings(candidates=3)
    pinned, read, late = Hit("p", 0.0, 1), Hit("r", 2.0, 2), Hit("l", 1.0, 3)
    hits = [pinned, read._replace(scores={"cross": 0.5}), late._replace(scores={"cross": None})]
    assert reranker.late_remark(hits) == "1 of 3 hits were not read by the cross-encoder within 1 s"
    assert reranker.late_remark(hits[:2]) == ""
