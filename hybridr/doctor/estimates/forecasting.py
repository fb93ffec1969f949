"""Tells how long a reindex will take, by what can be measured without writing."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import cycle

from ...cluster.connection import Cluster
from ...cluster.equipment import is_embedded
from ...encoders.contract import Encoder, offers_of
from ...errors import AccessDenied, DataError
from ...indexing.filling import mapped
from ...indexing.planning import Plan, Proposal
from ...indexing.reindexing import plan
from ...indexing.settings import ReindexSettings
from ...indexing.targets import target_of
from ...indexing.terms.fitting import LEAST_HEARD, MOST_TOKENS, SAMPLE, states_obstacle
from .probes import calibration_s, table_document_s
from .times import Housing, Quantity, Speed, duration_of

TIMED = 512  # documents that are counted and timed
TIMED_S = 10.0  # after so many seconds no more of them are encoded
LEAST_S = 1.0  # a GPU is through a sample before its clock is up


def preview(cluster: Cluster, name: str, encoder: Encoder, settings: ReindexSettings) -> Plan:
    """Plan a reindex as `reindex` does, and say how long it will take here by what the index lacks yet.

    Raises the errors of `plan`.
    """
    todo = plan(cluster, name, encoder, settings)
    proposal, texts = todo.proposal, texts_of(todo.proposal)
    done, has_table = 0, False
    if todo.exists:
        target = cluster.index_info(todo.destination)
        done = target_of(settings).state(cluster, target).current
        has_table = target.record.term_table is not None
    measured = documents_a_second(proposal, texts)
    speed = Speed(measured, is_embedded(cluster), settings.max_docs_per_second)
    table = 0.0 if has_table else table_seconds(proposal, speed, texts, done)
    calibrating = permitted(partial(calibration_s, proposal, texts))
    quantity = Quantity(proposal.documents, proposal.vectors, proposal.encoder.dim)
    duration = duration_of(
        quantity, housing_of(cluster), speed, proposal.info.shards, done, table, calibrating
    )
    stages = {stage: round(seconds, 3) for stage, seconds in duration.stages.items()}
    return replace(todo, seconds=round(duration.total, 3), stages=stages)


def texts_of(proposal: Proposal) -> list[str]:
    """Draw the texts that are counted and timed. Raises DataError where none has any."""
    texts = [text for text in proposal.sample(TIMED) if text]
    if not texts:
        name = proposal.info.name
        raise DataError(f"no text in a sample of '{name}'", hint=f"hybridr inspect {name}")
    return texts


def table_seconds(proposal: Proposal, speed: Speed, texts: Sequence[str], done: int = 0) -> float:
    """Estimate what the term table takes beside the filling, of which so many documents are `done` already.

    Where it cannot listen to the encoder, that reads the sample once more, but no more than so many tokens.
    """
    recipe, settings = proposal.recipe, proposal.settings
    if not settings.term_table or states_obstacle(proposal.encoder, passages=bool(recipe.windows)):
        return 0.0
    sampled, late = min(SAMPLE, proposal.documents), done > (1 - LEAST_HEARD) * proposal.documents
    apart = late or settings.runner != "threads" or not recipe.shows_states
    if not apart:
        return sampled * permitted(partial(table_document_s, proposal))
    read = min(sampled, MOST_TOKENS / (encoded_tokens(proposal, texts) or 1))
    document_s = permitted(partial(table_document_s, proposal))
    return read * (document_s + 1 / speed.documents_per_second)


def permitted(measure: Callable[[], float]) -> float:
    """Return what is measured on the index; 0 where the user may not ask for it."""
    try:
        return measure()
    except AccessDenied:
        return 0.0


def housing_of(cluster: Cluster) -> Housing:
    """Ask the data nodes how many processors they have.

    Without the right to ask, one node with one processor is assumed.
    """
    try:
        nodes = cluster.request("GET", "/_nodes/os")["nodes"].values()
    except AccessDenied:
        nodes = []
    data = [node for node in nodes if any("data" in role for role in node["roles"])]
    processors = sum(node["os"]["allocated_processors"] for node in data)
    return Housing(max(1, len(data)), max(1, processors))


def documents_a_second(proposal: Proposal, texts: Sequence[str]) -> float:
    """Encode texts as a reindex does, all passages of them, for TIMED_S at most; give the speed."""
    encode, offers = proposal.recipe.encode, offers_of(proposal.encoder)
    together = offers.documents_at_once
    ordered = sorted([*texts] * -(-together // len(texts)), key=len)
    count = -(-len(ordered) // together)
    parts = [ordered[number::count] for number in range(count)]  # each has texts of all lengths
    encode(ordered[:1])  # the first call also makes things ready
    started, encoded = time.perf_counter(), 0

    def begun() -> Iterator[list[str]]:
        nonlocal encoded
        for part in cycle(parts):
            took = time.perf_counter() - started
            if took > TIMED_S or (encoded >= len(ordered) and took > LEAST_S):
                return
            encoded += len(part)
            yield part

    done = sum(map(len, mapped(lambda part: encode(part)[0], begun(), offers.calls_at_once)))
    took = time.perf_counter() - started
    return proposal.documents * done / (took * proposal.vectors)


def encoded_tokens(proposal: Proposal, texts: Sequence[str]) -> float | None:
    """Count the tokens that are encoded of a document, in the mean; None where the encoder cannot count."""
    if (counts := offers_of(proposal.encoder).counts) is None:
        return None
    lengths = counts(texts)
    limit = min(proposal.settings.max_tokens or proposal.encoder.max_tokens, proposal.encoder.max_tokens)
    most_tokens = limit * (proposal.recipe.windows.most if proposal.recipe.windows else 1)
    return round(sum(min(tokens, most_tokens) for tokens in lengths) / len(texts), 1)
