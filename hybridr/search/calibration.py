"""Scales of scores: factors that bring an encoder's cosines, BM25 and a client's own query to one scale."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from functools import partial
from statistics import mean
from typing import Any, NamedTuple

import numpy as np

from ..cluster.connection import Cluster
from ..cluster.field_values import text_of
from ..cluster.fields import source_field
from ..cluster.reading import random_order_query, sample_documents
from ..cluster.record import IndexInfo, Record
from ..cluster.record_parts import Spread
from ..cluster.retrievers import among
from ..cluster.retrievers.dense import engine_scores
from ..cluster.retrievers.lexical import PLACE, Template
from ..encoders.contract import Encoder, TokenEncoder, offers_of, unit_length
from ..encoders.derived import Whitening
from ..encoders.registry import MINILM_WHEEL
from ..errors import DownloadError
from ..files.remembered import known_spread, remember_spread
from ..indexing.terms.terms import Analysis
from ..languages import first_words, middle_words, word_count
from .hits import checked_hits

MINILM_SPREAD = 0.1952
"""Spread of the packaged encoder, by `fixed_text_cosines`."""
UNRELATED, MINILM_CENTRE = 0.3, 0.0578
"""Cosine of the packaged encoder for unrelated documents, chosen so that a client's functions change rankings
as they change BM25's (four collections); and its mean by `fixed_text_cosines`."""
OVER_PACKAGED = 1.1
"""Spread to which measured cosines are scaled, as a multiple of the packaged encoder's on the same texts. Any
value from 1.0 to 1.2 ranks alike (two encoders, twelve collections)."""
USUAL_SPREAD, USUAL_MEAN = 0.10, 0.114
"""Spread to which cosines are scaled if the packaged encoder's (.093 in the mean of twelve collections) is
unknown; and the mean to which all are shifted."""
MINILM_STATES = 0.5169  # by `token_state_scale`
LIKE, MINILM_UNLIKE, MAX_LIKENESS = 0.8, 0.0257, 0.999
"""Cosine from which on two queries count as similar for the packaged encoder (chosen on six collections); its
mean between different questions; and the limit for an encoder that distinguishes nothing."""
NEAR_TOKENS = 30
MAX_FACTOR = 8.0  # a model of another language may see no difference between these texts
MAX_STATE_FACTOR = 2.0
PROBED, PROBED_HITS, PROBE_BEGINNING = 50, 10, 2
OBJECTS = ("object", "nested", "flat_object")
WORDS = re.compile(r"[^\w]+")
"""Characters between words. They are removed, because signs may be syntax in a query."""
USUAL_SHARE = 0.56
"""Score of words in their own document by plain BM25, as a share of their idf: .50 to .61 on five
collections."""
QUESTIONS = (
    "how do vaccines work",
    "capital of Portugal",
    "sort a list of numbers in Python",
    "symptoms of iron deficiency",
    "how to change a bicycle tyre",
    "what causes earthquakes",
    "interest rate on savings accounts",
    "recipe for tomato soup",
    "who wrote Hamlet",
    "speed of sound in water",
)
STATEMENTS = (
    "A vaccine shows the immune system a harmless part of a germ, so that it recognises the germ later.",
    "Lisbon lies at the mouth of the Tagus and has been the capital of Portugal since the 13th century.",
    "The built-in function sorted returns a new list with the items in ascending order.",
    "Too little iron makes people tired and pale, and short of breath when they climb stairs.",
    "Lever the tyre off the rim, take out the tube, put in a new one and pump it up.",
    "Rocks on both sides of a fault slip suddenly and send waves through the ground.",
    "Banks pay savers a yearly share of the balance, which changes with the central bank's rate.",
    "Fry onions and garlic, add ripe tomatoes and stock, cook for half an hour and blend.",
    "The tragedy of the Danish prince was written by William Shakespeare about 1600.",
    "Sound travels more than four times faster in water than in air, about 1,480 metres per second.",
)


def is_reference(encoder: Encoder) -> bool:
    """Return whether an encoder's cosines define the common scale, as those of the packaged encoder do."""
    return encoder.fingerprint == MINILM_WHEEL.fingerprint


class CosineScale(NamedTuple):
    """Maps an encoder's cosines to the scale of the packaged encoder: `factor`, at most 8.

    `unrelated` is the value of 1 + cosine, on that scale, of a document unrelated to the query.
    """

    factor: float
    unrelated: float


def cosine_scale(encoder: Encoder, measured: Spread | None) -> CosineScale:
    """Return the scale of an encoder's cosines, from their spread `measured` on an index if there is one.

    Without a spread, the scale is measured on ten fixed English questions and statements, once for an
    encoder, and stored on this machine. The packaged encoder is the unit: its factor is 1 on every index.
    """
    if is_reference(encoder):
        return CosineScale(1.0, 1 + UNRELATED)
    if measured is not None:
        usual = OVER_PACKAGED * measured.packaged if measured.packaged else USUAL_SPREAD
        factor = scale_factor(measured.spread, usual)
        return CosineScale(factor, factor * (1 + measured.mean) + UNRELATED - USUAL_MEAN)
    spread, centre = fixed_text_cosines(encoder)
    factor = scale_factor(spread, MINILM_SPREAD)
    return CosineScale(factor, factor * (1 + centre) + UNRELATED - MINILM_CENTRE)


def stored_whitening(record: Record) -> Whitening | None:
    """Return the whitening of query vectors in an index's record; None if queries are used unchanged."""
    whitened = record.cosines.whitened if record.cosines else None
    return Whitening.from_text(whitened.directions, record.dim) if whitened else None


def fixed_text_cosines(encoder: Encoder) -> tuple[float, float]:
    """Return spread and mean of an encoder's cosines of fixed questions and statements, measured once."""
    key = scale_key(encoder)
    spread, centre = known_spread(key), known_spread(f"{key} centre")
    if spread is None or centre is None:
        dots = encoder.encode_queries(QUESTIONS) @ encoder.encode_documents(STATEMENTS).T  # (10, 10)
        cosines = dots if encoder.similarity == "cosine" else 2 * engine_scores(encoder.similarity, dots) - 1
        spread, centre = float(cosines.std()), float(cosines.mean())
        store_value(key, spread)
        store_value(f"{key} centre", centre)
    return spread, centre


def token_state_scale(encoder: TokenEncoder) -> float:
    """Return the factor, at most 2, that brings an encoder's token states to the usual scale; measured once
    for an encoder.

    For each token of fixed questions, the cosine of its nearest token in fixed statements is compared with
    that of its 30th nearest.
    """

    def spread() -> float:
        """Return how far the nearest cosine is above the 30th nearest, in the mean of all question tokens."""
        texts = encoder.read_queries(QUESTIONS), encoder.read_documents(STATEMENTS)
        queries, documents = (np.concatenate([text.states for text in side]) for side in texts)
        lengths = np.outer(np.linalg.norm(queries, axis=1), np.linalg.norm(documents, axis=1))
        cosines = np.sort(queries @ documents.T / lengths, axis=1)
        return float((cosines[:, -1] - cosines[:, -min(NEAR_TOKENS, cosines.shape[1])]).mean())

    state_spread = measure_once(f"{scale_key(encoder)} states", spread)
    return scale_factor(state_spread, MINILM_STATES, MAX_STATE_FACTOR)


def likeness_threshold(encoder: Encoder) -> float:
    """Return the cosine from which on two queries count as similar to an encoder; measured once for each.

    It divides the range from the mean cosine of different questions to 1 in the same ratio as for the
    packaged encoder.
    """

    def mean_cosine() -> float:
        """Return the mean cosine of different questions, which have nothing in common."""
        vectors = unit_length(encoder.encode_queries(QUESTIONS))
        return float((vectors @ vectors.T)[np.triu_indices(len(QUESTIONS), 1)].mean())

    usual = measure_once(f"{scale_key(encoder)} questions", mean_cosine)
    return min(MAX_LIKENESS, 1 - (1 - LIKE) * (1 - usual) / (1 - MINILM_UNLIKE))


def measure_once(key: str, measure: Callable[[], float]) -> float:
    """Return the value stored on this machine under a key; measure and store it first if there is none."""
    if (value := known_spread(key)) is None:
        store_value(key, value := measure())
    return value


def store_value(key: str, value: float) -> None:
    """Store a measured value on this machine under a key; ignore a disk that cannot be written."""
    with suppress(DownloadError):
        remember_spread(key, value)


def scale_key(encoder: Encoder) -> str:
    """Return the key of an encoder's measured scale: its fingerprint, arithmetic and similarity."""
    products = [] if encoder.similarity == "cosine" else [f"scores by {encoder.similarity}"]
    return " ".join([encoder.fingerprint, *offers_of(encoder).arithmetic.values(), *products])


def scale_factor(spread: float, usual: float, limit: float = MAX_FACTOR) -> float:
    """Return the factor that brings a spread to the usual one, at most `limit`."""
    return min(usual / spread, limit) if spread > 0 else limit


class PlainQuery(NamedTuple):
    """The lexical query of the words alone: the fields it searches, and a function from texts to queries."""

    fields: Sequence[str]
    queries: Callable[[Sequence[str]], Sequence[dict[str, Any]]]


class Probes(NamedTuple):
    """Query texts taken from documents of an index, and the best scores of the plain query for each.

    `template_texts` are as long, for a template that searches other fields than the plain query.
    """

    texts: Sequence[str]
    scores: Sequence[Sequence[float]]
    template_texts: Sequence[str] = ()


def document_probes(cluster: Cluster, info: IndexInfo, plain: PlainQuery) -> Iterator[Probes]:
    """Yield probes with words from the middle of documents, then with words from their beginning."""
    contents = sample_words(cluster, info, plain.fields).values()
    for excerpt in (middle_words, partial(first_words, length=PROBE_BEGINNING)):
        texts = list(map(excerpt, contents))
        yield Probes(texts, fetch_best_scores(cluster, info, plain.queries(texts), texts))


def template_field_probes(
    cluster: Cluster, info: IndexInfo, plain: PlainQuery, template: Template
) -> Iterator[Probes]:
    """Yield probes with words of the fields that a template searches; none if it searches all fields of the
    plain query.

    Other words would match little: the scale would become so small that matching words drown everything else.
    The sampled documents have such a field. Both queries get the same text if the plain query searches any of
    these fields too.
    """
    usual_fields = [source_field(info, field) for field in plain.fields]
    sources, presence = {}, {}
    for field in template_fields(info, template.body):
        parts = field.split(".")
        names = [".".join(parts[:length]) for length in range(1, len(parts) + 1)]
        kinds = {name: info.mapping_of(name).get("type", "object") for name in names}
        # A sub-field is made from the text of its field, which may lie inside nested objects.
        sources[field] = next((name for name in names if kinds[name] not in OBJECTS), field)
        path = next((name for name in reversed(names[:-1]) if kinds[name] == "nested"), None)
        exists = {"exists": {"field": field}}
        presence[field] = {"nested": {"path": path, "query": exists}} if path else exists
    if not sources or set(usual_fields) <= set(sources.values()):
        return
    if shared := {field: source for field, source in sources.items() if source in usual_fields}:
        sources = shared
    targets = list(dict.fromkeys(sources.values()))
    body = {
        "query": random_order_query({"bool": {"should": [presence[field] for field in sources]}}, 13),
        "size": min(PROBED, info.result_window),
        "_source": [*targets, *usual_fields],
    }
    documents = [hit.get("_source", {}) for hit in checked_hits(cluster.search(info, body))]
    rows = [
        [WORDS.sub(" ", text_of(source, names)) for names in (targets, usual_fields)] for source in documents
    ]
    for excerpt in (middle_words, partial(first_words, length=PROBE_BEGINNING)):
        probes = [excerpt(template_text) for template_text, _ in rows]
        texts = (
            probes
            if shared
            else [
                first_words(middle_words(text), word_count(words))
                for words, (_, text) in zip(probes, rows, strict=True)
            ]
        )
        pairs = [pair for pair in zip(texts, probes, strict=True) if all(pair)]
        if pairs:
            texts, probes = (list(column) for column in zip(*pairs, strict=True))
            yield Probes(texts, fetch_best_scores(cluster, info, plain.queries(texts), texts), probes)


def template_fields(info: IndexInfo, query: Any) -> list[str]:
    """Return the mapped fields in which a query template searches its text; wildcards are expanded."""
    types, fields = info.types, list[str]()
    parts = [query]
    while parts:
        part = parts.pop()
        if isinstance(part, list):
            parts += part
        if not isinstance(part, Mapping):
            continue
        parts += part.values()
        if PLACE in str(part.get("query", "")):
            names = part.get("fields") or part.get("default_field") or ()
            patterns = [
                str(name).partition("^")[0] for name in ([names] if isinstance(names, str) else names)
            ]
            fields += [name for name in types if any(fnmatchcase(name, pattern) for pattern in patterns)]
        fields += [name for name, value in part.items() if name in types and PLACE in str(value)]
    return list(dict.fromkeys(fields))


def measure_template_scale(
    cluster: Cluster, info: IndexInfo, probes: Iterable[Probes], template: Template
) -> float:
    """Return the factor by which the scores of the user's query template exceed those of the plain query;
    0 if it cannot be measured.

    The factor is the median, over probe texts, of the ratio of the ten best scores of both. Dividing by it
    undoes what multiplies scores (boosts, functions), not what adds to them. Words from the middle of
    documents are tried first, then words from their beginning (phrases in titles).
    """
    for texts, plain, template_texts in probes:
        queries = template_texts or texts
        scores = fetch_best_scores(cluster, info, [template.filled(text) for text in queries], queries)
        pairs = [pair for pair in zip(plain, scores, strict=True) if all(pair)]
        ratios = [mean(client[: len(usual)]) / mean(usual[: len(client)]) for usual, client in pairs]
        if ratios := [ratio for ratio in ratios if ratio > 0]:
            return float(np.median(ratios))
    return 0.0


def fetch_best_scores(
    cluster: Cluster, info: IndexInfo, queries: Sequence[dict[str, Any]], texts: Sequence[str]
) -> list[list[float]]:
    """Return the ten best scores of each query; empty for a query without hits. The same text
    of `texts` goes to the same shard copies.
    """
    size = min(PROBED_HITS, info.result_window)
    bodies = [{"size": size, "query": query, "_source": False} for query in queries]
    answers = cluster.msearch(info, bodies, texts)
    return [[hit["_score"] for hit in checked_hits(answer) if hit["_score"] > 0] for answer in answers]


def measure_gain(cluster: Cluster, info: IndexInfo, plain: PlainQuery, analysis: Analysis) -> float:
    """Return the factor by which this index scores words higher than plain BM25, for any similarity.

    Words from the middle of a document are searched in that document alone. The factor is the median of score
    over idf sum, relative to plain BM25; 1 if no document can be used.
    """
    sampled = sample_words(cluster, info, plain.fields)
    excerpts = {doc_id: excerpt for doc_id, words in sampled.items() if (excerpt := middle_words(words))}
    texts = list(excerpts.values())
    queries = [among([doc_id], query) for doc_id, query in zip(excerpts, plain.queries(texts), strict=True)]
    scores = fetch_best_scores(cluster, info, queries, texts) if texts else []
    pairs = zip(scores, analysis.of(texts), strict=True)
    shares = [score[0] / words.idf_sum for score, words in pairs if score and words.idf_sum]
    return float(np.median(shares)) / USUAL_SHARE if shares else 1.0


def sample_words(cluster: Cluster, info: IndexInfo, fields: Sequence[str]) -> dict[str, str]:
    """Return the text that sampled documents hold in these fields, without punctuation: document id -> text.

    For a field filled by `copy_to`, which is not in the document, the encoded text is used.
    """
    sources, encoded = [source_field(info, field) for field in fields], info.record.fields
    sampled = sample_documents(cluster, info, PROBED, fields=[*sources, *encoded])
    texts = {doc.doc_id: text_of(doc.source, sources) or text_of(doc.source, encoded) for doc in sampled}
    return {doc_id: WORDS.sub(" ", text) for doc_id, text in texts.items()}
