"""Words as Lucene counts them; the language of documents, by py3langid, and the OpenSearch analyser for it.

What cannot be recognised: a text of a few words, program code, formulas, names. Neighbours such as Malay and
Indonesian, or Sorani and Uyghur, are taken for each other. It is meant for choosing an analyser and for
warning before an English encoder meets other text.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable
from typing import NamedTuple

from .files.language_identifier import identifier

STOP_WORDS = frozenset(
    "a an and are as at be but by for if in into is it no not of on or such that the their then there these "
    "they this to was will with".split()
)
"""Lucene's English stop words."""
TAG = re.compile(
    r"</?(?:a|abbr|b|blockquote|br|code|div|em|h[1-6]|hr|i|img|li|ol|p|pre|span|strong|table|tbody|td|th|thead|"
    r"tr|u|ul)(?:\s[^<>]*|/)?>",
    re.IGNORECASE,
)

UNKNOWN = "und"
"""The code (ISO 639-2) of a language that was not recognised."""

MAX_CHARACTERS = 2_000
"""Characters of a text that are read."""

LATIN = re.compile(r"[A-Za-z\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u02af\u1e00-\u1eff]")
WIDE = re.compile(
    r"[\u1100-\u11ff\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7a3\uf900-\ufaff]"
)
"""Letters of Chinese, Japanese and Korean: each says as much as several Latin ones."""
WORD = re.compile(rf"{WIDE.pattern}{{1,2}}|(?:(?!{WIDE.pattern})\S)+")
"""A word between blanks, or two characters of a script without blanks."""
MIDDLE_WORDS = 5

ANALYZERS = {
    "ar": "arabic",
    "bg": "bulgarian",
    "bn": "bengali",
    "ca": "catalan",
    "ckb": "sorani",
    "cs": "czech",
    "da": "danish",
    "de": "german",
    "el": "greek",
    "en": "english",
    "es": "spanish",
    "et": "estonian",
    "eu": "basque",
    "fa": "persian",
    "fi": "finnish",
    "fr": "french",
    "ga": "irish",
    "gl": "galician",
    "hi": "hindi",
    "hu": "hungarian",
    "hy": "armenian",
    "id": "indonesian",
    "it": "italian",
    "ja": "cjk",
    "ko": "cjk",
    "lt": "lithuanian",
    "lv": "latvian",
    "nb": "norwegian",
    "nl": "dutch",
    "nn": "norwegian",
    "no": "norwegian",
    "pt": "portuguese",
    "pt-br": "brazilian",
    "ro": "romanian",
    "ru": "russian",
    "sv": "swedish",
    "th": "thai",
    "tr": "turkish",
    "zh": "cjk",
}
"""Language -> the built-in analyser of the module analysis-common; Polish, Hebrew and others have none."""


class LanguageGuess(NamedTuple):
    """The language of most texts that could be told, and its share (0..1) among those `texts`.

    `texts` is 0 when none could be told alone.
    """

    code: str
    share: float
    texts: int


def guess_language(texts: Iterable[str]) -> LanguageGuess:
    """Return the language of most texts, with its share of the texts whose language is known.

    Where none is known all are read as one text: share 1, or 0 with `und`, of 0 texts.
    """
    heads = [text[:MAX_CHARACTERS] for text in texts]
    votes = Counter(code for code in map(language_of, heads) if code != UNKNOWN)
    if not votes:
        code = language_of(" ".join(heads)[:MAX_CHARACTERS])
        return LanguageGuess(code, float(code != UNKNOWN), 0)
    code, count = max(votes.items(), key=lambda vote: (vote[1], vote[0]))
    total = sum(votes.values())
    return LanguageGuess(code, count / total, total)


def foreign_language(texts: Iterable[str], is_known: Callable[[str], bool]) -> LanguageGuess:
    """Find the language of most texts whose language is not `known`, and the share of all texts (0..1) that
    are in any such language.

    Texts that cannot be told (code, names, a few words) count among all, so they speak for nothing. Without
    foreign texts the code is `und` and the share 0.
    """
    codes = [language_of(text) for text in texts if has_visible_text(text)]
    foreign = Counter(code for code in codes if code != UNKNOWN and not is_known(code))
    if not foreign:
        return LanguageGuess(UNKNOWN, 0.0, len(codes))
    return LanguageGuess(foreign.most_common(1)[0][0], foreign.total() / len(codes), len(codes))


def language_of(text: str) -> str:
    """Return the language of one text, `und` where it cannot be told."""
    code: str = identifier().classify(text[:MAX_CHARACTERS])[0]
    return code


def analyzer_for(code: str) -> str:
    """Name OpenSearch's built-in analyser for a language code such as `en` or `pt-BR`, else `standard`."""
    folded = code.lower().replace("_", "-")
    return ANALYZERS.get(folded) or ANALYZERS.get(folded.split("-")[0], "standard")


def makes_latin_terms(analyzer: str, text: str) -> bool:
    """Whether an analyser makes terms of plain letters and digits from `text`, as that for English does.

    For an analyser of an unknown language the letters of the text decide.
    """
    if analyzer in ANALYZERS.values():
        return analyzer == ANALYZERS["en"]
    letters = sum(map(str.isalpha, text))
    return not letters or (2 * len(LATIN.findall(text)) > letters and not WIDE.search(text))


def has_visible_text(text: str) -> bool:
    """Whether a text has a character that can be seen; blanks and control characters cannot."""
    return any(character.isprintable() and not character.isspace() for character in text)


def idf(containing: float, documents: float) -> float:
    """Return the idf of a term that so many documents contain."""
    return math.log(1 + (documents - containing + 0.5) / (containing + 0.5))


def without_tags(text: str) -> str:
    """Return a text on one line without its tags; other angle brackets stay."""
    return " ".join(TAG.sub(" ", text).split())


def word_count(text: str) -> int:
    """Count the words of a text; of a script without spaces two characters count as a word."""
    return len(WORD.findall(text))


def first_words(text: str, length: int) -> str:
    """Return the first words of a text, counted as in `word_count`."""
    return words_between(text, 0, length)


def middle_words(text: str, length: int = MIDDLE_WORDS) -> str:
    """Return a few words from the middle of a text: a query that its document answers."""
    start = max(0, (word_count(text) - length) // 2)
    return words_between(text, start, start + length)


def words_between(text: str, start: int, end: int) -> str:
    """Return the words of a text from place `start` to before `end`, on one line."""
    words = list(WORD.finditer(text))[start:end]
    return " ".join(text[words[0].start() : words[-1].end()].split()) if words else ""
