"""The study of several fields: every cut holds the words of the joined text, and its page has a row a way."""

from __future__ import annotations

import json
from typing import Any

from hybridr.records import Document
from studies.fields import CUTS, FORMS, JOINED, WAYS, cut_up, each_of, fields_of, render
from study import RESULTS


def test_every_cut_holds_the_words_of_the_joined_text() -> None:
    text = "First it opens. Then it runs: run it. It ends. Nothing follows. Index terms: one, two"
    for name, title in (("cacm", "A title"), ("tldr_cmd", "cmd"), ("fiqa_mini", "")):
        found = cut_up(Document("1", text, title), name)
        for cut in CUTS:
            words = sorted(" ".join(found.get(one, "") for one in fields_of(cut)).split())
            assert words == sorted(found[JOINED].split())


def test_phrases_of_the_best_field_come_apart() -> None:
    one: dict[str, Any] = {"match_phrase": {"a": {}}}
    assert each_of([{"dis_max": {"queries": [one, one]}}, one]) == [one, one, one]


def test_the_way_that_was_built_is_near_the_joined_text() -> None:
    record = json.loads((RESULTS / "fields.json").read_text(encoding="utf-8"))
    assert all(f"| {way} |" in render(record) for way in WAYS)
    for found in record["sets"].values():
        joined, cuts = found["ways"][f"1 {JOINED}"], [found["ways"][f"{cut} built"] for cut in CUTS]
        for cut in cuts:
            assert cut["bm25"] > joined["bm25"] - 0.0125
            assert cut["hybrid"] > max(joined["hybrid"] - 0.01, cut["stock"])
        assert set(FORMS) <= set(joined)
