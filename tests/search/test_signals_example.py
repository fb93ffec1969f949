"""The worked example of docs/measured/ranking.md, computed by what ranks."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest

from hybridr.cluster.retrievers.lexical import lexical_divisor
from hybridr.search.fusions import Scales
from hybridr.search.fusions.absolute import part_weights
from hybridr.search.signals.phrases import HALF, SCALE, Phrases
from hybridr.search.signals.soft_terms import SCALE as NEARNESS
from hybridr.search.signals.soft_terms import SoftTerms

PAGE = Path(__file__).parents[2] / "docs" / "measured" / "ranking.md"
IDF = {"heated": 1.9, "wing": 2.6, "flow": 1.4}
ABOVE = {"heated": 0.35, "wing": 0.38, "flow": 0.14}
USUALLY_ABOVE = 0.37
ONCE_AT_AVERAGE_LENGTH = 1 / (1 + 1.2)


def table() -> dict[str, float]:
    """What the page says that each part adds."""
    row = re.compile(r"^\| (\w[\w ]*) \|.*\| (\d\.\d{4}) \|$", re.MULTILINE)
    rows = row.findall(PAGE.read_text(encoding="utf-8"))
    return {name: float(value) for name, value in rows}


def test_the_worked_example() -> None:
    total = math.fsum(IDF.values())
    assert f"I = {total:.1f} and 4 √I = {lexical_divisor(total):.3f}" in PAGE.read_text(encoding="utf-8")
    shares = {"phrases": Phrases.weight, "soft_terms": SoftTerms.weight}
    weights = part_weights({"lexical": 0.5, "dense": 0.5}, Scales(total, 1.0), shares)
    both = (IDF["heated"] + IDF["wing"]) * ONCE_AT_AVERAGE_LENGTH
    soft = NEARNESS / USUALLY_ABOVE * math.fsum(IDF[word] / total * ABOVE[word] for word in IDF)
    parts = {
        "words": weights.retrievers["lexical"] * both,
        "cosine": weights.retrievers["dense"] * (1 + 0.55) / 2,
        "phrases": weights.signals["phrases"] * SCALE * HALF * both / lexical_divisor(total),
        "soft terms": weights.signals["soft_terms"] * soft,
    }
    assert table() == pytest.approx(parts | {"score": math.fsum(parts.values())}, abs=6e-5)
