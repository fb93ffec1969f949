"""The signal of token bits: which tokens of a query are compared, and what they weigh."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hybridr.cluster.record import IndexInfo, Record, meta_of
from hybridr.encoders.derived import MAX_QUERY_TOKENS, mean_as_text, pack_bits
from hybridr.indexing.terms.storage import TermTable
from hybridr.indexing.terms.terms import Analysed, Word
from hybridr.search.context import choose_signals
from hybridr.search.signals import Place, QueryReading
from hybridr.search.signals.token_bits import SCALE, TokenBits, token_weights
from support.hashing import HashingEncoder

MEAN = np.linspace(-0.5, 0.5, HashingEncoder.width, dtype=np.float32)
RECORD = Record(source="docs", token_bits=mean_as_text(MEAN))


def place(record: Record = RECORD, encoder: Any = None) -> Place:
    mappings = {"properties": {"text": {"type": "text"}}, "_meta": meta_of(record)}
    info = IndexInfo("docs", {"index.uuid": "u"}, mappings, {})
    return Place(None, info, ["text"], encoder or HashingEncoder())  # type: ignore[arg-type]


@pytest.fixture
def signal(monkeypatch: pytest.MonkeyPatch) -> TokenBits:
    monkeypatch.setattr("hybridr.search.signals.token_bits.token_state_scale", lambda _: 0.5)
    return TokenBits(place())


def asked(text: str, words: tuple[Word, ...]) -> QueryReading:
    [reading] = HashingEncoder().read_queries([text])
    return QueryReading(text, Analysed(words, 1.0), reading, 4.0)


def test_tokens_weigh_what_the_word_does_that_they_are_part_of() -> None:
    words = (
        Word("text", "flows", 0, 0, 5, 3.0),
        Word("text", "flow", 0, 0, 4, 2.0),
        Word("text", "wing", 2, 10, 14, 1.0),
    )
    spans = [(0, 2), (2, 5), (6, 9), (10, 14)]
    assert token_weights(words, spans).tolist() == [3.0, 3.0, 0.0, 1.0]
    assert token_weights((), spans).tolist() == [0.0] * 4


def test_the_clause_asks_for_the_tokens_of_words(signal: TokenBits) -> None:
    words = (Word("text", "flow", 0, 0, 4, 3.0), Word("text", "wing", 2, 13, 17, 1.0))
    one = asked("flow over the wing", (words[0], words[1]._replace(start=14, end=18)))
    [clause] = signal.clauses(one)
    params = clause["script_score"]["script"]["params"]
    assert (params["weights"], params["factor"]) == ([0.75, 0.25], pytest.approx(0.5 * SCALE))
    assert params["width"] == HashingEncoder.width
    expected = pack_bits(one.reading.states[[0, 3]], signal.mean).reshape(-1).view(">i8").tolist()
    assert params["query"] == expected


def test_a_query_without_words_of_the_index_asks_nothing(signal: TokenBits) -> None:
    assert (signal.clauses(asked("the of", ())), signal.clauses(asked("", ()))) == ([], [])


def test_long_queries_ask_for_their_heaviest_tokens(signal: TokenBits) -> None:
    text = " ".join(f"word{number}" for number in range(200))
    [clause] = signal.clauses(asked(text, (Word("text", text, 0, 0, len(text), 1.0),)))
    assert len(clause["script_score"]["script"]["params"]["weights"]) == MAX_QUERY_TOKENS


def test_it_is_left_out_with_a_word_and_by_itself() -> None:
    class Bare:
        similarity = "cosine"

    assert "does not show" in str(TokenBits.obstacle(place(encoder=Bare())))
    assert "reindex docs --token-bits" in str(TokenBits.obstacle(place(Record(source="docs"))))
    assert TokenBits.obstacle(place()) is None
    assert "token_bits" not in choose_signals(place(), ["auto"]).members


def test_bits_take_the_place_of_soft_terms_that_nobody_named(monkeypatch: pytest.MonkeyPatch) -> None:
    words = tuple(f"word{number}" for number in range(300))
    rows = np.array([one.states[0] for one in HashingEncoder().read_queries(words)], dtype=np.float16)
    table = TermTable(words, rows, 0.7, "", {})
    monkeypatch.setattr("hybridr.search.signals.soft_terms.open_term_table", lambda *_: table)
    with_bits = choose_signals(place(), ["auto", "token_bits"])
    assert set(with_bits.members) == {"phrases", "token_bits"}
    assert with_bits.left_out == {"soft_terms": "token_bits takes its place"}
    for wanted in (["all"], ["auto", "soft_terms", "token_bits"]):
        assert set(choose_signals(place(), wanted).members) == {"phrases", "soft_terms", "token_bits"}
    assert set(choose_signals(place(), ["auto"]).members) == {"phrases", "soft_terms"}
