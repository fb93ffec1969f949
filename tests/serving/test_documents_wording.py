"""What a model reads never exceeds its bound, whatever comes in."""

from __future__ import annotations

from operator import mul

from hypothesis import given
from hypothesis import strategies as st

from hybridr.serving.agents.agents import hits_as_text
from hybridr.serving.agents.documents import (
    ANSWER_BYTES,
    LONGEST_OF_HIT,
    as_much_as_fits,
    bytes_in,
    cut_to_limit,
    plain_text,
)

ANY = st.builds(mul, st.text(max_size=60), st.integers(0, 50))
LONG = st.builds(mul, st.text(max_size=100), st.integers(0, 200))
HIT = st.fixed_dictionaries(
    {"doc_id": st.text(min_size=1, max_size=512), "score": st.floats(0, 1e12), "text": ANY},
    optional={"confidence": st.floats(0, 1), "rule": st.text(max_size=100)},
)


@given(st.lists(HIT, max_size=8), st.integers(1, 7), st.integers(0, 1000), LONG)
def test_hits_keep_to_the_bound_and_say_how_to_go_on(hits, k, offset, warning) -> None:
    ranked = [{**hit, "rank": offset + rank} for rank, hit in enumerate(hits, 1)]
    said = cut_to_limit(hits_as_text({"hits": ranked, "warning": warning[:1_000]}, k, offset))
    assert bytes_in(said) <= ANSWER_BYTES
    shown = said.count("\n| ")
    if hits:
        assert 1 <= shown <= k
        assert ("offset=" in said) == (shown < len(hits))
        assert f"offset={offset + shown}" in said or shown == len(hits)


@given(LONG)
def test_any_text_is_cut_to_the_bound(text: str) -> None:
    assert bytes_in(cut_to_limit(text)) <= ANSWER_BYTES
    said, _ = as_much_as_fits("head", [text])
    assert bytes_in(said) <= ANSWER_BYTES


@given(ANY)
def test_nothing_is_left_that_a_terminal_obeys(text: str) -> None:
    assert plain_text(text).isprintable() or all(31 < ord(c) < 127 or ord(c) > 159 for c in plain_text(text))


def test_a_passage_is_short() -> None:
    said = hits_as_text(
        {"hits": [{"rank": 1, "doc_id": "a", "score": 1.0, "text": "<em>x</em> &lt; " * 500}]}, 1, 0
    )
    [passage] = [line for line in said.splitlines() if line.startswith("| ")]
    assert len(passage) <= LONGEST_OF_HIT + 2
    assert "<em>" not in passage
