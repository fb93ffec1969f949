"""Guess the language of documents by script and stop words, and name the OpenSearch analyser for it.

What it cannot do: tell languages apart that share a script and most of their small words (Serbian and
Macedonian, Urdu dialects, Hindi and Marathi, Malay and Indonesian), read a text of fewer than a handful of
words, or see that a collection is mixed within its documents. It knows the languages of the tables below;
another one in Latin script comes out as `und` or as its nearest relative. It is meant for choosing an
analyser and for warning before an English encoder meets other text.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable
from typing import NamedTuple

UNKNOWN = "und"
"""The code (ISO 639-2) of a language that was not recognised."""

MAX_CHARACTERS = 2_000
"""How much of each text is read."""

MIN_HITS = 2.0
"""The weight of stop words that a Latin-script text needs before it is given a language."""

SCRIPTS = {
    "latin": (r"A-Za-z\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u02af\u1e00-\u1eff", 1),
    "han": (r"\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff", 4),  # one says as much as several letters
    "kana": (r"\u3040-\u30ff\u31f0-\u31ff", 4),
    "hangul": (r"\uac00-\ud7a3\u1100-\u11ff", 3),
    "cyrillic": (r"\u0400-\u04ff", 1),
    "greek": (r"\u0370-\u03ff\u1f00-\u1fff", 1),
    "arabic": (r"\u0621-\u064a\u066e-\u06ff", 1),
    "hebrew": (r"\u05d0-\u05ea", 1),
    "devanagari": (r"\u0900-\u097f", 1),
    "bengali": (r"\u0980-\u09ff", 1),
    "tamil": (r"\u0b80-\u0bff", 1),
    "thai": (r"\u0e01-\u0e5b", 1),
    "armenian": (r"\u0530-\u058f", 1),
    "georgian": (r"\u10a0-\u10ff", 1),
}
"""Script -> (range of its characters in a regular expression, weight of one)."""

SCRIPT_LANGUAGE = {
    "han": "zh",
    "kana": "ja",
    "hangul": "ko",
    "cyrillic": "ru",
    "greek": "el",
    "arabic": "ar",
    "hebrew": "he",
    "devanagari": "hi",
    "bengali": "bn",
    "tamil": "ta",
    "thai": "th",
    "armenian": "hy",
    "georgian": "ka",
}

TELLING_LETTERS = {
    "cyrillic": {"uk": "іїєґ", "bg": "ъщ", "sr": "јљњћђ", "ru": "ыэё"},
    "arabic": {"fa": "پچژگ", "ckb": "ێۆڕڵە", "ur": "ٹڈںےہ"},
}
"""Letters that one language of a script uses and its neighbours do not, or rarely."""

STOP_WORDS = {
    "en": "the of and to in is that for it with as was on are by this be from which or an at not have has",
    "de": "der die und den das von zu mit des auf für ist im dem nicht ein eine als auch es werden aus sich",
    "fr": "le la les des et en du une un est que dans qui pour par sur au avec ne pas ce il aux plus sont",
    "es": "el la los las de en que un una por con para es se del al como más su lo pero sus fue",
    "it": "il di che la in per un è con non una del della sono da si le dei nel alla anche come gli",
    "pt": "os as de que do da em um uma para com não por dos das no na mais ao é são se foi",
    "nl": "de het een en van in is dat op te voor met zijn die niet aan er om ook als bij door naar wordt",
    "sv": "och att det som en på är av för med den till inte har de ett om var jag från kan",
    "da": "og at det er en til af på for med den der ikke som de har et om var fra blev",
    "no": "og det er en til av på for med som ikke den de har et om var fra ble også å",
    "fi": "ja on ei että se hän oli kun mutta tai joka ovat myös kuin sen niin mukaan jos jonka ole",
    "hu": "az és hogy nem egy is van ez meg de csak ki volt mint már még ha vagy azt",
    "ro": "și în de la că cu pe un nu din care pentru este mai sau fi prin sunt au",
    "cs": "se na je že do ve pro jsou jako by který také nebo od při však bylo",
    "pl": "na się nie do że jest to jak po co od za przez dla oraz są lub był które",
    "tr": "ve bir bu da de için ile olarak olan en çok daha gibi ne ya kadar sonra değil var ki",
    "id": "yang dan di dari untuk pada dengan ini dalam itu tidak adalah oleh akan atau juga ke sebagai",
    "ca": "el la els les de en que un una per amb és al del com més no es són dels aquest va ha",
    "lt": "ir į kad su yra iš tai kaip apie buvo ne bet arba taip pat nuo už jis jo per",
    "lv": "un ir ar no par kas ka uz tas kā pēc bija arī lai tiek vai gan bet līdz pie",
    "et": "ja on ei et see oli ka kui oma mis ning aga või tema ta mida selle nii kes ole",
}
"""Small frequent words; one that several languages share counts less for each. Single ASCII letters are
left out: in formulas and program texts they are names."""

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

_LETTERS = {script: re.compile(f"[{ranges}]") for script, (ranges, _) in SCRIPTS.items()}
_WORD = re.compile(r"[^\W\d_]+")
_LANGUAGES_OF: dict[str, list[str]] = {}
for _code, _words in STOP_WORDS.items():
    for _word in _words.split():
        _LANGUAGES_OF.setdefault(_word, []).append(_code)


class LanguageGuess(NamedTuple):
    """The language of most texts that could be told, and its share (0..1) among those `texts`.

    `texts` is 0 when none could be told alone.
    """

    code: str
    share: float
    texts: int


def guess_language(texts: Iterable[str]) -> LanguageGuess:
    """Let every text vote; texts too short to tell are read together when there are no others.

    The code is `und`, with share 0, when that does not tell either.
    """
    heads = [text[:MAX_CHARACTERS] for text in texts]
    votes = Counter(code for code in map(language_of, heads) if code != UNKNOWN)
    if not votes:
        code = language_of(" ".join(heads)[:MAX_CHARACTERS])
        return LanguageGuess(code, float(code != UNKNOWN), 0)
    code, most = max(votes.items(), key=lambda vote: (vote[1], vote[0]))
    total = sum(votes.values())
    return LanguageGuess(code, most / total, total)


def foreign_language(texts: Iterable[str], known: Callable[[str], bool]) -> LanguageGuess:
    """Find the language of most texts whose language is not `known`, and the share of all texts (0..1) that
    are in any such language.

    Texts that cannot be told (code, names, a few words) count among all, so they speak for nothing. Without
    foreign texts the code is `und` and the share 0.
    """
    codes = [language_of(text) for text in texts if says_something(text)]
    foreign = Counter(code for code in codes if code != UNKNOWN and not known(code))
    if not foreign:
        return LanguageGuess(UNKNOWN, 0.0, len(codes))
    return LanguageGuess(foreign.most_common(1)[0][0], foreign.total() / len(codes), len(codes))


def language_of(text: str) -> str:
    """Name the language of one text, `und` where script and stop words do not tell."""
    head = text[:MAX_CHARACTERS]
    script = script_of(head)
    if script == "latin":
        return _latin_language(head)
    if script == "han" and _LETTERS["kana"].search(head):
        return _with_kana(head)
    return _by_letters(head, script) if script in TELLING_LETTERS else SCRIPT_LANGUAGE.get(script, UNKNOWN)


def script_of(text: str) -> str:
    """Name the script that most of the text is written in; empty without letters."""
    weights = {name: len(_LETTERS[name].findall(text)) * weight for name, (_, weight) in SCRIPTS.items()}
    name = max(weights, key=lambda script: weights[script])
    return name if weights[name] else ""


def analyzer_for(code: str) -> str:
    """Name OpenSearch's built-in analyser for a language code such as `en` or `pt-BR`, else `standard`."""
    folded = code.lower().replace("_", "-")
    return ANALYZERS.get(folded) or ANALYZERS.get(folded.split("-")[0], "standard")


def is_plain(analyzer: str, text: str) -> bool:
    """Tell whether an analyser makes terms of plain letters and digits from `text`, as that for English does.

    An analyser that no language is known for is judged by the script of the text.
    """
    if analyzer in ANALYZERS.values():
        return analyzer == ANALYZERS["en"]
    return script_of(text) in ("latin", "")


def says_something(text: str) -> bool:
    """Tell whether a text has a character that can be seen; blanks and control characters cannot."""
    return any(character.isprintable() and not character.isspace() for character in text)


def _latin_language(text: str) -> str:
    hits: Counter[str] = Counter()
    for word in _WORD.findall(text.lower()):
        languages = _LANGUAGES_OF.get(word, ())
        for code in languages:
            hits[code] += 1 / len(languages)  # type: ignore[assignment]
    if not hits:
        return UNKNOWN
    code, weight = max(hits.items(), key=lambda hit: (hit[1], hit[0]))
    return code if weight >= MIN_HITS else UNKNOWN


def _with_kana(text: str) -> str:
    """Japanese mixes Han and kana; a Chinese text may quote a Japanese word."""
    kana, han = (len(_LETTERS[script].findall(text)) for script in ("kana", "han"))
    return "ja" if kana >= 0.1 * han else "zh"


def _by_letters(text: str, script: str) -> str:
    letters = Counter(text.lower())
    hits = {code: sum(letters[one] for one in own) for code, own in TELLING_LETTERS[script].items()}
    code = max(hits, key=lambda one: hits[one])
    enough = 0.005 * sum(letters[letter] for letter in letters if letter.isalpha())
    return code if hits[code] > enough else SCRIPT_LANGUAGE[script]
