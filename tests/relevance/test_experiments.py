"""Which rankings are compared, and what clicks say of them: one client, one vote a query, machines none."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hybridr.cluster.record import Record
from hybridr.cluster.record_parts import Ranking, Remembered, Tuned
from hybridr.errors import DataError, SettingsError
from hybridr.evaluation.significance import count_preferences
from hybridr.relevance.experiments import count_votes, experiment_ranking
from support.click_logs import asked, clicked

OURS = "0" * 8
SHOWN = [f"d{number}" for number in range(10)]
MEMORY = Remembered(queries=3, encoder="e", job="1")
FOUND = {"fusion": "absolute", "dense_weight": 0.7}
RECORD = Record(tuning=Tuned(search=FOUND, pipeline={"depth": 7}), memory=MEMORY)


def drafted(search: str, client: str | None, text: str, teams: str, experiment: str = OURS) -> dict[str, Any]:
    told = {"hybridr_experiment": experiment, "hybridr_teams": teams}
    return asked(search, client, text, SHOWN[: len(teams)], query_attributes=told)


def rankings_of(record: Record, a: str, b: str, name: str) -> tuple[Ranking, Ranking]:
    return experiment_ranking(record, a, b, name), experiment_ranking(record, b, a, name)


def voted(count: int, client: str | None, text: str, teams: str, *hits: str) -> list[dict[str, Any]]:
    """So many searches of a client, each with clicks on these hits; `*` in the text is the number."""
    records = []
    for n in range(count):
        records.append(drafted(f"s{n}", client, text.replace("*", str(n)), teams))
        records += [clicked(f"s{n}", client, hit) for hit in hits]
    return records


def votes(*records: dict[str, Any]) -> list[str]:
    return list(count_votes(iter(records), OURS)[0])


def test_a_vote_goes_to_the_ranking_more_of_whose_hits_were_clicked() -> None:
    log = [drafted("s", "anna", "lamp", "-ab")]
    assert votes(*log) == []
    assert votes(*log, clicked("s", "anna", "d0")) == [""]
    assert votes(*log, clicked("s", "anna", "d1")) == ["a"]
    assert votes(*log, clicked("s", "anna", "d2"), clicked("s", "anna", "d2")) == ["b"]
    assert votes(*log, clicked("s", "anna", "d1"), clicked("s", "anna", "d2")) == [""]
    assert votes(*log, clicked("s", "anna", "d7")) == []


def test_searches_of_other_experiments_and_clicks_of_others_say_nothing() -> None:
    assert votes(drafted("s", "anna", "lamp", "ab", "1" * 8), clicked("s", "anna", "d1")) == []
    assert votes(drafted("s", "anna", "lamp", "ab"), clicked("s", "bert", "d1")) == []
    assert votes(drafted("s", "anna", "lamp", "a"), clicked("s", "anna", "d1")) == []


def test_only_what_the_experiment_showed_is_counted() -> None:
    log = [drafted("s", "anna", "lamp", "ab"), clicked("s", "anna", "d1")]
    other = [drafted("t", "bert", "lamp", "ab", "1" * 8), clicked("t", "bert", "d1")]
    told = clicked("u", "carl", "d1", user_query="chair")
    counts = count_votes(iter([*log, *other, told, clicked("v", "dora", "d1")]), OURS)[1]
    assert counts == {"searches": 1, "clicks": 1, "clients": 1, "bots": 0}


def test_one_client_has_one_vote_on_a_query_whatever_it_sends() -> None:
    flood = voted(200, "anna", "Lamp ", "ab", "d0")
    assert votes(*flood) == ["a"]
    both = votes(*flood, drafted("t", "bert", "lamp", "ab"), clicked("t", "bert", "d1"))
    assert sorted(both) == ["a", "b"]
    assert len(votes(*voted(200, None, "lamp", "ab", "d0"))) == 1


def test_machines_have_no_vote() -> None:
    greedy = voted(20, "robot", "query *", "ababa", *SHOWN[:5:2])
    found, counts, _ = count_votes(iter(greedy), OURS)
    assert (found, counts["bots"]) == ([], 1)


def people(share: float, count: int, seed: int = 0) -> Iterator[dict[str, Any]]:
    """So many people click one of two hits, that of `b` by this share of them."""
    coin = random.Random(seed)
    for number in range(count):
        search, teams = f"s{number}", coin.choice(("ab", "ba"))
        yield drafted(search, search, f"query {number % 20}", teams)
        yield clicked(search, search, f"d{teams.index('b' if coin.random() < share else 'a')}")


def test_a_better_ranking_is_decided_and_an_equal_one_is_not() -> None:
    assert count_preferences(votes(*people(0.65, 400))).better == "b"  # type: ignore[arg-type]
    assert count_preferences(votes(*people(0.35, 400))).better == "a"  # type: ignore[arg-type]
    assert count_preferences(votes(*people(0.5, 400))).better == ""  # type: ignore[arg-type]


def test_today_is_without_what_it_is_compared_with() -> None:
    a, b = rankings_of(RECORD, "today", "learnt", "docs")
    assert (a.memory, a.search) == (None, FOUND)
    assert b.is_as(RECORD.ranking)
    a, b = rankings_of(RECORD, "tuned", "today", "docs")
    assert (b.memory, b.search) == (MEMORY, None)
    assert a.is_as(RECORD.ranking)


def test_a_file_is_a_ranking_beside_all_that_ranks_today(tmp_path: Path) -> None:
    file = tmp_path / "half.toml"
    file.write_text('[search]\ndense_weight = 0.3\nrerank = ["tokens"]\n')
    a, b = rankings_of(RECORD, "today", str(file), "docs")
    assert a.is_as(RECORD.ranking)
    assert b == Ranking(search={"dense_weight": 0.3}, chain={"rerank": ["tokens"]}, memory=MEMORY)


@pytest.mark.parametrize(
    "text", ["", "[serve]\nport = 1\n", "[search]\ndepth = 0\n", "[search]\nquery_template = 'x'\n", "["]
)
def test_a_file_that_is_no_ranking_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "odd.toml"
    file.write_text(text)
    with pytest.raises(SettingsError):
        rankings_of(RECORD, "today", str(file), "docs")
    with pytest.raises(SettingsError, match="is not a ranking"):
        rankings_of(RECORD, "today", "tomorrow", "docs")


def test_what_was_never_learnt_or_tuned_is_no_ranking() -> None:
    with pytest.raises(DataError, match="learnt"):
        rankings_of(Record(), "today", "learnt", "docs")
    with pytest.raises(DataError, match="tuned"):
        rankings_of(Record(), "tuned", "today", "docs")


def test_a_record_ranks_by_what_is_written_and_keeps_the_rest() -> None:
    bare = RECORD.with_ranking(Ranking())
    assert (bare.tuning, bare.memory) == (Tuned(pipeline={"depth": 7}), None)
    assert bare.with_ranking(RECORD.ranking).ranking.is_as(RECORD.ranking)
    assert Record().with_ranking(Ranking()).tuning is None


ODD_LETTERS: list[Any] = ["\ud800b", "ab\udfff", "\ud83d", "a\x00b", "AB", "a b", "ä", "xyz", ""]
ODD_LETTERS += [7, ["a"], {}, None]


@pytest.mark.attack(132)
@pytest.mark.parametrize("letters", [*ODD_LETTERS, "a" * 20_000, "a"], ids=lambda letters: repr(letters)[:20])
def test_no_letters_of_a_search_end_the_report(letters: Any) -> None:
    """Whoever writes into `ubi_queries` gets no vote by odd letters, and takes none away."""
    honest = [drafted("s", "anna", "lamp", "ab"), clicked("s", "anna", "d1")]
    told = {"hybridr_experiment": OURS, "hybridr_teams": letters}
    odd = asked("t", "bert", "chair", [*SHOWN[:3], None, {"a": 1}, "d0"], query_attributes=told)
    assert votes(*honest, odd) == votes(odd, *honest) == ["b"]
    read = isinstance(letters, str) and set(letters) == {"a"}
    assert votes(odd, clicked("t", "bert", "d0")) == (["a"] if read else [])
    assert votes({**odd, "query_attributes": letters}, clicked("t", "bert", "d0")) == []


HALVES = ["\ud800", "x\udfffy", "\ude00\ud83d"]


@pytest.mark.attack(132)
@pytest.mark.parametrize("half", HALVES, ids=ascii)
@pytest.mark.parametrize(
    "place", ["query_id", "client_id", "user_query", "timestamp", "object_id_field", "hits", "action_name"]
)
def test_no_half_of_a_character_ends_the_reading_of_a_log(half: str, place: str) -> None:
    honest = [drafted("s", "anna", "lamp", "ab"), clicked("s", "anna", "d1")]
    search, click = drafted("t", "bert", "lamp", "ab"), clicked("t", "bert", "d0")
    for record in (search, click):
        if place == "hits":
            record["query_response_hit_ids"] = [half, "d1"]
            record["event_attributes"] = {"object": {"object_id": half, "object_id_field": half}}
        elif place in record:
            record[place] = half
    assert "b" in votes(*honest, search, click)
