"""How two products are compared: best tens, largest difference, speed."""

from __future__ import annotations

from typing import Any

from studies import engines

MACHINE = {"cpu": "a processor", "cores": 2}


def a_set(values: dict[str, float], seconds: dict[str, list[float]], alike: float) -> dict[str, Any]:
    return {
        "load": 3.2,
        "documents": 1000,
        "queries": 50,
        "seconds": seconds,
        "systems": {name: dict.fromkeys(engines.SYSTEMS, value) for name, value in values.items()},
        "alike": dict.fromkeys(engines.SYSTEMS, alike),
        "in order": dict.fromkeys(engines.SYSTEMS, alike - 0.1),
    }


def test_the_best_ten_are_compared_as_a_set_and_in_their_order() -> None:
    ours = {"q1": {"a": 2.0, "b": 1.0}, "q2": {"a": 1.0}, "q3": {f"d{n}": 20.0 - n for n in range(12)}}
    theirs = {"q1": {"a": 1.0, "b": 2.0}, "q3": {**ours["q3"], "d11": 0.5}}
    assert engines.alike(ours, theirs, set) == 0.6667, "the second query found nothing there"
    assert engines.alike(ours, theirs, list) == 0.3333
    assert engines.best({"b": 1.0, "a": 1.0, "c": 2.0}) == ["c", "a", "b"]


def test_what_is_told_is_the_worst_of_all_sets() -> None:
    values = {"opensearch": 0.4, "elasticsearch": 0.4013}
    one = a_set(values, {"opensearch": [20.0, 31.0], "elasticsearch": [40.0, 25.0]}, 1.0)
    other = a_set(dict.fromkeys(values, 0.5), {"opensearch": [16.0], "elasticsearch": [15.0]}, 0.97)
    settings = {"opensearch": "3.6.0", "elasticsearch": "8.15.0"}
    said = engines.render({"sets": {"one": one, "other": other}, "settings": settings, "machine": MACHINE})
    assert "differ by at most 0.0013 (allowed: 0.002)" in said
    assert "at least 97.0% of the queries (required: 95%)" in said
    assert "`reindex` on Elasticsearch has 0.90 times the speed" in said
    assert "| one | bm25 | 0.4000 | 0.4013 | 100.0% | 90.0% |" in said
    assert "| one | 1,000 | 20, 31 | 40, 25 | 0.80 | 3 |" in said
