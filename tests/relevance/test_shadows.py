"""What a report says of requests that two rankings answered, and the file in which a server keeps them."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from hybridr.cluster.record import IndexInfo
from hybridr.errors import DataError
from hybridr.files.remembered import delete_texts, local_texts
from hybridr.records import Query
from hybridr.relevance.shadows import ShadowedRequest, ShadowFile, compare_answers

DOCS = IndexInfo("docs", {"index.uuid": "docs"}, {}, {})
SAME = ShadowedRequest("docs", "pens", old=("a", "b"), new=("a", "b"), old_ms=2, new_ms=8)
OTHER = ShadowedRequest("docs", "<i>socks", old=("a", "b", "c"), new=("d", "b", "a"), old_ms=4, new_ms=9)
LEFT = ShadowedRequest("docs", reason="sort", skipped=3)
FAILED = ShadowedRequest("docs", error="the other ranking's answer is a 404")


@pytest.fixture(autouse=True)
def state(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HYBRIDR_HOME", str(tmp_path / "home"))


def test_a_report_tells_how_often_and_how_much_answers_change() -> None:
    report = compare_answers("docs", [SAME, SAME, OTHER, LEFT, FAILED], stopped="enough")
    assert (report.requests, report.skipped) == (5, 3)
    assert (report.reasons, report.errors) == ({"sort": 1}, {FAILED.error: 1})
    assert report.difference.changed == pytest.approx(1 / 3, abs=1e-4)
    assert report.difference.overlap_at_3 == pytest.approx((1 + 1 + 2 / 3) / 3, abs=1e-4)
    assert {name: of.requests for name, of in report.by_frequency.items()} == {"once": 1, "2 to 9 times": 2}
    assert report.times["today"]["p50"] == 2
    assert report.times["hybridr"]["p99"] > report.times["hybridr"]["p50"] == 8
    assert [request.text for request in report.largest] == [OTHER.text]
    assert not any(OTHER.text in line for line in report.summary)
    assert "STOPPED: enough" in report.summary[-1]
    json.dumps(report.to_json())


def test_a_report_without_a_compared_request_says_so() -> None:
    report = compare_answers("docs", [LEFT, FAILED])
    assert (report.difference, report.times, report.tables()) == (None, {}, [])
    assert "no request was answered by both" in report.summary
    assert "no request was answered by both" in report.page()


def test_judged_queries_measure_both_answers() -> None:
    queries = [Query("1", OTHER.text), Query("2", "never asked")]
    report = compare_answers("docs", [SAME, OTHER], judgements=(queries, {"1": {"d": 1}, "2": {"a": 1}}))
    assert report.judged.queries == 1
    assert report.judged.systems["hybridr"]["nDCG@10"] == 1 > report.judged.systems["today"]["nDCG@10"] == 0
    assert compare_answers("docs", [SAME], judgements=(queries, {"1": {"d": 1}})).judged is None


def test_a_page_shows_the_largest_changes_side_by_side_and_runs_nothing() -> None:
    report = compare_answers("x", [SAME, OTHER]).with_texts({"d": "a <script> of 3 \u2264 4", "a": "x" * 500})
    page = report.page()
    assert "&lt;i&gt;socks" in page
    assert "a &lt;script&gt; of 3" in page
    assert "<script>" not in page
    assert "x" * 200 not in page


def test_a_file_is_read_by_its_owner_alone_for_one_index_and_cleaned() -> None:
    kept = ShadowFile(DOCS)
    with pytest.raises(DataError, match="no server on this machine"):
        kept.read(DOCS)
    for entry in (SAME, "ten failed", ShadowedRequest("of before", "pens")):
        kept.add(entry)
    with kept.path.open("ab") as lines:
        lines.write(b'{"index": "docs"}\n{"index": "docs", "old": [], "new": [], "odd": 1}\n\xff{"index": "d')
    assert kept.read(DOCS) == ([SAME], "")
    kept.add("ten failed")
    assert kept.read(DOCS)[1] == "ten failed"
    assert not ShadowFile(IndexInfo("docs", {"index.uuid": "of another cluster"}, {}, {})).path.exists()
    assert stat.S_IMODE(kept.path.stat().st_mode) == 0o600
    assert [text.kind for text in local_texts("docs")] == ["requests of a shadow"]
    delete_texts(local_texts("docs"))
    assert not kept.path.exists()
