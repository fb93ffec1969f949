"""Writes an encoder's vectors into an index, verifies them, and lets searches ask it.

By default that is a new index beside the old one, with an alias that moves when all is there. The index is
the checkpoint: beside every vector stand the encoder's fingerprint and what the vector was made of, so a
restart asks what is there and encodes only the rest.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from ..cluster.connection import Cluster
from ..cluster.failures import EXISTS
from ..cluster.writing import rejects_of
from ..encoders.contract import Encoder, offers_of, reads_tokens
from ..encoders.folder import OnnxEncoder
from ..encoders.opening import load_encoder, suited
from ..errors import ClusterError
from ..files.remembered import remember_encoder
from ..records import Progress, silent
from .answer_size import measured_answer
from .job import Filling, Job
from .planning import Plan
from .recipe import TextRecipe
from .representations import fitted_in
from .settings import ReindexSettings
from .targets import Ending, Succession, target_of
from .terms.fitting import TermTableBuilder, table_obstacle
from .terms.provision import Provision, provide_term_table

MEASURED = 32  # documents that decide on the arithmetic


@dataclass(frozen=True)
class ReindexResult:
    """What a reindex did: counts of documents, and whether the alias was switched; in place there is none.

    `shortened` have more text than `max_passages` reach. `deployment` is what became of the deployment of the
    index that had the alias before, `tuned_before` names it if `tune` or `learn` found something for it,
    `along` the aliases that show a part and moved with it. `term_table` is what
    became of the table for soft terms, None where none was asked for. `cautions` say who may read more in the
    new index than in its source, `notes` which fields changed, where words are searched,
    and how to keep answers as small as before. `carried` counts what clients wrote into other indices with
    vectors: documents `changed` and `deleted`, and `conflicts`, which the source changed as well.
    `confidence` says in words what scores mean here, where `Index.reindex` measured that.
    """

    source: str
    destination: str
    alias: str | None
    documents: int
    encoded: int
    skipped: int
    without_text: int
    rejected: int
    deleted: int
    rejects_file: Path | None
    switched: bool
    seconds: float
    shortened: int = 0
    deployment: Succession | None = None
    tuned_before: str | None = None
    along: tuple[str, ...] = ()
    term_table: Provision | None = None
    cautions: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    carried: dict[str, int] | None = None
    confidence: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Give the fields as JSON values."""
        file = str(self.rejects_file) if self.rejects_file else None
        table = self.term_table.to_json() if self.term_table else None
        return {**asdict(self), "rejects_file": file, "term_table": table}


def reindex(
    cluster: Cluster,
    source: str,
    encoder: Encoder | Path | str,
    settings: ReindexSettings | None = None,
    *,
    progress: Progress = silent,
) -> ReindexResult:
    """Fill an index with the documents of `source` and their vectors, verify it, then switch the alias.

    The encoder of a folder computes as the setting `precision` says, an opened one as it was opened.
    Running it again goes on where it stopped, or brings in what changed. Documents without text are copied
    without a vector. Documents that the engine refuses go to a rejects file, and the alias is switched only
    with `accept_rejects`. Raises the errors of `plan`, and ClusterError when the count is wrong at the end.
    With the setting `in_place` the vectors go into `source` itself. At the end the index gets a term table.
    """
    chosen = settings or ReindexSettings()
    cluster = cluster.patient(chosen.patience_s)
    if isinstance(encoder, (str, Path)):
        wide = load_encoder(encoder, precision=chosen.told_precision or "fp32", backend=chosen.backend)
        encoder = encoder_suited(cluster, source, wide, chosen)

    def fill(job: Job, todo: Plan) -> Filling:
        return target_of(chosen).fill(job, progress=progress)

    return carried_out(partial(prepare, cluster, source, encoder, chosen), fill, progress)


def carried_out(
    ready: Callable[[], Plan], fill: Callable[[Job, Plan], Filling], progress: Progress
) -> ReindexResult:
    """Get `ready`, let `fill` write all documents, verify them and switch the alias; see `reindex`."""
    started, todo = time.monotonic(), ready()
    job = job_for(todo)
    filling = fill(job, todo)
    ending, table = target_of(job.settings).complete(job, todo, filling, progress), None
    job.rejects.save()
    if job.settings.term_table:
        table = provide_term_table(
            job.cluster, job.destination, job.encoder, listener=job.listener, progress=progress
        )
    done = summary_of(job, todo, filling, ending, time.monotonic() - started)
    return replace(done, term_table=table)


def prepare(cluster: Cluster, name: str, encoder: Encoder, settings: ReindexSettings) -> Plan:
    """Plan, and make the index ready to take vectors; give what was planned."""
    while True:
        todo = plan(cluster, name, encoder, settings)
        try:
            target_of(settings).begin(cluster, todo)
            return todo
        except ClusterError as error:
            # Another process was first, or this request was carried out although its answer was lost.
            if error.kind != EXISTS or todo.exists:
                raise


def job_for(todo: Plan) -> Job:
    """Begin the rejects anew, and give what a share of the planned work needs to know."""
    proposal, record, rejects = todo.proposal, todo.record, rejects_of(todo.destination)
    remember_encoder(proposal.encoder.fingerprint, offers_of(proposal.encoder).folder)
    rejects.clear()
    recipe = TextRecipe(proposal.encoder, proposal.settings, record.fields, fitted_in(record))
    return Job(
        proposal.cluster, record.source, todo.destination, recipe, rejects, listener=listener_of(todo, recipe)
    )


def listener_of(todo: Plan, recipe: TextRecipe) -> TermTableBuilder | None:
    """Give what makes the term table of states that are computed anyway; None where none are shown."""
    proposal, encoder = todo.proposal, recipe.encoder
    info = proposal.cluster.index_info(todo.destination)
    apart = not (recipe.settings.term_table and recipe.shows_states)
    if apart or not reads_tokens(encoder) or table_obstacle(info, encoder):
        return None
    return TermTableBuilder(proposal.cluster, info, encoder, proposal.documents)


def summary_of(job: Job, todo: Plan, filling: Filling, ending: Ending, seconds: float) -> ReindexResult:
    """Say what was done."""
    counted = ("encoded", "skipped", "without_text", "deleted", "shortened")
    return ReindexResult(
        source=job.source,
        destination=job.destination,
        alias=todo.record.alias or None,
        documents=job.cluster.count(job.destination),
        rejects_file=job.rejects.file if ending.rejected else None,
        seconds=seconds,
        cautions=tuple(todo.cautions),
        notes=(*todo.proposal.notes, measured_answer(job.cluster, job.destination, todo.record)),
        **{name: getattr(filling, name) for name in counted},
        **ending._asdict(),
    )


def plan(cluster: Cluster, name: str, encoder: Encoder, settings: ReindexSettings) -> Plan:
    """Check everything that can be checked before the first write, and say what would be sent.

    Raises SettingsError, ClusterError, DataError, ModelError, NotFound for what stands in the way.
    """
    return target_of(settings).plan(cluster, name, encoder, settings)


def encoder_suited(
    cluster: Cluster, name: str, encoder: OnnxEncoder, settings: ReindexSettings
) -> OnnxEncoder:
    """Give an fp32 encoder in the arithmetic that `precision` "auto" chooses; any other setting keeps it.

    An index that was begun keeps its own; for a new one `suited` decides on documents of it. Raises the
    errors of `plan`.
    """
    if settings.precision != "auto" or encoder.precision != "fp32":
        return encoder
    todo = plan(cluster, name, encoder, settings)
    record = cluster.index_info(todo.destination).record if todo.exists else None
    if record is None or record.precision is None:
        proposal = todo.proposal
        return suited(encoder, proposal.sample(MEASURED), proposal.vectors, max_tokens=settings.max_tokens)
    encoder.chosen = record.arithmetic
    if record.precision == encoder.precision:
        return encoder
    opened = load_encoder(encoder.folder, precision=record.precision, backend=record.backend)
    opened.chosen = record.arithmetic
    return opened
