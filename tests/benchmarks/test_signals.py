"""Which systems the study of signals compares, and what its tables say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from conditions import read_conditions
from hybridr.search.context import SignalSet
from hybridr.search.signals import Signal
from studies import signals

USUAL = ("phrases", "soft_terms")


def taken(*names: str) -> SignalSet:
    """A set of signals; those of today's default are usual."""
    made = {
        name: type(name, (Signal,), {"usual": name in USUAL, "__init__": lambda _: None}) for name in names
    }
    return SignalSet({name: one() for name, one in made.items()}, {})


@pytest.mark.parametrize(
    ("names", "systems"),
    [
        ((), ["hybrid-plain", "hybrid"]),
        (("phrases",), ["hybrid-plain", "hybrid"]),
        (USUAL, ["hybrid-plain", "phrases", "soft_terms", "hybrid"]),
        (
            (*USUAL, "bits"),
            [
                *["hybrid-plain", "phrases", "soft_terms", "bits"],
                *["phrases+bits", "soft_terms+bits", "phrases+soft_terms+bits", "hybrid"],
            ],
        ),
    ],
)
def test_each_signal_is_asked_alone_and_left_out_but_nothing_twice(names, systems):
    found = signals.compared(taken(*names))
    assert list(found) == systems
    assert [one.settings["signals"] for one in found.values()][1:-1] == [
        tuple(name.split("+")) for name in systems[1:-1]
    ]
    assert found["hybrid"].settings == {"tuned": False, "signals": ("auto",)}


def test_other_weights_make_a_result_unfinished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("corpus.jsonl", "queries.jsonl", "qrels/test.tsv"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    work = signals.Trial(read_conditions()["cisi"], tmp_path, tmp_path / "runs", "cisi")
    before = work.fingerprint
    assert signals.Trial(work.condition, tmp_path, tmp_path / "runs", "cisi").fingerprint == before
    monkeypatch.setattr(signals, "usual_weights", lambda: {"phrases": 0.2})
    assert work.fingerprint != before


def versus(system: str, difference: float, p: float, p_holm: float) -> dict[str, Any]:
    return {"system": system, "measure": "nDCG@10", "difference": difference, "p_value": p, "p_holm": p_holm}


def made(plain: float, change: float, p: float, p_holm: float, **more: float) -> dict[str, Any]:
    """A result whose default changes so much against hybrid-plain; `more` are further systems."""
    systems = {"bm25": 0.1, "hybrid-stock": 0.4, "hybrid-plain": plain, "hybrid": plain + change, **more}
    return {
        "documents": 1000,
        "queries": 50,
        "systems": {name: {"nDCG@10": value} for name, value in systems.items()},
        "comparisons": {
            "hybrid-stock": [versus("hybrid", plain + change - 0.4, 0.5, 1.0)],
            "hybrid-plain": [versus("hybrid", change, p, p_holm)],
        },
        "left_out": {} if more else {"token_bits": "none were written"},
        "term_table": {"documents": 900, "terms": 2345, "bytes": 1_850_000, "seconds": 12.34, "cpu_s": 9.87},
        "index_bytes": 3_900_000,
        "load": 9.7,
        "machine": {"cpu": "x", "cores": 2},
    }


@pytest.fixture
def page() -> list[str]:
    record = {
        "cisi": made(0.45, 0.03, 0.001, 0.01, token_bits=0.46),
        "lisa": made(0.5, -0.01, 0.04, 0.08),
        "xquad_zh": made(0.9, 0.0, 1.0, 1.0),
    }
    return signals.render(record).splitlines()


def row(page: list[str], *starts: str) -> list[str]:
    """The cells of the row that starts with these cells."""
    begin = f"| {' | '.join(starts)} |"
    return [cell.strip() for cell in next(line for line in page if line.startswith(begin)).split("|")[1:-1]]


def test_values_have_marks_and_systems_that_an_index_lacks_are_empty(page: list[str]) -> None:
    header = row(page, "nDCG@10")
    assert header == ["nDCG@10", "queries", "hybrid-stock", "hybrid-plain", "token_bits", "hybrid"]
    assert row(page, "cisi", "50") == ["cisi", "50", "0.4000", "0.4500", "0.4600", "0.4800 p+"]
    assert row(page, "lisa", "50")[-2:] == ["", "0.4900"]
    assert row(page, "**mean of 2**")[2:] == ["**0.4000**", "**0.4750**", "not run", "**0.4850**"]
    assert not any("xquad_zh" in line for line in page)
    assert "Without token_bits: lisa." in page


def test_changes_count_what_is_significant_with_and_without_correction(page: list[str]) -> None:
    assert row(page, "hybrid", "2") == [
        *["hybrid", "2"],
        *["+0.0100", "1/1", "1/0 (1/1)", "-0.0100 (lisa)"],
        *["+0.0850", "2/0", "0/0 (0/0)", "+0.0800 (cisi)"],
    ]


def test_what_is_kept_is_told(page: list[str]) -> None:
    assert row(page, "lisa", "1,000")[1:] == ["1,000", "3.9", "900", "2,345", "1.85", "12.3", "9.9"]
    assert any("a machine of load 10 to 10" in line for line in page)
