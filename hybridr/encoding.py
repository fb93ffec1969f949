"""Gives documents that were read the vectors of their texts, or of their passages."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from functools import partial

import numpy as np

from .errors import ModelError
from .jobs import Job, Pending
from .overlap import mapped
from .passages import Split, by_passages, split
from .reading import text_of
from .vectors import as_kept

ENCODED_TOGETHER = 64  # documents


def encoded_pages(job: Job, pages: Iterator[list[Pending]]) -> Iterator[list[Pending]]:
    """Give each document with text its vector, some documents of like length at a time.

    What is encoded and not yet written is lost when the process dies, so the parts are small; an encoder that
    takes several calls at once never waits for the end of one.
    """
    calls = getattr(job.encoder, "calls_at_once", 1)
    with closing(mapped(partial(encode, job), parts_by_length(job, pages), calls)) as encoded:
        yield from encoded


def parts_by_length(job: Job, pages: Iterator[list[Pending]]) -> Iterator[list[Pending]]:
    """Cut pages into parts for the encoder, whose batches pad less when their texts are equally long."""
    for page in pages:
        page.sort(key=lambda pending: len(text_of(pending.document.source, job.text_fields)))
        yield from (page[start : start + ENCODED_TOGETHER] for start in range(0, len(page), ENCODED_TOGETHER))


def encode(job: Job, part: list[Pending]) -> list[Pending]:
    """Give each document with text its vector, or those of its passages."""
    texts = [text_of(pending.document.source, job.text_fields) for pending in part]
    splits = [split(text, job.encoder, job.windows) for text in texts]
    return [
        pending
        for group in by_passages(splits)
        for pending in encode_passages(job, part[group], texts[group], splits[group])
    ]


def encode_passages(job: Job, part: list[Pending], texts: list[str], splits: list[Split]) -> list[Pending]:
    """Encode the passages of all documents together. Raises ModelError for values that are not numbers."""
    passages = [text[a:b] for text, (spans, _) in zip(texts, splits, strict=True) for a, b in spans]
    owners = [number for number, (spans, _) in enumerate(splits) for _ in spans]
    vectors = job.encoder.encode_documents(passages, max_tokens=job.settings.max_tokens)  # (passages, dim)
    if not np.isfinite(vectors).all():
        bad = int(np.flatnonzero(~np.isfinite(vectors).all(axis=1))[0])
        raise ModelError(
            f"the encoder gives no finite vector for document '{part[owners[bad]].document.doc_id}'",
            hint="the encoder is damaged: export it again",
        )
    rows = np.split(as_kept(vectors, job.settings.vectors), np.cumsum([len(one.spans) for one in splits]))
    return [
        with_vectors(pending, found, one, job.windows is not None)
        for pending, found, one in zip(part, rows, splits, strict=False)
    ]


def with_vectors(pending: Pending, vectors: np.ndarray, found: Split, passages: bool) -> Pending:
    """Give a document its vectors `(n, dim)`, of which it has one at most without passages."""
    if not found.spans:
        return pending._replace(vector=None)
    if not passages:
        return pending._replace(vector=vectors[0])
    return pending._replace(vector=vectors, spans=found.spans, whole=found.whole)
