"""Unanswerable queries: some thousands, of many fields, the same everywhere."""

from __future__ import annotations

from hybridr.relevance.answering import unanswerable_queries, words_by_subject


def test_there_are_thousands_of_them() -> None:
    found = unanswerable_queries(4000)
    assert len(set(found)) == 4000
    assert all(text.strip() and "{" not in text for text in found)
    assert len(words_by_subject()) > 60
    assert all(len(things) > 6 and len(deeds) > 1 for things, deeds in words_by_subject().values())


def test_they_are_drawn_alike_and_of_all_fields() -> None:
    few = unanswerable_queries(400)
    unanswerable_queries.cache_clear()
    assert unanswerable_queries(400) == few
    met = [
        name
        for name, of in words_by_subject().items()
        if any(one in text for text in few for part in of for one in part)
    ]
    assert len(met) == len(words_by_subject())
