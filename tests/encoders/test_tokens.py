from __future__ import annotations

import time

import pytest

from hybridr.encoders.tokens import CHARACTERS_A_TOKEN, TextTokenizer, batches, pad_rows
from support.tiny import tiny_retriever


def test_batches_hold_every_position_once_within_the_budget() -> None:
    found = [list(batch) for batch in batches([5, 300, 7, 7, 120, 3, 90, 90, 2], budget=200)]
    assert sorted(sum(found, [])) == list(range(9))
    assert found == [[8, 5, 0, 2, 3], [6, 7], [4], [1]]  # 5 x 7, 2 x 90, 1 x 120, and one over the budget
    assert list(batches([], budget=10)) == []


def test_padding_is_masked() -> None:
    ids, mask = pad_rows([[2, 9, 3], [2, 3]])
    assert ids.tolist() == [[2, 9, 3], [2, 3, 0]]
    assert mask.tolist() == [[1, 1, 1], [1, 1, 0]]


@pytest.mark.attack(43)
def test_43_a_tokenizer_is_given_what_it_may_use_of_a_text() -> None:
    tokenizer: TextTokenizer = tiny_retriever().tokenizer
    short = "kolan misot tudur " * 300
    long = short * 1000
    for read in (tokenizer.ids, lambda texts, limit: (one.ids for one in tokenizer.read(texts, limit, 0))):
        took = {}
        for text in (short, short, long):
            started = time.perf_counter()
            (ids,) = read([text], 256)
            took[text] = time.perf_counter() - started
            assert len(ids) == 256
        assert took[long] < took[short] + 0.15, "5 MB against 5 kB"
    assert tokenizer.spans(long, 64) == tokenizer.spans(long[: 64 * CHARACTERS_A_TOKEN], 64)
    (whole,) = tokenizer.ids([short], None)
    assert len(whole) > 256, "what is not cut is read to its end"
