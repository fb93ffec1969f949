"""Probes: what the stages behind the encoding take here, measured on the index before anything is written.

How fast a node analyses texts and answers searches depends on its machine, its load and the index itself; a
constant of another machine says little of it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np

from ...cluster.limits import clause_limit, rescore_window
from ...cluster.reading import sample_documents
from ...cluster.record import IndexInfo
from ...encoders.contract import of_length_one, reads_tokens
from ...indexing.planning import Proposal
from ...indexing.terms.fitting import MOST_TERMS, READ_TOGETHER, StateSums, laid_out
from ...indexing.terms.term_table import TermTable
from ...indexing.terms.terms import Analysis
from ...relevance.answering import ASKED, DRAWN, LONGEST
from ...relevance.foreign_queries import foreign_queries
from ...search.fusions import SPARE_CLAUSES
from ...search.fusions.absolute import WINDOW
from ...search.settings import SearchSettings
from ...search.signals.soft_terms import KEPT, MOST_CLAUSES, NEAREST

PROBED_DOCUMENTS, PROBED_QUERIES = 64, 32
SEED = 13
WIDTH = 384  # of states, where an encoder shows none


def table_document_s(proposal: Proposal) -> float:
    """Measure the seconds that the term table takes for a document whose token states are there already."""
    cluster, info, encoder = proposal.cluster, proposal.info, proposal.encoder
    if not reads_tokens(encoder):
        return 0.0
    documents = sample_documents(cluster, info, PROBED_DOCUMENTS, fields=proposal.fields, seed=SEED)
    texts = [laid_out(document.source, proposal.fields, proposal.lexical_fields) for document in documents]
    texts = [text for text in texts if text.text][:PROBED_DOCUMENTS]
    if not texts:
        return 0.0
    readings = encoder.read_documents([text.text for text in texts], max_tokens=proposal.settings.max_tokens)
    sums = StateSums(encoder.width)
    sums.add_all(cluster, info.name, texts[:2], readings[:2])  # the first request also makes things ready
    started = time.perf_counter()
    for first in range(0, len(texts), READ_TOGETHER):
        part = slice(first, first + READ_TOGETHER)
        sums.add_all(cluster, info.name, texts[part], readings[part])
    return (time.perf_counter() - started) / len(texts)


def calibration_s(proposal: Proposal, texts: Sequence[str]) -> float:
    """Estimate the seconds of a calibration: it asks foreign queries, and words of some documents.

    Each is encoded, brought to terms, and sent as a search like those of the new index: words are found, and
    scored again with the terms near them. There are no vectors yet; their share of a search is small. A term
    is looked up in the table once, in however many queries it is.
    """
    cluster, info, fields = proposal.cluster, proposal.info, proposal.lexical_fields
    queries = foreign_queries(PROBED_QUERIES)
    length = mean_words([text[:LONGEST] for text in texts]) / mean_words(queries)
    questions = ASKED + min(DRAWN, proposal.documents) * max(1.0, length)  # a search takes time by its words
    analysis = Analysis(cluster, info, fields)
    proposal.encoder.encode_queries(queries[:1])  # the first calls also make things ready
    cluster.msearch(info, [probe_body(info, fields, queries[0], [])])
    started = time.perf_counter()
    proposal.encoder.encode_queries(queries)
    words = [
        dict.fromkeys(word.term for word in analysed.words if word.idf) for analysed in analysis.of(queries)
    ]
    reading_s = time.perf_counter() - started
    near: dict[str, list[str]] = {}
    if proposal.settings.term_table:
        table = random_table(proposal, texts, words)
        table.near(table.terms[0], NEAREST)
        started = time.perf_counter()
        for term in {term for part in words for term in part}:
            near[term] = [neighbour for neighbour, _ in table.near(term, NEAREST)[:KEPT]]
    lookups_s = (time.perf_counter() - started) if near else 0.0
    expanded = min(MOST_CLAUSES, clause_limit(cluster) - SPARE_CLAUSES) // ((KEPT + 1) * len(fields))
    bodies = [
        probe_body(info, fields, query, [near[term] for term in part if term in near][: max(0, expanded)])
        for query, part in zip(queries, words, strict=True)
    ]
    started = time.perf_counter()
    cluster.msearch(info, bodies)
    searching_s = time.perf_counter() - started
    more = distinct_words(foreign_queries(ASKED)) / distinct_words(queries)
    return (reading_s + searching_s) / len(queries) * questions + lookups_s * more


def mean_words(texts: Sequence[str]) -> float:
    """Return how many words a text has, in the mean."""
    return max(1.0, sum(len(text.split()) for text in texts) / max(1, len(texts)))


def distinct_words(queries: Sequence[str]) -> int:
    """Count the different words of queries."""
    return len({word for query in queries for word in query.lower().split()})


def random_table(proposal: Proposal, texts: Sequence[str], words: Sequence[Mapping[str, None]]) -> TermTable:
    """Return a table of these words and those of the texts, whose vectors mean nothing."""
    there = (word for text in texts for word in text.lower().split() if word.isalnum())
    terms = list(islice(dict.fromkeys((*(term for part in words for term in part), *there)), MOST_TERMS))
    width = proposal.encoder.width if reads_tokens(proposal.encoder) else WIDTH
    vectors = np.random.default_rng(SEED).standard_normal((max(1, len(terms)), width), dtype=np.float32)
    return TermTable(tuple(terms or [""]), of_length_one(vectors).astype(np.float16), 1.0, "", {})


def probe_body(
    info: IndexInfo, fields: Sequence[str], query: str, groups: Sequence[Sequence[str]]
) -> dict[str, Any]:
    """Build a search like those of an index with vectors; `groups` are the near terms of each word."""
    lexical = {"multi_match": {"query": query, "fields": list(fields)}}
    near = [
        {
            "dis_max": {
                "queries": [
                    {"constant_score": {"filter": {"term": {field: term}}, "boost": 0.1}}
                    for term in terms
                    for field in fields
                ]
            }
        }
        for terms in groups
    ]
    window = min(WINDOW * SearchSettings().depth, rescore_window(info))
    rescored = {"rescore_query": {"bool": {"should": [lexical, *near]}}}
    return {
        "size": 1,
        "_source": False,
        "query": lexical,
        "rescore": {"window_size": window, "query": rescored},
    }
