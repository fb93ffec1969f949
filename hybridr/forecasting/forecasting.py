"""Plans vectors for an index by what can be measured without writing: hours, memory, disk, shards, price."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import cycle
from typing import Any

from ..cluster.connection import Cluster, path_of
from ..cluster.equipment import is_embedded
from ..cluster.vector_forms import form_of
from ..encoding.contract import Encoder, offers_of
from ..encoding.folder import OnnxEncoder
from ..encoding.machine import read_gpus
from ..encoding.opening import suited
from ..errors import AccessDenied, DataError, SettingsError
from ..reindexing.filling import mapped
from ..reindexing.planning import Plan, Proposal, propose, whole_source
from ..reindexing.reindexing import MEASURED, plan
from ..reindexing.settings import ReindexSettings
from ..reindexing.targets import target_of
from ..vocabulary.fitting import LEAST_HEARD, MOST_TOKENS, SAMPLE, states_obstacle
from .probes import calibration_s, table_document_s
from .settings import ForecastSettings
from .sizes import Housing, Quantity, Volume, volume_of
from .times import Duration, Workforce, duration_of

TIMED = 512  # documents that are counted and timed
TIMED_S = 10.0  # after so many seconds no more of them are encoded
LEAST_S = 1.0  # a GPU is through a sample before its clock is up


@dataclass(frozen=True)
class Forecast:
    """What vectors for an index will take.

    `tokens` are those encoded of a document, in the mean of a sample; `measured` says that the speed of a
    worker was measured here. Prices are in the reader's own currency, None without the price of an hour.
    """

    index: str
    tokens: float | None
    measured: bool
    quantity: Quantity
    housing: Housing
    workforce: Workforce
    volume: Volume
    duration: Duration
    price: float | None
    price_per_million: float | None

    def to_json(self) -> dict[str, Any]:
        """Give the fields as JSON values."""
        return asdict(self)


def forecast(
    cluster: Cluster, name: str, encoder: Encoder, wanted: ReindexSettings, given: ForecastSettings
) -> Forecast:
    """Compute what `hybridr reindex` with `wanted` will take; nothing is written.

    Raises SettingsError for a GPU that is not here, and what `propose` raises.
    """
    require_measurable(given)
    proposal = propose(cluster, whole_source(cluster, name), encoder, wanted, wanted.fields)
    texts = texts_of(proposal)
    if wanted.precision == "auto" and isinstance(encoder, OnnxEncoder) and encoder.precision == "fp32":
        vectors = round(proposal.vectors * (given.documents or proposal.documents) / proposal.documents)
        chosen = suited(encoder, texts[:MEASURED], vectors, max_tokens=wanted.max_tokens)
        proposal = replace(proposal, encoder=chosen)
    quantity, housing = quantity_of(proposal, given), housing_of(proposal, given)
    volume, workforce = volume_of(quantity, housing), workforce_of(proposal, texts, given)
    table = table_seconds(proposal, workforce, texts)
    calibrating = permitted(partial(calibration_s, proposal, texts))
    duration = duration_of(quantity, housing, workforce, volume.shards, table=table, calibrating=calibrating)
    price = priced(duration, workforce, given.price_per_hour)
    return Forecast(
        proposal.info.name,
        encoded_tokens(proposal, texts),
        given.documents_per_second is None,
        quantity,
        housing,
        workforce,
        volume,
        duration,
        price,
        None if price is None else price * 1e6 / quantity.documents,
    )


def preview(cluster: Cluster, name: str, encoder: Encoder, settings: ReindexSettings) -> Plan:
    """Plan a reindex as `reindex` does, and say how long it will take here by what the index lacks yet.

    Raises the errors of `plan`.
    """
    todo = plan(cluster, name, encoder, settings)
    proposal, given = todo.wanted, ForecastSettings()
    quantity, housing = quantity_of(proposal, given), housing_of(proposal, given)
    done, has_table = 0, False
    if todo.exists:
        known = cluster.index_info(todo.destination)
        done = target_of(settings).state(cluster, known).current
        has_table = known.record.term_table is not None
    workforce = workforce_of(proposal, texts := texts_of(proposal), given)
    if limit := settings.max_docs_per_second:
        workforce = replace(workforce, most_per_second=limit)
    table = 0.0 if has_table else table_seconds(proposal, workforce, texts, done)
    calibrating = permitted(partial(calibration_s, proposal, texts))
    duration = duration_of(quantity, housing, workforce, proposal.info.shards, done, table, calibrating)
    stages = {stage: round(seconds, 3) for stage, seconds in duration.stages.items()}
    return replace(todo, seconds=round(duration.total, 3), stages=stages)


def texts_of(proposal: Proposal) -> list[str]:
    """Draw the texts that are counted and timed. Raises DataError where none has any."""
    texts = [text for text in proposal.sample(TIMED) if text]
    if not texts:
        name = proposal.info.name
        raise DataError(f"no text in a sample of '{name}'", hint=f"hybridr inspect {name}")
    return texts


def table_seconds(proposal: Proposal, workforce: Workforce, texts: Sequence[str], done: int = 0) -> float:
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
    return read * (document_s + 1 / workforce.documents_per_second)


def permitted(measure: Callable[[], float]) -> float:
    """Return what is measured on the index; 0 where the user may not ask for it."""
    try:
        return measure()
    except AccessDenied:
        return 0.0


def require_measurable(given: ForecastSettings) -> None:
    """Raise SettingsError when GPUs shall encode, none is here, and nobody says how fast they are."""
    if given.gpu and given.documents_per_second is None and not read_gpus():
        raise SettingsError(
            "this machine has no GPU whose speed could be measured",
            hint="--documents-per-second N tells it; on a machine with one, plan --gpu measures it",
        )


def quantity_of(proposal: Proposal, given: ForecastSettings) -> Quantity:
    """Say how much there will be to keep, by what the index holds now."""
    documents = given.documents or proposal.documents
    each = proposal.vectors / proposal.documents
    path = path_of(proposal.info.name, "_stats", "store,docs")
    stats = proposal.cluster.request("GET", path)["_all"]["primaries"]
    alive = stats["docs"]["count"] / max(1, stats["docs"]["count"] + stats["docs"]["deleted"])
    return Quantity(
        documents,
        round(documents * each),
        proposal.encoder.dim,
        form_of(proposal.settings),
        proposal.settings.m,
        (stats["store"]["size_in_bytes"] * alive + proposal.token_bytes) / proposal.documents,
    )


def housing_of(proposal: Proposal, given: ForecastSettings) -> Housing:
    """Ask the data nodes how many they are and how many processors they have; given ones are all alike.

    Without the right to ask, one processor a node is assumed.
    """
    try:
        nodes = proposal.cluster.request("GET", "/_nodes/os")["nodes"].values()
    except AccessDenied:
        nodes = []
    data = [node for node in nodes if any("data" in role for role in node["roles"])]
    processors = sum(node["os"]["allocated_processors"] for node in data)
    each = processors / len(data) if data else 1
    count = given.nodes or max(1, len(data))
    there = int(proposal.info.settings.get("index.number_of_replicas", 1))
    return Housing(count, round(each * count), 1 + (there if given.replicas is None else given.replicas))


def workforce_of(proposal: Proposal, texts: Sequence[str], given: ForecastSettings) -> Workforce:
    """Say who encodes, and how fast: as it is told, else as it is measured here."""
    if given.documents_per_second is not None:
        return Workforce(given.workers, given.documents_per_second)
    here = given.workers == 1 and not given.gpu and is_embedded(proposal.cluster)
    return Workforce(given.workers, documents_a_second(proposal, texts), here)


def documents_a_second(proposal: Proposal, texts: Sequence[str]) -> float:
    """Encode texts as a reindex does, all passages of them, for TIMED_S at most; give the speed."""
    encode, offers = proposal.recipe.encode, offers_of(proposal.encoder)
    together = offers.documents_at_once
    ordered = sorted([*texts] * -(-together // len(texts)), key=len)
    count = -(-len(ordered) // together)
    parts = [ordered[number::count] for number in range(count)]  # each has texts of all lengths
    encode(ordered[:1])  # the first call also makes things ready
    started, given = time.perf_counter(), 0

    def begun() -> Iterator[list[str]]:
        nonlocal given
        for part in cycle(parts):
            took = time.perf_counter() - started
            if took > TIMED_S or (given >= len(ordered) and took > LEAST_S):
                return
            given += len(part)
            yield part

    done = sum(map(len, mapped(lambda part: encode(part)[0], begun(), offers.calls_at_once)))
    took = time.perf_counter() - started
    return proposal.documents * done / (took * proposal.vectors)


def encoded_tokens(proposal: Proposal, texts: Sequence[str]) -> float | None:
    """Count the tokens that are encoded of a document, in the mean; None where the encoder cannot count."""
    if (counts := offers_of(proposal.encoder).counts) is None:
        return None
    found = counts(texts)
    limit = min(proposal.settings.max_tokens or proposal.encoder.max_tokens, proposal.encoder.max_tokens)
    most = limit * (proposal.recipe.windows.most if proposal.recipe.windows else 1)
    return round(sum(min(tokens, most) for tokens in found) / len(texts), 1)


def priced(duration: Duration, workforce: Workforce, hour: float | None) -> float | None:
    """Give the price of all workers until it is filled, and of one that verifies; None where none is told."""
    if hour is None:
        return None
    filling = duration.total - duration.verifying
    return (workforce.workers * filling + duration.verifying) / 3600 * hour
