"""Encodes documents that clients wrote straight into a destination: new ones, and those whose text changed.

A client knows nothing of the stored fingerprint, so whatever it writes is without one: that finds them, also
after a partial update that kept the old vector.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

from .bodies import ENCODER_FIELD
from .encoding import encoded_pages
from .filling import body_of, send
from .jobs import Filling, Job, Pending
from .overlap import prefetched
from .reading import read_pages
from .stored import documents_by_id, written_here_mark
from .writing import Action, index_action


def current_query(encoder: str) -> dict[str, Any]:
    """Match the documents that this encoder looked at last."""
    return {"term": {ENCODER_FIELD: encoder}}


def renew(job: Job) -> Filling:
    """Give every document of the destination without a current vector the vector of its text.

    Each one is written only over the state that was read (`if_seq_no`): what a client changes meanwhile
    stays, and is found by the next call.
    """
    done = Filling()
    job.cluster.refresh(job.destination)
    with (
        closing(prefetched(pages_to_renew(job))) as pages,
        closing(prefetched(encoded_pages(job, pages))) as encoded,
    ):
        for page in encoded:
            job.pace.wait(len(page))
            outcome = send(job, renewing_actions(job, page))
            done.book(page)
            done.rejected += outcome.rejected
            done.skipped += len(outcome.conflicts)
    return done


def pages_to_renew(job: Job) -> Iterator[list[Pending]]:
    """Read the documents of the destination that bear no mark of this encoder."""
    pages = read_pages(
        job.cluster, job.destination, page=job.settings.read_documents,
        unless=current_query(job.encoder.fingerprint),
    )  # fmt: skip
    for documents in pages:
        yield [Pending(document, None, None) for document in documents]


def renewing_actions(job: Job, page: list[Pending]) -> list[Action]:
    """Write each document over itself, with its vector and the state that the source is in now."""
    ids = [pending.document.doc_id for pending in page]
    there = documents_by_id(job.cluster, job.source, ids, whole=False)
    actions = []
    for pending in page:
        document = pending.document
        at = there[document.doc_id].seq_no if document.doc_id in there else -1
        body = body_of(job, pending, written_here_mark(at))
        actions.append(index_action(
            document.doc_id, body, routing=document.routing,
            if_seq_no=document.seq_no, if_primary_term=document.primary_term,
        ))  # fmt: skip
    return actions
