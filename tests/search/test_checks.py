"""What a search is asked for is checked: the language of a query against those of the encoder."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from hybridr.encoders.contract import Offers
from hybridr.search.checks import language_remark


def knowing(*languages: str) -> Any:
    return SimpleNamespace(offers=Offers(languages=languages))


@pytest.mark.parametrize(
    ("text", "languages"),
    [
        ("how do vaccines work", ("zh",)),
        ("Wie funktionieren Impfungen gegen Viren", ("zh",)),
        ("Wie funktionieren Impfungen gegen Viren", ("en",)),
        ("疫苗是怎么起作用的", ("en",)),
    ],
)
def test_a_query_in_a_language_that_the_encoder_does_not_know_is_told(text, languages):
    assert f"the encoder knows {languages[0]}: its vectors say little" in language_remark(
        text, knowing(*languages)
    )


@pytest.mark.parametrize(
    ("text", "languages"),
    [
        ("疫苗是怎么起作用的", ("zh",)),
        ("iPhone 13 手机壳", ("zh",)),
        ("gnomeopen", ("zh",)),
        ("covid-19", ("zh",)),
        ("how do vaccines work", ("en",)),
        ("Wie funktionieren Impfungen gegen Viren", ("multilingual",)),
        ("Wie funktionieren Impfungen gegen Viren", ()),
    ],
)
def test_no_other_query_is(text: str, languages: tuple[str, ...]) -> None:
    assert language_remark(text, knowing(*languages)) == ""
    assert language_remark(text, None) == ""
