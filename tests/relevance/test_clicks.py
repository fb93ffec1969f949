"""Clicks become judgements, and nobody's clicks alone do."""

from __future__ import annotations

import itertools
import json
import random
from collections import Counter
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from hybridr.errors import DataError
from hybridr.evaluation.evaluation import JudgedQueries
from hybridr.files.formats import read_qrels
from hybridr.relevance.clicks.clicks import GONE, NO_LINE, ClickLedger, Clicks, judge_clicks
from support.click_logs import asked, clicked, people
from support.odd_ids import FORGING

SHOWN = [f"d{number}" for number in range(10)]
TEXTS = [f"query {number}" for number in range(40)]
GOOD = {text: (SHOWN[number % 4], SHOWN[4 + number % 3]) for number, text in enumerate(TEXTS)}


def log(count: int = 60) -> list[dict[str, Any]]:
    return [record for text in TEXTS for record in people(text, SHOWN, GOOD[text], count)]


def told(records: Iterable[Any], gone: str = "") -> Clicks:
    return judge_clicks(iter(records), lambda names, _: {name: name for name in names if name != gone})


@cache
def told_honestly() -> Clicks:
    return told(log())


def relevant(clicks: Clicks) -> dict[str, set[str]]:
    texts = {query.query_id: query.text for query in clicks.queries}
    return {texts[one]: {doc for doc, grade in found.items() if grade} for one, found in clicks.qrels.items()}


def test_documents_that_people_chose_are_relevant_wherever_they_stood() -> None:
    found = told_honestly()
    assert sum(relevant(found)[text] == set(GOOD[text]) for text in TEXTS) >= 36
    report = found.report
    assert (report.searches, report.clients, report.queries, report.judged) == (2400, 2400, 40, 40)
    assert (report.repeated, report.covered) == (pytest.approx(1 - 40 / 2400), 1)
    assert report.seen[:3] == pytest.approx((1, 0.5, 0.33), abs=0.1)
    assert report.clicked == pytest.approx((0.07, 0.75), abs=0.05)
    assert all(0.5 <= sure <= 1 for found in found.confidence.values() for sure in found.values())
    assert not report.left_out


def test_the_order_of_records_and_their_clocks_say_nothing() -> None:
    records = log(20)
    before = told(records)
    random.Random(1).shuffle(records)
    for number, record in enumerate(records):
        record["timestamp"] = (f"{1950 + number % 90}-01-01T00:00:00Z", number * 10**9, None, "?")[number % 4]
    after = told(records)
    assert (after.qrels, after.confidence) == (before.qrels, before.confidence)


def test_one_client_moves_nothing_whatever_it_sends() -> None:
    honest = told_honestly()
    flood = [
        record
        for number in range(400)
        for record in (asked(f"x{number}", "evil", TEXTS[0], SHOWN), clicked(f"x{number}", "evil", "d9"))
    ]
    poisoned = told([*log(), *flood[:400]])
    assert relevant(poisoned) == relevant(honest)
    assert poisoned.report.left_out["searches that a client asked again"] == 199
    chances = [found.confidence[id_of(found, TEXTS[0])].get("d9", 1) for found in (honest, poisoned)]
    assert abs(chances[0] - chances[1]) < 0.1


def id_of(found: Clicks, text: str) -> str:
    return next(query.query_id for query in found.queries if query.text == text)


def test_a_judgement_needs_the_clicks_of_several() -> None:
    """A query that only one client asks, however often and under how many spellings, is nobody's business."""
    alone = [
        record
        for number in range(30)
        for record in (asked(f"x{number}", "one", "My Name", SHOWN), clicked(f"x{number}", "one", "d1"))
    ]
    found = told([*log(20), *alone])
    assert "my name" not in {query.text.casefold() for query in found.queries}
    anonymous = [{**record, "client_id": None} for record in alone]
    assert len(told([*log(20), *anonymous]).queries) == len(found.queries)


def test_clicks_on_searches_of_others_do_not_count() -> None:
    forged = [clicked(f"{TEXTS[0]} {number}", "evil", "d9") for number in range(60)]
    found = told([*log(), *forged])
    assert relevant(found)[TEXTS[0]] == relevant(told_honestly())[TEXTS[0]]
    assert found.report.left_out["clicks of another client than the one that searched"] == 60


def test_machines_are_left_out() -> None:
    many = [asked(f"m{number}", "crawler", f"page {number % 7}", SHOWN) for number in range(501)]
    all_of_it = [
        record
        for number in range(10)
        for record in (
            asked(f"g{number}", "greedy", TEXTS[number], SHOWN),
            *(clicked(f"g{number}", "greedy", one) for one in SHOWN),
        )
    ]
    found = told([*log(20), *many, *all_of_it])
    assert (found.report.bots, found.qrels) == (2, told(log(20)).qrels)


def test_what_tells_nothing_is_left_out_and_counted() -> None:
    odd: list[Any] = [
        None,
        {"query_id": ["list"], "user_query": 3},
        {**clicked("q", "c", "d1"), "action_name": "scroll"},
        {**clicked("q", "c", "d1"), "event_attributes": 7},
        clicked("nowhere", "c", "d1"),
        asked("long", "c", "x" * 1001, SHOWN),
        asked("empty", "c", "  ", SHOWN),
        asked("unlisted", "c", TEXTS[0], []),
        {**clicked(f"{TEXTS[0]} 0", f"{TEXTS[0]} 0", "never shown")},
    ]
    found = told([*log(20), *odd])
    left = found.report.left_out
    assert left == {
        "lines that are no searches or events": 1,
        "events without a search or document": 2,
        "events that are no clicks or impressions": 1,
        "clicks without their search": 1,
        "searches without a text, or with a very long one": 2,
        "searches that do not tell what was shown": 1,
        "clicks that came again, or chose what was not shown": 1,
    }
    assert found.qrels == told(log(20)).qrels


def test_documents_that_are_gone_are_not_judged() -> None:
    found = told(log(), gone="d0")
    assert found.report.left_out[GONE] == len(TEXTS)
    assert not any("d0" in grades for grades in found.qrels.values())


def test_people_who_contradict_each_other_make_no_judgement() -> None:
    """One in three clicks the first, which all see: too many for an error, too few for what is relevant."""
    torn = [
        record
        for number in range(6)
        for record in (
            asked(f"t{number}", f"t{number}", "torn", SHOWN),
            *([clicked(f"t{number}", f"t{number}", "d0")] if number % 3 == 0 else []),
            clicked(f"t{number}", f"t{number}", "d1"),
        )
    ]
    found = told([*log(), *torn])
    assert "d0" not in found.qrels[id_of(found, "torn")]
    assert relevant(found)["torn"] == {"d1"}


def test_spellings_of_a_query_are_one() -> None:
    mixed = [
        record | {"user_query": record["user_query"].upper()} if "user_query" in record and odd else record
        for record, odd in zip(log(20), itertools.cycle((True, False)), strict=False)
    ]
    assert len(told(mixed).queries) == len(told(log(20)).queries)


def test_a_log_without_searches_is_read_by_its_impressions() -> None:
    """As COEC reads it: impressions and clicks with the text, none of ubi_queries."""
    events: list[dict[str, Any]] = []
    for record in log(20):
        if "action_name" in record:
            events.append({**record, "user_query": record["query_id"].rpartition(" ")[0]})
            continue
        for place, document in enumerate(record["query_response_hit_ids"]):
            event = clicked(record["query_id"], record["client_id"], document, action_name="impression")
            event["event_attributes"]["position"]["ordinal"] = place
            events.append({**event, "user_query": record["user_query"]})
    random.Random(2).shuffle(events)
    assert told(events).qrels == told(log(20)).qrels


def test_fields_as_the_documentation_names_them_are_read() -> None:
    renamed = [
        {("query_response_objects_ids" if name == "query_response_hit_ids" else name): value}
        | {one: other for one, other in record.items() if one != "query_response_hit_ids"}
        for record in log(20)
        for name, value in [("query_response_hit_ids", record.get("query_response_hit_ids"))]
    ]
    assert told(renamed).qrels == told(log(20)).qrels


ODD: tuple[Any, ...] = (
    *(None, True, -1, 10**30, 1e308, float("nan"), "", " ", "\ud800", "a\x00b", "x" * 2_000, [], [[]]),
    *({}, {"object": 7}, {"object": {"object_id": ["x"]}, "position": 3}, [None, 3, "d1", "\udfff"], "click"),
)


def test_whatever_a_log_holds_is_read_or_left_out() -> None:
    random_ = random.Random(3)
    honest = log(20)
    odd = []
    for _ in range(3_000):
        record = dict(random_.choice(honest))
        for name in random_.sample([*record, "object_id_field", "_source"], 2):
            record[name] = random_.choice(ODD)
        odd.append(record)
    found = told([*honest, *odd, *(one for one in ODD if isinstance(one, dict))])
    assert len(found.queries) >= 35
    json.dumps([found.report.to_json(), found.queries, found.qrels]).encode()


@pytest.mark.parametrize("records", [[], [asked("q", "c", "t", SHOWN)], [None] * 5])
def test_a_log_of_nothing_is_said_to_be_so(records: list[Any]) -> None:
    with pytest.raises(DataError, match="give no judgement"):
        told(records)


def test_what_is_written_is_read_by_tune_and_evaluate(tmp_path: Path) -> None:
    found = told(log(20))
    found.write(tmp_path / "out")
    queries, qrels = JudgedQueries(tmp_path / "out").read(with_texts=True)
    assert qrels == found.qrels
    assert sorted(queries) == sorted(found.queries)
    assert {file.stat().st_mode & 0o777 for file in (tmp_path / "out").rglob("*.*")} == {0o600}
    rows = (tmp_path / "out" / "confidence.tsv").read_text().splitlines()
    assert (rows[0], len(rows)) == ("query-id\tcorpus-id\tconfidence", 1 + sum(map(len, qrels.values())))


def test_nothing_that_names_a_client_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither in what is returned, nor on disk while a log is read; and the folder is gone with it."""
    folders: list[Path] = []
    counts = ClickLedger.counts

    def looking(ledger: ClickLedger) -> dict[str, int]:
        folders.extend(tmp_path.glob("hybridr-clicks-*"))
        content = b"".join(file.read_bytes() for file in folders[0].iterdir())
        assert b"query 1" in content
        assert b"someone@example.org" not in content
        assert folders[0].stat().st_mode & 0o777 == 0o700
        return counts(ledger)

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(ClickLedger, "counts", looking)
    records = [{**record, "client_id": f"someone@example.org{record['client_id'][6:]}"} for record in log(20)]
    found = told(records)
    assert len(folders) == 1
    assert not list(tmp_path.iterdir())
    assert "someone" not in json.dumps([found.report.to_json(), found.qrels, found.queries])


def test_two_readings_know_a_client_by_different_numbers() -> None:
    from hybridr.relevance.clicks.ubi import LogReader

    assert LogReader().hashed("client") != LogReader().hashed("client")


def test_names_become_ids_as_the_index_has_them() -> None:
    asked_for: list[Counter[str]] = []

    def known(names: list[str], fields: Counter[str]) -> dict[str, str]:
        asked_for.append(fields)
        return {name: f"id of {name}" for name in names}

    found = judge_clicks(iter(log(20)), known)
    assert {doc for grades in found.qrels.values() for doc in grades} <= {f"id of {one}" for one in SHOWN}
    assert asked_for[0].most_common(1)[0][0] == "_id"


@pytest.mark.attack(128)
@pytest.mark.parametrize("doc_id", FORGING)
def test_an_id_that_would_forge_judgements_is_left_out(tmp_path: Path, doc_id: str) -> None:
    """Other documents of the same query, and other queries, are judged as without it."""
    honest = told_honestly()
    clicks = judge_clicks(iter(log()), lambda names, _: {one: {"d1": doc_id}.get(one, one) for one in names})
    assert clicks.report.left_out[NO_LINE] == len(TEXTS)
    clicks.write(tmp_path)
    written = read_qrels(tmp_path / "qrels" / "test.tsv")
    assert written == clicks.qrels
    assert {doc for grades in written.values() for doc in grades} <= set(SHOWN) - {"d1"}
    kept = {query: {doc: of[doc] for doc in of if doc != "d1"} for query, of in honest.qrels.items()}
    assert clicks.qrels == {query: grades for query, grades in kept.items() if any(grades.values())}
