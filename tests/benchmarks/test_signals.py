"""Which systems the study of signals compares, and what its tables say."""

from __future__ import annotations

from pathlib import Path

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
