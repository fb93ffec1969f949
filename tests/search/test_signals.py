"""The family of signals: what each asks of a query, how a search takes them up, and a new one is one file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hybridr.cluster.record import IndexInfo, Scope
from hybridr.cluster.retrievers.lexical import lexical_divisor
from hybridr.errors import SettingsError
from hybridr.indexing.terms import storage
from hybridr.indexing.terms.storage import TermTable
from hybridr.indexing.terms.terms import Analysed, Word
from hybridr.relevance.judgement import other_signals
from hybridr.search import signals
from hybridr.search.context import choose_signals
from hybridr.search.fusions import Scales, leaf_clause_count
from hybridr.search.fusions.absolute import part_weights
from hybridr.search.settings import SearchSettings
from hybridr.search.signals import Place, QueryReading
from hybridr.search.signals.phrases import MAX_PAIRS, Phrases, neighbour_pairs
from hybridr.search.signals.soft_terms import (
    LEVELS,
    MAX_CLAUSES,
    MIN_SPAN,
    SCALE,
    USED,
    SoftTerms,
    idf_shares,
)
from support.hashing import HashingEncoder
from support.members import one_more

CONSTANT = '''
from hybridr.search.signals import Signal


class Constant(Signal):
    """The same for every document."""

    name = "throwaway"
    help = "nothing at all"
    weight = 0.3

    def __init__(self, place):
        pass

    def clauses(self, asked):
        return [{"match_all": {}}]
'''


@pytest.fixture
def constant(tmp_path: Path) -> Iterator[None]:
    with one_more(signals, "throwaway", CONSTANT, tmp_path):
        yield


def place(**mapping: Any) -> Place:
    properties = {"text": {"type": "text", **mapping}}
    info = IndexInfo("docs", {"index.uuid": "u"}, {"properties": properties}, {})
    return Place(None, info, ["text"], HashingEncoder())  # type: ignore[arg-type]


def words(text: str, *, stop: tuple[str, ...] = ()) -> tuple[Word, ...]:
    """Read a text as an analyser that cuts at blanks and leaves out stop words, but not their places."""
    found, start = [], 0
    for position, word in enumerate(text.split()):
        start = text.index(word, start)
        if word not in stop:
            found.append(Word("text", word.lower(), position, start, start + len(word), len(word)))
        start += len(word)
    return tuple(found)


def asked(text: str, found: tuple[Word, ...], root: float = 4.0) -> QueryReading:
    [reading] = HashingEncoder().read_queries([text])
    return QueryReading(text, Analysed(found, 1.0), reading, root)


def test_phrases_are_neighbours_and_keep_the_gap_of_stop_words() -> None:
    text = "Flow over the heated wing"
    assert list(neighbour_pairs(text, "text", words(text, stop=("over", "the")), 9)) == [
        "Flow over the heated",
        "heated wing",
    ]
    assert [*neighbour_pairs(text, "text", words(text), 9)] == ["over the heated", "heated wing", "Flow over"]
    assert list(neighbour_pairs(text, "title", words(text), 9)) == []
    assert list(neighbour_pairs("wing", "text", words("wing"), 9)) == []
    assert list(neighbour_pairs("the of", "text", words("the of"), 9)) == []


def test_a_pair_counts_once_and_long_queries_keep_the_heaviest() -> None:
    assert list(neighbour_pairs("a1 b1 a1 b1", "text", words("a1 b1 a1 b1"), 9)) == ["a1 b1", "b1 a1"]
    text = " ".join(f"w{'x' * (number % 40)}{number}" for number in range(200))
    kept = list(neighbour_pairs(text, "text", words(text), MAX_PAIRS))
    assert len(kept) == MAX_PAIRS
    assert min(map(len, kept)) > 70
    assert len(Phrases(place()).clauses(asked(text, words(text)))) == MAX_PAIRS


def test_a_pair_counts_in_the_field_that_has_it_best_by_its_idf_in_all() -> None:
    once = Word("text", "x", 0, 0, 1, 1.0, 2.0), Word("text", "y", 1, 2, 3, 2.0, 4.0)
    both = (*once, *(one._replace(field="title") for one in once))
    phrases = Phrases(place())
    phrases.fields = ["text", "title"]
    [clause] = phrases.clauses(asked("x y", both))
    queries = clause["dis_max"]["queries"]
    assert [list(one["match_phrase"]) for one in queries] == [["text"], ["title"]]
    assert {of["boost"] for one in queries for of in one["match_phrase"].values()} == {3.5 / 2 / 2 / 4}


def test_of_several_terms_at_one_place_the_shortest_stands_for_it() -> None:
    spans = {"new york": (0, 0, 8), "new": (0, 0, 3), "york": (1, 4, 8)}
    shingled = [Word("text", term, *span, 1.0) for term, span in spans.items()]
    assert list(neighbour_pairs("new york", "text", shingled, 9)) == ["new york"]


def test_signs_of_chinese_pair_to_three_signs() -> None:
    bigrams = (Word("text", "北京", 0, 0, 2, 2.0), Word("text", "京大", 1, 1, 3, 2.0))
    assert list(neighbour_pairs("北京大", "text", bigrams, 9)) == ["北京大"]


def test_overlapping_words_make_phrases_only_where_they_are_named() -> None:
    chinese = place(analyzer="cjk")
    assert not choose_signals(chinese, ["auto"]).members
    assert "phrases" not in choose_signals(chinese, ["auto"]).left_out
    named = choose_signals(chinese, ["phrases"])
    assert list(named.members) == ["phrases"]
    assert (named.usual, named.others) == ((), ("phrases",))
    assert choose_signals(place(analyzer="english"), ["auto"]).usual == ("phrases",)


@pytest.mark.parametrize("options", ["docs", "freqs"])
def test_without_positions_phrases_are_left_out_with_a_word(options: str) -> None:
    assert "positions" in str(Phrases.obstacle(place(index_options=options)))
    found = choose_signals(place(index_options=options), ["auto"])
    assert set(found.left_out) == {"phrases", "soft_terms"}
    assert not found.members
    with pytest.raises(SettingsError, match="no phrases here: the index keeps no positions"):
        choose_signals(place(index_options=options), ["phrases"])


def test_a_query_without_known_words_has_no_phrases() -> None:
    assert Phrases(place()).clauses(asked("b a", words("b a"), root=0.0)) == []


def test_terms_share_the_idf_of_a_text() -> None:
    read = Analysed((*words("flow wing flow"), Word("title", "wing", 0, 5, 9, 6.0)), 0.0)
    assert idf_shares(read) == {"wing": 0.6, "flow": 0.4}
    assert list(idf_shares(read)) == ["wing", "flow"]
    assert idf_shares(Analysed()) == {}


def soft_terms(monkeypatch: pytest.MonkeyPatch, terms: str, own_cosine: float = 0.7) -> SoftTerms:
    found = tuple(terms.split())
    rows = np.array([one.states[0] for one in HashingEncoder().read_queries(found)], dtype=np.float16)
    table = TermTable(found, rows, own_cosine, "", {})
    monkeypatch.setattr("hybridr.search.signals.soft_terms.open_term_table", lambda *_: table)
    return SoftTerms(place())


def boost_clauses(clause: dict[str, Any]) -> dict[str, float]:
    queries = [query["terms"] for query in clause["dis_max"]["queries"]]
    return {term: query["boost"] for query in queries for term in query["text"]}


def test_near_words_count_by_how_near_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    made = soft_terms(monkeypatch, "wing wings flow basket candle")
    [clause] = made.clauses(asked("wing", words("wing")))
    boosts = boost_clauses(clause)
    assert list(boosts)[:2] == ["wing", "wings"]
    assert min(boosts.values()) > 0
    own, usual = made.table.own_cosine, made.table.usual_cosine(30)
    near = made.table.near("wing", 30)
    highest = SCALE * (own - near[-1][1]) / (own - usual)
    assert boosts["wing"] == pytest.approx(highest, abs=1e-6)
    for term, cosine in near[1:-1]:  # to the nearest level, but above nothing
        exact = SCALE * (min(cosine, own) - near[-1][1]) / (own - usual)
        assert boosts[term] == pytest.approx(exact, abs=highest / LEVELS)
    assert clause["dis_max"]["boost"] == 1, "the only word has the whole share"


def test_terms_of_one_level_are_one_query_of_each_field(monkeypatch: pytest.MonkeyPatch) -> None:
    made = soft_terms(monkeypatch, " ".join(f"wing{number}" for number in range(40)), own_cosine=0.9)
    made.fields = ("title", "text")
    [clause] = made.clauses(asked("wing1", words("wing1")))
    queries = [query["terms"] for query in clause["dis_max"]["queries"]]
    terms = [term for query in queries for term in query.get("title", ())]
    assert len(terms) == len(set(terms)) == USED
    assert len({query["boost"] for query in queries}) == len(queries) / 2 <= LEVELS
    assert leaf_clause_count(clause) == 2 * USED, "the cluster looks each of them up"


def test_no_neighbour_counts_more_than_the_word_that_was_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    made = soft_terms(monkeypatch, "wing wings flow basket candle", own_cosine=0.2)
    assert made.table.near("wing", 2)[1][1] > 0.2, "two means are nearer to each other"
    [clause] = made.clauses(asked("wing", words("wing")))
    boosts = boost_clauses(clause)
    assert boosts["wing"] == boosts["wings"] == max(boosts.values())


@pytest.mark.attack(85)
@pytest.mark.parametrize("scope", [Scope({"term": {"tenant": 1}}), Scope(routing="a")])
def test_an_alias_that_shows_a_part_gets_no_words_of_the_rest(monkeypatch, scope: Scope) -> None:
    soft_terms(monkeypatch, "wing wings flow basket candle")
    monkeypatch.setattr(storage, "MIN_TERMS", 5)
    whole = place()
    narrow = whole._replace(info=replace(whole.info, scope=scope))
    assert "soft_terms" in choose_signals(whole, ["auto"]).members
    found = choose_signals(narrow, ["auto"])
    assert "soft_terms" not in found.members
    assert "an alias that shows only a part" in found.left_out["soft_terms"]
    with pytest.raises(SettingsError, match="an alias that shows only a part"):
        choose_signals(narrow, ["soft_terms"])


def test_a_server_looks_up_the_words_of_the_table_beforehand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hybridr.search.signals.soft_terms.WARMED_AT_ONCE", 2)
    made = soft_terms(monkeypatch, "wing wings flow basket candle")
    expected = made.clauses(asked("candle", words("candle")))
    assert [made.warm() for _ in range(4)] == [True, True, False, False]
    monkeypatch.setattr(TermTable, "near", None)
    assert made.clauses(asked("candle", words("candle"))) == expected
    assert Phrases(place()).warm() is False


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hybridr.search.signals.soft_terms.CACHED_TERMS", 3)
    made = soft_terms(monkeypatch, "wing wings flow basket candle")
    for number in range(20):
        made.clauses(asked(f"t{number}", words(f"t{number}")))
        assert made.near_words.cache_info().currsize <= 3


def test_an_encoder_that_hardly_tells_words_apart_is_not_blown_up(monkeypatch: pytest.MonkeyPatch) -> None:
    made = soft_terms(monkeypatch, "wing wings flow basket candle", own_cosine=-0.5)
    assert made.scale == SCALE / MIN_SPAN


def test_a_word_that_the_table_lacks_matches_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    made = soft_terms(monkeypatch, "wing wings flow basket candle")
    [clause] = made.clauses(asked("zephyr", words("zephyr")))
    [itself] = clause["dis_max"]["queries"]
    assert itself["terms"]["text"] == ["zephyr"]
    assert itself["terms"]["boost"] > 0


def test_long_queries_ask_for_their_heaviest_words(monkeypatch: pytest.MonkeyPatch) -> None:
    made = soft_terms(monkeypatch, "wing wings flow basket candle")
    text = " ".join(f"word{number}" for number in range(200))
    assert len(made.clauses(asked(text, words(text)))) == (MAX_CLAUSES - 200) // USED


def test_soft_terms_need_a_table_and_no_token_states(monkeypatch: pytest.MonkeyPatch) -> None:
    class Bare:
        similarity = "cosine"

    blind = place()._replace(encoder=Bare())  # type: ignore[arg-type]
    assert SoftTerms.obstacle(blind) == "its encoder does not return the states of tokens"
    assert SoftTerms.obstacle(place()) == "no term table: hybridr tune docs makes one of 300 words or more"
    monkeypatch.setattr(storage, "MIN_TERMS", 6)
    made = soft_terms(monkeypatch, "wing wings flow basket candle")
    assert SoftTerms.obstacle(blind) == "the index has too few words, 5"
    monkeypatch.setattr(storage, "MIN_TERMS", 5)
    assert SoftTerms.obstacle(blind) is None
    assert SoftTerms(blind).clauses(asked("wing", words("wing"))) == made.clauses(
        asked("wing", words("wing"))
    )


def test_weights_move_from_the_words_to_the_signals() -> None:
    root = lexical_divisor(9.0)
    half = {"lexical": 0.5, "dense": 0.5}
    plain = part_weights(half, Scales(9.0, 1.0))
    assert plain == ({"lexical": pytest.approx(0.5 / root), "dense": 1.0}, {})
    both = part_weights(half, Scales(9.0, 1.0), {"phrases": 0.1, "soft_terms": 0.2})
    assert both.retrievers == {"lexical": pytest.approx(0.3 / root), "dense": 1.0}
    assert both.signals == {"phrases": pytest.approx(0.1), "soft_terms": pytest.approx(0.2)}
    vectors_alone = part_weights({"lexical": 0.0, "dense": 1.0}, Scales(9.0, 1.0), {"phrases": 0.1})
    assert vectors_alone.signals == {"phrases": 0.0}
    assert part_weights(half, Scales(0.0, 1.0), {"phrases": 0.1}).retrievers["lexical"] == 0.0


def test_a_new_file_is_a_setting_and_a_part(constant: None) -> None:
    assert SearchSettings(signals=("throwaway",)).signals == ("throwaway",)
    assert set(choose_signals(place(), ["auto"]).members) == {"phrases"}, "nobody is ranked anew by a file"
    found = choose_signals(place(), ["auto", "throwaway"])
    assert set(found.members) == {"phrases", "throwaway"}
    [parts] = found.clauses_for([asked("a1 b1", words("a1 b1"))])
    assert (parts["throwaway"].weight, parts["throwaway"].clauses) == (0.3, [{"match_all": {}}])
    with pytest.raises(SettingsError, match="'nothing'"):
        SearchSettings(signals=("nothing",))


def test_tune_tries_fewer_and_further_signals() -> None:
    assert other_signals(["phrases", "soft_terms"], []) == [("none",), ("soft_terms",), ("phrases",)]
    assert other_signals([], []) == []
    more = other_signals(["phrases", "soft_terms"], ["token_bits"])
    assert ("phrases", "soft_terms", "token_bits") in more
    assert ("phrases", "token_bits") in more


def test_what_was_learnt_takes_nothing_of_the_words_and_has_its_own_weight() -> None:
    scales, signals = Scales(9.0, 1.0), {"phrases": 0.1, "memory": 0.2}
    for weight in (0.0, 0.5, 0.8, 1.0):
        shares = {"lexical": 1 - weight, "dense": weight, "sparse": 0.3}
        plain, both = (part_weights(shares, scales, one) for one in ({"phrases": 0.1}, signals))
        assert both.retrievers == plain.retrievers
        assert both.signals == pytest.approx({**plain.signals, "memory": 0.2})
