"""The study `label-free`, without a cluster."""

from __future__ import annotations

from typing import Any

import pytest

from hybridr.evaluation.label_free import KINDS, draw_probes, make_probes
from hybridr.records import Query
from rankings import Arena
from studies.label_free import VARIANTS, Arenas, area, summary
from support.hashing import HashingEncoder
from support.tiny import tiny_corpus


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    corpus, encoder = tiny_corpus(30), HashingEncoder(dim=64)

    def arena(texts: list[str], asked: list[str]) -> Any:
        return Arena(texts, encoder.encode_documents(texts), asked, encoder.encode_queries(asked))

    probes, rests = make_probes(corpus, 0)
    drawn = draw_probes(corpus, 40, 0)
    queries = [Query(f"q{i}", " ".join(corpus[i].text.split()[:6])) for i in range(15)]
    texts = [document.contents for document in corpus]
    arenas = Arenas(
        queries,
        {query.query_id: {corpus[i].doc_id: 1} for i, query in enumerate(queries)},
        [document.doc_id for document in corpus],
        arena(texts, [query.text for query in queries]),
        arena(rests, [probe.text for probe in probes]),
        probes,
        arena(texts, [probe.text for probe in drawn]),
        drawn,
    )
    return [{"set": "tiny", **row} for row in arenas.rows()]


def test_every_variant_is_measured_by_every_statistic(rows: list[dict[str, Any]]) -> None:
    assert [row["variant"] for row in rows] == [variant.name for variant in VARIANTS]
    names = {f"own document, hybrid, {kind}" for kind in KINDS} | {"hybrid top 10 kept, real queries"}
    assert all(names <= row["statistics"].keys() for row in rows)
    by_name = {row["variant"]: row for row in rows}
    ruined = by_name["query values shuffled 1"]
    assert ruined["true"] < 0
    assert ruined["statistics"]["own document, dense"] < -0.2
    assert ruined["statistics"]["hybrid top 10 kept, real queries"] < -0.1
    assert by_name["dense weight 0.4"]["statistics"]["own document, dense"] == 0


def test_the_summary_by_hand() -> None:
    rows = [
        {"set": "s", "group": "fusion", "true": true, "statistics": {"good": told, "still": 0.0}}
        for true, told in ((-0.1, -3.0), (-0.03, -1.0), (-0.01, -2.0), (0.0, 0.0), (0.01, 1.0))
    ]
    good, still = summary(rows)
    assert good["statistic"] == "good"
    assert good["disaster_auc"] == pytest.approx(5 / 6)  # one of six pairs is the wrong way round
    assert good["spearman_within"] == good["spearman_pooled"] == pytest.approx(0.9)
    assert good["kendall_within"] == pytest.approx(0.8)
    assert good["spearman_small"] == 1.0
    assert (still["disaster_auc"], still["spearman_pooled"]) == (0.5, 0.0)
    assert area(rows[2:], "good") is None
