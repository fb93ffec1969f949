"""Words as Lucene counts them; the language of documents, by py3langid, and the OpenSearch analyser for it.

Texts of a few words, program code, formulas and names are not recognised. Similar languages, such as Malay
and Indonesian, or Sorani and Uyghur, are confused. This is good enough to choose an analyser, and to warn
before an English encoder encodes other text.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from .errors import DownloadError
from .files.local import cache_folder, child_path
from .files.staging import staged_folder

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
"""Letters of Chinese, Japanese and Korean; each carries as much information as several Latin letters."""
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
"""Language -> built-in analyser of the module analysis-common, which has none for Polish, Hebrew and
others."""

MIN_CONFIDENCE = 0.5
"""Below this confidence the language counts as unknown, since py3langid mistakes product names for German."""

ARRAYS = ("weights", "prior", "labels", "moves", "rows", "features")


class LanguageGuess(NamedTuple):
    """The most frequent language, and its share (0..1) of the `texts` whose language was recognised.

    `texts` is 0 if no single text was recognised.
    """

    code: str
    share: float
    texts: int


def guess_language(texts: Iterable[str]) -> LanguageGuess:
    """Return the most frequent language, with its share of the texts whose language was recognised.

    If no text is recognised, all are read as one text; the share is then 1, or 0 for `und`, and `texts` is 0.
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
    """Return the most frequent foreign language (`is_known` says no), and the share (0..1) of all texts that
    are in any foreign language.

    Texts that are not recognised (code, names, a few words) count among all texts, but not as foreign.
    Without foreign texts the code is `und` and the share 0.
    """
    codes = [language_of(text) for text in texts if has_visible_text(text)]
    foreign = Counter(code for code in codes if code != UNKNOWN and not is_known(code))
    if not foreign:
        return LanguageGuess(UNKNOWN, 0.0, len(codes))
    return LanguageGuess(foreign.most_common(1)[0][0], foreign.total() / len(codes), len(codes))


def language_of(text: str) -> str:
    """Return the language code of one text; `und` if it is not recognised."""
    code: str = identifier().classify(text[:MAX_CHARACTERS])[0]
    return code


@cache
def identifier() -> Any:
    """Return py3langid's identifier, limited to languages with a two-letter code.

    The others are mostly dialects that it confuses with large languages, such as Wu with Chinese. The model
    is kept unpacked in the cache (60 MB), since unpacking it takes half a second, too long for every search;
    a search reads only the few pages that its query needs. If the cache cannot be written, the model is
    unpacked in memory only.
    """
    from py3langid import __version__
    from py3langid.langid import LanguageIdentifier

    folder = child_path(cache_folder(), f"languages-{__version__}")
    try:
        model = {name: np.load(child_path(folder, f"{name}.npy"), mmap_mode="r") for name in ARRAYS}
    except (OSError, ValueError):  # missing or damaged
        model = unpacked_model()
        with suppress(DownloadError), staged_folder(folder) as new_folder:
            for name, array in model.items():
                np.save(child_path(new_folder, f"{name}.npy"), array)
    return LanguageIdentifier(
        model["weights"],
        model["prior"],
        model["labels"].tolist(),
        memoryview(model["moves"]),
        model["features"].tolist(),
        tk_row=model["rows"].tolist(),
        norm_probs=True,
        min_confidence=MIN_CONFIDENCE,
    )


def unpacked_model() -> dict[str, Any]:
    """Return the arrays of py3langid's model, with the weights as (features, languages)."""
    from py3langid.langid import MODEL_DIR, MODEL_FILE
    from py3langid.modelio import load_model

    weights, prior, labels, moves, rows, features = load_model(MODEL_DIR / MODEL_FILE)
    columns = [column for column, label in enumerate(labels) if len(label) == 2]
    arrays = (
        np.ascontiguousarray(weights[:, columns]),
        prior[columns],
        np.array([labels[column] for column in columns]),
        np.asarray(moves),
        np.asarray(rows),
        np.array(features, dtype=np.int32),
    )
    return dict(zip(ARRAYS, arrays, strict=True))


def analyzer_for(code: str) -> str:
    """Return OpenSearch's built-in analyser for a language code such as `en` or `pt-BR`, else "standard"."""
    folded = code.lower().replace("_", "-")
    return ANALYZERS.get(folded) or ANALYZERS.get(folded.split("-")[0], "standard")


def makes_latin_terms(analyzer: str, text: str) -> bool:
    """Return whether an analyser makes terms of Latin letters and digits from `text`, as English does.

    If the analyser belongs to no language, this is so if most letters are Latin and none is Chinese, Japanese
    or Korean.
    """
    if analyzer in ANALYZERS.values():
        return analyzer == ANALYZERS["en"]
    letters = sum(map(str.isalpha, text))
    return not letters or (2 * len(LATIN.findall(text)) > letters and not WIDE.search(text))


def has_visible_text(text: str) -> bool:
    """Return whether a text has a visible character; blanks and control characters are not visible."""
    return any(character.isprintable() and not character.isspace() for character in text)


def idf(containing: float, documents: float) -> float:
    """Return Lucene's idf of a term that `containing` of the `documents` contain."""
    return math.log(1 + (documents - containing + 0.5) / (containing + 0.5))


def without_tags(text: str) -> str:
    """Return a text on one line without its HTML tags; other angle brackets stay."""
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
    """Return the words number `start` to `end - 1` of a text, on one line."""
    words = list(WORD.finditer(text))[start:end]
    return " ".join(text[words[0].start() : words[-1].end()].split()) if words else ""
