"""Reindexing: writes an encoder's vectors into an index, verifies them, and switches the alias.

By default a new index is made beside the old one, and an alias moves when all documents are there. The index
is the checkpoint: beside every vector stand the encoder's fingerprint and the state of the document, so a
restart encodes only what is missing.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from ..cluster.connection import Cluster
from ..cluster.failures import EXISTS
from ..cluster.writing import rejects_of
from ..encoders.contract import Encoder, offers_of, reads_tokens
from ..encoders.opening import load_encoder
from ..errors import ClusterError
from ..files.remembered import remember_encoder
from ..records import Progress, Reported, silent
from .job import Filling, Job
from .planning import Plan, measured_answer
from .recipe import TextRecipe
from .representations import fitted_in
from .settings import ReindexSettings
from .targets import Succession, target_of
from .terms.fitting import Provision, TermTableBuilder, provide_term_table

COUNTED = ("encoded", "skipped", "without_text", "deleted", "shortened", "from_clients")
"""Counts of a filling that a result repeats."""


@dataclass(frozen=True)
class ReindexResult(Reported):
    """What a reindex did: counts of documents, and whether the alias was switched (in place there is none).

    `from_clients` counts encoded documents that clients wrote into an index with vectors; `shortened` those
    with more text than `max_passages` cover. `deployment` says what became of the deployment of the index
    that had the alias before; `tuned_before` names that index if it was tuned; `along` are filtered aliases
    that moved too. `term_table` is None if none was requested. `cautions` say who may read more in the new
    index than in its source; `notes` say which fields changed, where words are searched, and how to keep
    responses small. `carried` counts writes of clients in other indices with vectors: `changed`, `deleted`,
    `conflicts`. `confidence` says what scores mean here, if `Index.reindex` measured that; `seconds` are
    those of the whole call.
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
    from_clients: int = 0
    deployment: Succession | None = None
    tuned_before: str | None = None
    along: tuple[str, ...] = ()
    term_table: Provision | None = None
    cautions: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    carried: dict[str, int] | None = None
    confidence: str | None = None


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
    settings = settings or ReindexSettings()
    cluster = cluster.patient(settings.patience_s)
    if isinstance(encoder, (str, Path)):
        precision = settings.chosen_precision or "fp32"
        encoder = load_encoder(encoder, precision=precision, backend=settings.backend)
    else:
        settings = settings.model_copy(update={"precision": None})
    return reindex_planned(prepare(cluster, source, encoder, settings), progress=progress)


def reindex_planned(
    todo: Plan, *, fill: Callable[[Job, Plan], Filling] | None = None, progress: Progress = silent
) -> ReindexResult:
    """Carry out a plan from `prepare`: fill the index, verify it, switch the alias, build the term table.

    Documents are written by the function `fill` if given, else by the target.
    """
    job = job_for(todo)
    filling = fill(job, todo) if fill else target_of(job.settings).fill(job, progress=progress)
    ending, table = target_of(job.settings).complete(job, todo, filling, progress), None
    job.rejects.save()
    if job.settings.term_table:
        index = ending.info or job.destination
        table = provide_term_table(job.cluster, index, job.encoder, listener=job.listener, progress=progress)
    counts = {name: getattr(filling, name) for name in COUNTED}
    notes = (*todo.proposal.notes, measured_answer(job.cluster, job.destination_before, todo.record))
    return ReindexResult(
        source=job.source,
        destination=job.destination,
        alias=todo.record.alias or None,
        documents=job.cluster.count(job.destination),
        rejects_file=job.rejects.file if ending.rejected else None,
        rejected=ending.rejected,
        switched=ending.switched,
        seconds=time.monotonic() - todo.started,
        deployment=ending.deployment,
        tuned_before=ending.tuned_before,
        along=ending.along,
        term_table=table,
        cautions=tuple(todo.cautions),
        notes=notes,
        carried=ending.carried,
        **counts,
    )


def prepare(cluster: Cluster, name: str, encoder: Encoder, settings: ReindexSettings) -> Plan:
    """Plan the reindex and create its index, ready to take vectors; return the plan."""
    started = time.monotonic()
    while True:
        todo = plan(cluster, name, encoder, settings)
        try:
            return replace(todo, begun=target_of(settings).begin(cluster, todo), started=started)
        except ClusterError as error:
            # Another process was first, or this request was carried out although its answer was lost.
            if error.kind != EXISTS or todo.exists:
                raise


def job_for(todo: Plan) -> Job:
    """Return the job that workers share for a planned reindex, with an empty rejects file.

    The job builds a term table from the states of tokens if the encoder computes them anyway and a table is
    requested.
    """
    proposal, record, rejects = todo.proposal, todo.record, rejects_of(todo.destination)
    encoder, cluster = proposal.encoder, proposal.cluster
    info = todo.begun or cluster.index_info(todo.destination)
    remember_encoder(encoder.fingerprint, offers_of(encoder).folder)
    rejects.clear()
    recipe = TextRecipe(encoder, proposal.settings, record.fields, fitted_in(record))
    listener = None
    if recipe.settings.term_table and recipe.shows_states and reads_tokens(encoder) and not record.passages:
        listener = TermTableBuilder(cluster, info, encoder, proposal.documents)
    names, seen = (record.source, todo.destination), (info, proposal.info)
    return Job(cluster, *names, recipe, rejects, listener=listener, seen=seen)


def plan(cluster: Cluster, name: str, encoder: Encoder, settings: ReindexSettings) -> Plan:
    """Return what a reindex would do, after all checks that need no write.

    Raises SettingsError, ClusterError, DataError, ModelError, NotFound for what prevents it.
    """
    return target_of(settings).plan(cluster, name, encoder, settings)
