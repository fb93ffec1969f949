"""One list of two rankings: pages of one search fit, nobody loses a hit, and every hit is of its team."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from hybridr.cluster.record import IndexInfo, Record, meta_of
from hybridr.cluster.record_parts import Experiment, Ranking, Remembered
from hybridr.errors import SettingsError
from hybridr.records import Hit
from hybridr.search.settings import SearchSettings
from hybridr.serving import snapshots
from hybridr.serving.snapshots import Contest, contest_of

MEMORY = Remembered(queries=3, encoder="e", job="1")
LIKELY = Experiment(
    id="0" * 8, at="now", names=("today", "learnt"), a=Ranking(), b=Ranking(memory=MEMORY), before=Ranking()
)


def hits(names: str, score: float = 1.0) -> list[Hit]:
    return [Hit(name, score, rank) for rank, name in enumerate(names, 1)]


def contest() -> Contest:
    return Contest("0" * 8, None)  # type: ignore[arg-type]


def test_pages_of_a_search_are_parts_of_one_list() -> None:
    a, b = hits("abcdefghijkl", 1.0), hits("bakzcywvedut", 2.0)
    for query_id in map(str, range(50)):
        whole, teams = contest().draft(query_id, a, b, range(12))
        assert [hit.rank for hit in whole] == list(range(1, 13))
        assert len({hit.doc_id for hit in whole}) == 12
        shown, letters = [], ""
        for page in (range(5), range(5, 10), range(10, 12)):
            some, of = contest().draft(query_id, a[: page.stop], b[: page.stop], page)
            shown, letters = shown + some, letters + of.letters
        assert (shown, letters) == (whole, teams.letters)
        assert all({"a": 1.0, "b": 2.0}[team] == hit.score for hit, team in zip(whole, letters, strict=True))


def test_coins_are_fair_and_those_of_another_experiment_are_others() -> None:
    a, b = hits("abcd"), hits("dcba")
    first = [contest().draft(str(one), a, b, range(4))[1].letters[0] for one in range(2_000)]
    assert 850 < first.count("a") < 1150
    other = [Contest("1" * 8, None).draft(str(one), a, b, range(4))[1].letters[0] for one in range(2_000)]  # type: ignore[arg-type]
    assert first != other


def test_what_only_one_ranking_finds_beyond_the_other_is_shown_and_of_neither() -> None:
    shown, teams = contest().draft("q", hits("ab"), hits("bacde"), range(10))
    assert {hit.doc_id for hit in shown} == set("abcde")
    assert teams.letters[2:] == "---"
    shown, teams = contest().draft("q", hits("abc"), hits("abc"), range(10))
    assert ([hit.doc_id for hit in shown], teams.letters) == (list("abc"), "---")
    assert contest().draft("q", [], [], range(10)) == ([], snapshots.Teams("0" * 8, ""))


@pytest.mark.parametrize(
    ("change", "on"),
    [
        ({}, True),
        ({"experiment": LIKELY.model_copy(update={"ended": "stopped"})}, False),
        ({"experiment": None}, False),
        ({"memory": MEMORY}, False),  # somebody learnt since: the index ranks by none of the two
    ],
)
def test_an_experiment_is_on_while_the_index_ranks_as_it_began(change, on, monkeypatch):
    record = Record(encoder="e", experiment=LIKELY).changed(**change)
    info = IndexInfo("docs", {}, {"_meta": meta_of(record)}, {})
    monkeypatch.setattr(snapshots, "Search", lambda cluster, info, *_, **__: info)
    found = contest_of(SimpleNamespace(info=info, cluster=None, encoder=None), SearchSettings())  # type: ignore[arg-type]
    assert (found is not None) == on
    if found:
        assert found.rival.record.memory == MEMORY  # type: ignore[attr-defined]


def test_a_ranking_that_cannot_be_had_ends_no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any, **__: Any) -> None:
        raise SettingsError("no such signal here")

    info = IndexInfo("docs", {}, {"_meta": meta_of(Record(experiment=LIKELY))}, {})
    monkeypatch.setattr(snapshots, "Search", refused)
    assert contest_of(SimpleNamespace(info=info, cluster=None, encoder=None), SearchSettings()) is None  # type: ignore[arg-type]
