"""The tables of the study "scale" from what is committed: how far a dry run was right, as the page says."""

from __future__ import annotations

import growth
from study import Record, read_result
from support.places import ROOT

FITTED, WITHIN = 100_000, 0.2  # the constants were fitted up to this size; beyond it they must hold


def cases() -> list[Record]:
    usual = {"runner": "threads", "vectors": "float"}
    found = (read_result("scale") or {}).values()
    return [case for case in found if usual.items() <= case["settings"].items()]


def test_beyond_what_was_fitted_a_dry_run_is_right_within_a_fifth() -> None:
    larger = [case for case in cases() if case["settings"]["documents"] > FITTED]
    assert larger
    for case in larger:
        seconds, _, *sizes = growth.compared(case)  # the page says how far the node's processors were off
        for said, was in (seconds, *sizes):
            assert abs(said / was - 1) <= WITHIN, (case["settings"]["documents"], said, was)


def test_the_page_has_the_predictions_as_they_are() -> None:
    page = (ROOT / "docs" / "measured" / "scale.md").read_text(encoding="utf-8")
    for case in cases():
        row = [f"{case['settings']['documents']:,}", *growth.prediction_row(case)]
        assert f"| {' | '.join(row)} |" in page


def test_the_memory_of_a_reindex_is_flat() -> None:
    peaks = {case["settings"]["documents"]: case["steps"]["reindex"]["peak_mb"] for case in cases()}
    assert peaks[max(peaks)] <= 1.1 * peaks[min(peaks)]
