"""Comparison of rankings without judgements: known-item queries made from documents ("probes"), BM25 in this
process, and overlap of rankings.
"""

from __future__ import annotations

import math
import re
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.random import Generator, default_rng
from numpy.typing import NDArray

from ..languages import STOP_WORDS, first_words, idf, word_count
from ..records import Document
from .significance import paired_t

WORD = re.compile(r"[^\W_]+")
UNSPACED = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]+")


class Bm25:
    """A BM25 index of `texts` with Lucene's idf, which is never negative (OpenSearch's defaults).

    Scores include the factor `gain`, k1 + 1, which Lucene leaves out since 8.0.
    """

    def __init__(self, texts: Sequence[str], *, k1: float = 1.2, b: float = 0.75) -> None:
        from rank_bm25 import BM25Okapi  # imported here, because `terms_of` does not need it

        terms = [terms_of(text) or [""] for text in texts]
        index = BM25Okapi(terms, k1=k1, b=b)
        self.idf: dict[str, float] = lucene_idf(terms)
        self._texts = len(terms)
        self._damped = k1 * (1 - b + b * np.asarray(index.doc_len) / index.avgdl)
        self.gain = k1 + 1
        lists: dict[str, tuple[array[int], array[int]]] = {}
        for position, frequencies in enumerate(index.doc_freqs):
            for term, count in frequencies.items():
                places, counts = lists.setdefault(term, (array("i"), array("i")))
                places.append(position)
                counts.append(count)
        self._postings = {
            term: (np.asarray(places), np.asarray(counts)) for term, (places, counts) in lists.items()
        }

    def scores(self, query: str) -> NDArray[np.float64]:
        """Return the BM25 score `(texts,)` of every text for a query; 0 if it has none of its terms."""
        result: NDArray[np.float64] = np.zeros(self._texts)
        for term in terms_of(query):
            if term in self.idf:
                documents, counts = self._postings[term]
                result[documents] += self.idf[term] * (
                    counts * self.gain / (counts + self._damped[documents])
                )
        return result

    def idf_sum(self, query: str) -> float:
        """Return the sum of the idf of a query's different terms."""
        return sum(self.idf.get(term, 0.0) for term in set(terms_of(query)))

    def search(self, query: str, k: int) -> dict[str, float]:
        """Return the `k` best texts for a query: position (as a string) -> score, best first."""
        return best_scores(self.scores(query), k)


def best_scores(scores: NDArray[np.floating], k: int) -> dict[str, float]:
    """Return position (as a string) -> score of the `k` best scores above zero, best first."""
    k = min(k, len(scores))
    rows = np.argpartition(-scores, k - 1)[:k] if k else np.array([], dtype=np.int64)
    ordered = rows[np.lexsort((rows, -scores[rows]))]
    return {str(position): float(scores[position]) for position in ordered if scores[position] > 0}


def lucene_idf(documents: Sequence[Sequence[str]]) -> dict[str, float]:
    """Return term -> idf, ln(1 + (N - n + 0.5) / (n + 0.5)) as in Lucene's BM25Similarity."""
    containing = Counter(term for terms in documents for term in set(terms))
    return {term: idf(n, len(documents)) for term, n in containing.items()}


def terms_of(text: str) -> list[str]:
    """Return a text's terms: lower case, no stop words or plural endings; Chinese as character pairs."""
    words = WORD.findall(text.lower())
    return [term for word in words if word not in STOP_WORDS for term in term_parts(word)]


def term_parts(word: str) -> list[str]:
    """Return the singular of a word, or its character pairs in an unspaced script (Chinese, Japanese)."""
    if not UNSPACED.fullmatch(word):
        return [singular(word)]
    return [word[i : i + 2] for i in range(len(word) - 1)] or [word]


def singular(word: str) -> str:
    """Return an English word without its plural ending (the S-stemmer, Harman 1991)."""
    if word.endswith("ies") and not word.endswith(("eies", "aies")):
        return word[:-3] + "y"
    if word.endswith("es") and not word.endswith(("aes", "ees", "oes")):
        return word[:-1]
    if word.endswith("s") and not word.endswith(("us", "ss")):
        return word[:-1]
    return word


SENTENCE_END = re.compile(r"(?<=[.!?])\s+|(?<=[。！？])|\n\s*\n")
SENTENCE_WORDS = (4, 40)
KEYWORD_COUNT = (2, 6)
KINDS = ("title", "sentence", "keywords")
KEYWORD_POOL = 15  # the best terms of a document, from which a query's are drawn
TOP, LEXICAL_TOP = 10, 20
OVERLAP_LOSS = 0.02  # of the dense top 10 in the BM25 top 20, and significant
MIN_KEPT_SHARE = 0.85  # share of the fused top 10 that must stay
RANKING_LOSS = 0.05  # nDCG@10; smaller differences on probes mean nothing
SIGNIFICANT = 0.05
RankedIds: TypeAlias = Sequence[str]
"""Document ids of one query, best first."""


class Probe(NamedTuple):
    """A query made from a document: how (one of `KINDS`), its text, and the position of the document."""

    kind: str
    text: str
    position: int


def make_probes(documents: Sequence[Document], seed: int) -> tuple[list[Probe], list[str]]:
    """Make up to one probe of each kind from every document; return the probes and the texts that are left.

    The title and one random sentence are taken out of the text; the keywords, 2 to 6 terms by tf-idf, come
    from what is left.
    """
    random = default_rng([seed, 2])
    term_idf = lucene_idf([terms_of(document.contents) for document in documents])
    probes, texts = [], []
    for position, document in enumerate(documents):
        sentence, rest = take_sentence(document.text, random)
        texts.append(rest)
        makers = {
            "title": document.title if rest.strip() else "",
            "sentence": sentence,
            "keywords": draw_keywords(rest, term_idf, random),
        }
        probes += [Probe(kind, text.strip(), position) for kind, text in makers.items() if text.strip()]
    return probes, texts


def draw_probes(documents: Sequence[Document], count: int, seed: int) -> list[Probe]:
    """Make about `count` probes in equal numbers of each kind, from documents in random order.

    A document gives at most one probe of a kind. If one kind gives too few (few titles, short texts), the
    others give more.
    """
    random = default_rng([seed, 5])
    term_idf = lucene_idf([terms_of(document.contents) for document in documents])
    makers: dict[str, Callable[[Document], str]] = {
        "title": lambda document: document.title,
        "sentence": lambda document: random_sentence(document.text, random),
        "keywords": lambda document: draw_keywords(document.contents, term_idf, random),
    }
    probes: list[Probe] = []
    # The rarest kind comes first, so that the others know how much is left for them.
    for number, kind in enumerate(KINDS):
        share = (count - len(probes)) // (len(KINDS) - number)
        order = random.permutation(len(documents))
        drafts = ((makers[kind](documents[i]).strip(), int(i)) for i in order)
        probes += [Probe(kind, text, i) for text, i in islice((draft for draft in drafts if draft[0]), share)]
    return probes


def random_sentence(text: str, random: Generator) -> str:
    """Return a random sentence of 4 to 40 words; the first words of a text without one."""
    sentences = [part for part in SENTENCE_END.split(text) if part and is_query_length(part)]
    return str(random.choice(sentences)) if sentences else first_words(text, SENTENCE_WORDS[1])


def take_sentence(text: str, random: Generator) -> tuple[str, str]:
    """Return a random sentence of 4 to 40 words and the text without it; ("", text) if there is none to
    take.
    """
    parts = [part for part in SENTENCE_END.split(text) if part and part.strip()]
    positions = [i for i, part in enumerate(parts) if is_query_length(part)]
    if len(parts) < 2 or not positions:
        return "", text
    index = int(random.choice(positions))
    return parts[index], " ".join(parts[:index] + parts[index + 1 :])


def is_query_length(sentence: str) -> bool:
    """Return whether a sentence is as long as a query: at least 4 terms, at most 40 words."""
    fewest, longest = SENTENCE_WORDS
    return fewest <= len(terms_of(sentence)) and word_count(sentence) <= longest


def draw_keywords(text: str, term_idf: Mapping[str, float], random: Generator) -> str:
    """Return 2 to 6 of the 15 best words of a text, drawn with probabilities in proportion to tf-idf.

    Words of unspaced scripts are character pairs. Empty if the text has fewer than 2 words.
    """
    runs = (run for run in WORD.findall(text.lower()) if run not in STOP_WORDS)
    counts = Counter(
        chain.from_iterable(term_parts(run) if UNSPACED.fullmatch(run) else [run] for run in runs)
    )
    # tf-idf: (1 + ln tf) idf
    weight = {word: (1 + math.log(n)) * term_idf.get(singular(word), 0.0) for word, n in counts.items()}
    pool = sorted(weight, key=lambda word: (-weight[word], word))[:KEYWORD_POOL]
    if len(pool) < KEYWORD_COUNT[0]:
        return ""
    size = min(int(random.integers(KEYWORD_COUNT[0], KEYWORD_COUNT[1] + 1)), len(pool))
    chances = np.array([weight[word] + 1e-9 for word in pool])
    return " ".join(random.choice(pool, size, replace=False, p=chances / chances.sum()))


def ndcg(probes: Sequence[Probe], scores: NDArray[np.floating]) -> float:
    """Return the mean nDCG@10 of the probes' own documents by `scores` `(probes, documents)`."""
    rankings = np.argsort(-scores, axis=1, kind="stable")[:, :10].tolist()
    return float(own_document_ndcg(rankings, [probe.position for probe in probes]).mean())


def single_answer_ndcg(ranking: Sequence[object], answer: object) -> float:
    """Return nDCG@10 of a ranking with one relevant document: 1 / log2(rank + 1), 0 below rank 10."""
    return float(1 / np.log2(ranking.index(answer) + 2)) if answer in ranking[:10] else 0.0


@dataclass(frozen=True)
class Rankings:
    """The rankings of one system for a list of queries: by words, by vectors, and fused."""

    lexical: Sequence[RankedIds]
    dense: Sequence[RankedIds]
    fused: Sequence[RankedIds]

    def of(self, queries: Iterable[int]) -> Rankings:
        """Return the rankings of the queries at these positions."""
        positions = list(queries)
        return Rankings(*([lists[i] for i in positions] for lists in (self.lexical, self.dense, self.fused)))


@dataclass(frozen=True)
class BeforeAfter:
    """The mean of one statistic for the old and the new system, with the p-value of a paired t-test."""

    name: str
    old: float
    new: float
    p: float
    queries: int


def own_document_ndcg(rankings: Sequence[Sequence[object]], answers: Sequence[object]) -> NDArray[np.float64]:
    """Return nDCG@10 of each query's own document, for queries that were made from documents."""
    pairs = zip(rankings, answers, strict=True)
    return np.array([single_answer_ndcg(ranking, answer) for ranking, answer in pairs])


def compare_own_documents(old: Rankings, new: Rankings, answers: Sequence[str]) -> list[BeforeAfter]:
    """Compare nDCG@10 of each query's own document between old and new rankings, dense and fused."""
    return [
        compare_means(
            f"{name} nDCG@10, own document",
            own_document_ndcg(old_lists, answers),
            own_document_ndcg(new_lists, answers),
        )
        for name, old_lists, new_lists in (("dense", old.dense, new.dense), ("hybrid", old.fused, new.fused))
    ]


def compare_overlap(old: Rankings, new: Rankings) -> BeforeAfter:
    """Compare between old and new rankings the share of the dense top 10 that is in the BM25 top 20."""
    shares = []
    for rankings in (old, new):
        pairs = zip(rankings.dense, rankings.lexical, strict=True)
        common = [len({*words[:LEXICAL_TOP]}.intersection(dense[:TOP])) for dense, words in pairs]
        shares.append(np.array(common) / TOP)
    return compare_means("dense top 10 in BM25 top 20", *shares)


def compare_kept(old: Rankings, new: Rankings) -> BeforeAfter:
    """Return which share of the old fused top 10 is in the new fused top 10."""
    pairs = zip(old.fused, new.fused, strict=True)
    shares = [len({*a[:TOP]}.intersection(b[:TOP])) / max(1, min(TOP, len(a))) for a, b in pairs]
    return BeforeAfter("hybrid top 10 kept", 1.0, float(np.mean(shares)), 1.0, len(shares))


def compare_means(name: str, old: NDArray[np.float64], new: NDArray[np.float64]) -> BeforeAfter:
    """Return the means of two aligned lists of per-query values with the p-value of a paired t-test."""
    differences = np.where(np.isclose(old, new), 0.0, new - old)
    [p_value] = paired_t(differences[:, None])
    return BeforeAfter(name, float(old.mean()), float(new.mean()), float(p_value), len(old))


def objections(rows: Sequence[BeforeAfter]) -> list[str]:
    """Return the reasons against a new encoder. `rows`: own documents, overlap, kept share."""
    *measured, overlap, shares = rows
    reasons = [
        f"{row.name} falls from {row.old:.3f} to {row.new:.3f}, by more than {RANKING_LOSS:g}"
        for row in measured
        if row.old - row.new > RANKING_LOSS and row.p < SIGNIFICANT
    ]
    if overlap.old - overlap.new > OVERLAP_LOSS and overlap.p < SIGNIFICANT:
        reasons.append(f"{overlap.name} falls from {overlap.old:.3f} to {overlap.new:.3f}")
    if shares.new < MIN_KEPT_SHARE:
        reasons.append(f"only {shares.new:.0%} of the hybrid top 10 stays; {MIN_KEPT_SHARE:.0%} is needed")
    return reasons


PERSISTENCE = 0.9  # the chance that a reader who saw a hit looks at the next one


def overlap(a: Sequence[str], b: Sequence[str], depth: int) -> float:
    """Return the share of the first `depth` hits that two rankings have in common, 0 to 1.

    It is a share of the longer list. Two empty rankings agree.

    >>> overlap(["a", "b", "c"], ["c", "a", "d"], 3)
    0.6666666666666666
    """
    first, second = set(a[:depth]), set(b[:depth])
    longest = max(len(first), len(second))
    return len(first & second) / longest if longest else 1.0


def rank_biased_overlap(a: Sequence[str], b: Sequence[str], persistence: float = PERSISTENCE) -> float:
    """Return the rank-biased overlap of two rankings, 0 to 1, in which agreement at the top counts most.

    Below the end of the longer list, the agreement at its end is assumed to go on (Webber et al. 2010,
    section 4.3, for lists of one length). Two empty rankings agree.

    >>> rank_biased_overlap(["a", "b"], ["a", "b"])
    1.0
    """
    depth = max(len(a), len(b))
    if not depth:
        return 1.0
    shared = [len({*a[:rank]} & {*b[:rank]}) / rank for rank in range(1, depth + 1)]
    weights = [persistence**rank for rank in range(depth)]
    weighted_sum = sum(share * weight for share, weight in zip(shared, weights, strict=True))
    return (1 - persistence) * weighted_sum + shared[-1] * persistence**depth
