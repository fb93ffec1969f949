"""Plans vectors for an index by what can be measured without writing: hours, memory, disk, shards, price."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import cycle
from typing import Any

from ..cluster.connection import Cluster, path_of
from ..cluster.equipment import is_embedded
from ..cluster.vector_forms import form_of
from ..encoding.contract import Encoder, offers_of
from ..errors import AccessDenied, DataError, SettingsError
from ..machine import read_gpus
from ..reindexing.planning import Proposal, propose, whole_source
from ..reindexing.settings import ReindexSettings
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
    texts = [text for text in proposal.sample(TIMED) if text]
    if not texts:
        raise DataError(f"no text in a sample of '{proposal.info.name}'", hint=f"hybridr inspect {name}")
    quantity, housing = quantity_of(proposal, given), housing_of(proposal, given)
    volume, workforce = volume_of(quantity, housing), workforce_of(proposal, texts, given)
    duration = duration_of(quantity, housing, workforce, volume.shards)
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
    encode, together = proposal.recipe.encode, offers_of(proposal.encoder).documents_at_once
    ordered = sorted([*texts] * -(-together // len(texts)), key=len)
    parts = -(-len(ordered) // together)
    encode(ordered[:1])  # the first call also makes things ready
    started, took, done = time.perf_counter(), 0.0, 0
    for number in cycle(range(parts)):
        encode(ordered[number::parts])
        done += len(ordered[number::parts])
        took = time.perf_counter() - started
        if took > TIMED_S or (done >= len(ordered) and took > LEAST_S):
            break
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
