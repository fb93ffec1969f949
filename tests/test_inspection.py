"""Measuring texts, without a cluster."""

from __future__ import annotations

from pathlib import Path

import pytest

from hybridr.encoding.folder import FolderTokens
from hybridr.errors import ModelError
from hybridr.inspection import Inspection, Lengths, advice, measure
from hybridr.languages import LanguageGuess


def test_lengths_in_words_and_in_tokens() -> None:
    some = ["one", "one two", "one two three", "one two three four"]

    class Letters:
        max_tokens = 13

        def count_tokens(self, texts):
            return [len(text) for text in texts]

    assert measure(some, None) == Lengths("words", 3, 3)
    assert measure(some, Letters()) == Lengths("tokens", 13, 13, 13, 0.25, (18 - 13) / (3 + 7 + 13 + 18))
    assert measure([], Letters()) == Lengths("tokens", 0, 0, 13, 0.0, 0.0)


def test_a_folder_without_a_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"has no tokenizer\.json"):
        FolderTokens(tmp_path)


def found(**changes) -> Inspection:
    report = {
        "index": "books",
        "documents": 10,
        "sampled": 10,
        "shards": 1,
        "fields": (),
        "text_fields": ("body",),
        "lengths": Lengths("tokens", 50, 90, 256, 0.0),
        "language": LanguageGuess("en", 1.0, 10),
        "analyzer": "english",
        "duplicates": 0.0,
        "empty": 0.0,
        "advice": (),
    }
    return Inspection(**{**report, **changes})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"lengths": Lengths("tokens", 50, 90, 256, 0.3)}, "30% of the texts are longer than the 256 tokens"),
        ({"lengths": Lengths("tokens", 50, 90, 256, 0.1, 0.4)}, "40% of all tokens are found by words only"),
        ({"duplicates": 0.2}, "20% of the texts repeat another one"),
        ({"empty": 0.5}, "50% of the documents have no text"),
        ({"language": LanguageGuess("de", 1.0, 9), "analyzer": "german"}, "knows English only"),
        ({"language": LanguageGuess("und", 0.0, 0), "analyzer": "standard"}, "could not be told"),
    ],
)
def test_advice_names_what_matters(changes: dict, words: str) -> None:
    assert advice(found()) == []
    (said,) = advice(found(**changes))
    assert words in said
