"""Measuring texts, without a cluster."""

from __future__ import annotations

from pathlib import Path

import pytest

from hybridr.doctor.inspection import Inspection, Lengths, Markup, advice, html_markup, text_lengths
from hybridr.encoders.opening import FolderTokens
from hybridr.errors import ModelError
from hybridr.languages import LanguageGuess


def test_lengths_in_words_and_in_tokens() -> None:
    some = ["one", "one two", "one two three", "one two three four"]

    class Letters:
        max_tokens = 13

        def count_tokens(self, texts):
            return [len(text) for text in texts]

    assert text_lengths(some, None) == Lengths("words", 3, 3)
    assert text_lengths(some, Letters()) == Lengths("tokens", 13, 13, 13, 0.25, (18 - 13) / (3 + 7 + 13 + 18))
    assert text_lengths([], Letters()) == Lengths("tokens", 0, 0, 13, 0.0, 0.0)


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
        "lexical_fields": ("body",),
        "lengths": Lengths("tokens", 50, 90, 256, 0.0),
        "language": LanguageGuess("en", 1.0, 10),
        "analyzer": "english",
        "duplicates": 0.0,
        "empty": 0.0,
        "markup": Markup(0.05, Lengths("tokens", 40, 80, 256, 0.0)),
        "advice": (),
    }
    return Inspection(**{**report, **changes})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"lengths": Lengths("tokens", 50, 90, 256, 0.3)}, "30% of the texts are longer than the 256 tokens"),
        ({"lengths": Lengths("tokens", 50, 90, 256, 0.1, 0.4)}, "40% of all tokens are found by words only"),
        ({"duplicates": 0.2}, "20% of the texts repeat another one"),
        ({"lexical_fields": ()}, "name the field to search in [search] lexical_fields"),
        ({"empty": 0.5}, "50% of the documents have no text"),
        (
            {"markup": Markup(0.9, Lengths("tokens", 30, 60, 256, 0.01))},
            "90% of the texts contain HTML, whose tags the encoder reads as words: without tags the median "
            "is 30 tokens, 1.0% over the limit",
        ),
        ({"language": LanguageGuess("de", 1.0, 9), "analyzer": "german"}, "the encoder knows en only"),
        ({"language": LanguageGuess("und", 0.0, 0), "analyzer": "standard"}, "could not be detected"),
    ],
)
def test_advice_names_what_matters(changes: dict, words: str) -> None:
    assert advice(found()) == []
    assert advice(found(language=LanguageGuess("de", 1.0, 9), analyzer="german"), ("en", "de")) == []
    (said,) = advice(found(**changes))
    assert words in said


def test_tags_are_told_from_code() -> None:
    texts = ['<div class="body"><p>two words<br/>', "List<String> of a < b and c > d", "none"]
    assert html_markup(texts, None) == Markup(1 / 3, Lengths("words", 2, 2))
    assert html_markup(texts[1:], None) == Markup(0.0)
    assert html_markup([], None) == Markup(0.0)


def test_snippets_are_shown_without_tags() -> None:
    from hybridr_cli.commands.search import starred

    assert starred("&lt;p class=&quot;x&quot;&gt;one <em>two</em>&lt;/p&gt; a &lt; b") == "one *two* a < b"
