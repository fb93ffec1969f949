"""Queries with a known answer, made from documents: evaluation without labels.

`make_probes` takes what became a query out of its document, for gates with a corpus of their own.
`draw_probes` leaves the documents alone, for an index that stays as it is. Both give the same queries for the
same seed.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

import numpy as np
from numpy.random import Generator, default_rng
from numpy.typing import NDArray

from .lexical import STOP_WORDS, WORD, lucene_idf, singular, terms_of
from .records import Document

SENTENCE_END = re.compile(r"(?<=[.!?])\s+|(?<=[。！？])|\n\s*\n")
SENTENCE_WORDS = (4, 40)
KEYWORDS = (2, 6)
KINDS = ("title", "sentence", "keywords", "known item")
MAP_KINDS = KINDS[:3]
KEYWORD_POOL = 15  # the best terms of a document, from which a query's are drawn


RUN_WORDS = (6, 12)  # of a known item: what somebody remembers who has read the document


class Probe(NamedTuple):
    """A query, how it was made (one of `KINDS`), and the position of its document."""

    kind: str
    text: str
    position: int


def make_probes(
    documents: Sequence[Document], seed: int, *, kinds: Sequence[str] = MAP_KINDS
) -> tuple[list[Probe], list[str]]:
    """Make up to one probe of each kind from every document, and the texts without what became a query.

    The title, one random sentence and a known item's run of words are taken out of the text; the keywords,
    2 to 6 terms by tf-idf, come from what is left.
    """
    random = default_rng([seed, 2])
    idf = lucene_idf([terms_of(document.contents) for document in documents])
    probes, texts = [], []
    for position, document in enumerate(documents):
        sentence, rest = take_sentence(document.text, random) if "sentence" in kinds else ("", document.text)
        run, rest = take_run(rest, random) if "known item" in kinds else ("", rest)
        texts.append(rest)
        made = {
            "title": document.title if rest.strip() else "",
            "sentence": sentence,
            "keywords": draw_keywords(rest, idf, random),
            "known item": run,
        }
        probes += [
            Probe(kind, made[kind].strip(), position) for kind in made if kind in kinds and made[kind].strip()
        ]
    return probes, texts


def draw_probes(
    documents: Sequence[Document], count: int, seed: int, *, kinds: Sequence[str] = MAP_KINDS
) -> list[Probe]:
    """Make about `count` probes, as many of each kind as of the others, from documents in random order.

    A document gives at most one probe of a kind. What one kind cannot give (few titles, short texts) the
    others give, while there are documents for it.
    """
    random = default_rng([seed, 5])
    idf = lucene_idf([terms_of(document.contents) for document in documents])
    makers: dict[str, Callable[[Document], str]] = {
        "title": lambda document: document.title,
        "sentence": lambda document: random_sentence(document.text, random),
        "keywords": lambda document: draw_keywords(document.contents, idf, random),
        "known item": lambda document: take_run(document.text, random)[0],
    }
    probes: list[Probe] = []
    # The rarest kind comes first, so that the others know how much is left for them.
    for number, kind in enumerate(kinds):
        share = (count - len(probes)) // (len(kinds) - number)
        order = random.permutation(len(documents))
        made = ((makers[kind](documents[i]).strip(), int(i)) for i in order)
        probes += [Probe(kind, text, i) for text, i in islice((one for one in made if one[0]), share)]
    return probes


def random_sentence(text: str, random: Generator) -> str:
    """Give a random sentence of 4 to 40 words; the first words of a text without one."""
    fitting = [part for part in SENTENCE_END.split(text) if part and fits(part)]
    return str(random.choice(fitting)) if fitting else " ".join(text.split()[: SENTENCE_WORDS[1]])


def take_run(text: str, random: Generator) -> tuple[str, str]:
    """Take 6 to 12 words that follow each other out of a text of at least 12; empty for a shorter one."""
    words = text.split()
    least, most = RUN_WORDS
    if len(words) < 2 * least:
        return "", text
    size = int(random.integers(least, min(most, len(words) - least) + 1))
    start = int(random.integers(0, len(words) - size + 1))
    return " ".join(words[start : start + size]), " ".join(words[:start] + words[start + size :])


def take_sentence(text: str, random: Generator) -> tuple[str, str]:
    """Take a random sentence of 4 to 40 words out of a text that has others; empty when there is none."""
    parts = [part for part in SENTENCE_END.split(text) if part and part.strip()]
    fitting = [i for i, part in enumerate(parts) if fits(part)]
    if len(parts) < 2 or not fitting:
        return "", text
    chosen = int(random.choice(fitting))
    return parts[chosen], " ".join(parts[:chosen] + parts[chosen + 1 :])


def fits(sentence: str) -> bool:
    """Tell whether a sentence is long enough to be meant, and short enough for a query."""
    least, most = SENTENCE_WORDS
    return least <= len(terms_of(sentence)) and len(sentence.split()) <= most


def draw_keywords(text: str, idf: Mapping[str, float], random: Generator) -> str:
    """Draw 2 to 6 of a text's best words by tf-idf; empty when it has fewer than 2."""
    counts = Counter(word for word in WORD.findall(text.lower()) if word not in STOP_WORDS)
    weight = {word: (1 + math.log(n)) * idf.get(singular(word), 0.0) for word, n in counts.items()}
    pool = sorted(weight, key=lambda word: (-weight[word], word))[:KEYWORD_POOL]
    if len(pool) < KEYWORDS[0]:
        return ""
    size = min(int(random.integers(KEYWORDS[0], KEYWORDS[1] + 1)), len(pool))
    chances = np.array([weight[word] + 1e-9 for word in pool])
    return " ".join(random.choice(pool, size, replace=False, p=chances / chances.sum()))


def ndcg(probes: Sequence[Probe], scores: NDArray[np.floating]) -> float:
    """Average nDCG@10 of the probes' own documents by `scores` `(probes, documents)`, best highest."""
    best = np.argsort(-scores, axis=1, kind="stable")[:, :10]
    return float(np.mean([gain(list(row), probe.position) for row, probe in zip(best, probes, strict=True)]))


def gain(found: Sequence[object], answer: object) -> float:
    """nDCG@10 with one relevant document: 1 / log2(rank + 1)."""
    return float(1 / np.log2(found.index(answer) + 2)) if answer in found[:10] else 0.0
