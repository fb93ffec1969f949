"""Queries with a known answer, made from documents: evaluation without labels."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.random import Generator, default_rng
from numpy.typing import NDArray

from .lexical import STOP_WORDS, WORD, lucene_idf, singular, terms_of
from .records import Document

SENTENCE_END = re.compile(r"(?<=[.!?])\s+|(?<=[。！？])|\n\s*\n")
SENTENCE_WORDS = (4, 40)
KEYWORDS = (2, 6)
KEYWORD_POOL = 15  # the best terms of a document, from which a query's are drawn


class Probe(NamedTuple):
    """A query, how it was made ("title", "sentence" or "keywords"), and the position of its document."""

    kind: str
    text: str
    position: int


def make_probes(documents: Sequence[Document], seed: int) -> tuple[list[Probe], list[str]]:
    """Make up to three probes of every document, and the texts without what became a query.

    The title and one random sentence are taken out of the text; the keywords, 2 to 6 terms by tf-idf,
    come from what is left.
    """
    random = default_rng([seed, 2])
    idf = lucene_idf([terms_of(document.contents) for document in documents])
    probes, texts = [], []
    for position, document in enumerate(documents):
        sentence, rest = take_sentence(document.text, random)
        texts.append(rest)
        made = {
            "title": document.title if rest.strip() else "",
            "sentence": sentence,
            "keywords": draw_keywords(rest, idf, random),
        }
        probes += [Probe(kind, text.strip(), position) for kind, text in made.items() if text.strip()]
    return probes, texts


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
