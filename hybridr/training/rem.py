"""From labelled queries to a REM folder: negatives, tokens, training, files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import SettingsError
from ..families import member_of
from ..files.atomic import require_space, staged_folder
from ..files.folders import below
from ..files.manifest import fingerprint, sha256_of, write_manifest
from ..records import Progress, silent
from ..relevance.corpus import TargetDomain
from . import adapters, runs
from .assembly import RANKERS, local_path, usage_of
from .backbone import Dam, read_dam, write_dam_files
from .batches import Batches, Examples, Limits, Rows, TargetTexts, read_distilled, read_examples
from .judged import Judged, RanksQueries, mine, rank_by
from .loop import CHECKPOINTS, Processes, choose_precision, train
from .new_rem import (
    add_head,
    attach_fresh,
    design_of,
    embedding_weights,
    head_weights,
    unfreeze,
    write_rem,
)
from .objectives import TrainingPrecision
from .objectives.labelled import Materials
from .ranker import Ranker
from .rem_files import RemFiles, read_rem
from .settings import MODIR, OBJECTIVES, RemSettings, require_consistent, require_method

if TYPE_CHECKING:
    import torch

STAGE = "rem"
NAME = "rem"  # of the adapter in its files
TOKEN_DIM = 32  # of ColBERT, as published
VECTORS = 4  # of each query in an entry of MoDIR's queue
KEY_VERSION = 3  # of the procedure; a change of its results makes finished runs start anew
NOT_RECORDED = {"out", "dam", "rem", "negatives", "teacher", "device"}
NOT_COMPARED = NOT_RECORDED | {"precision", "checkpoint_every"}  # what lies at the paths is
BYTES_PER_WEIGHT = 28  # two checkpoints of weight and both moments for a moment, and the result


@dataclass(frozen=True, kw_only=True)
class RemTraining(runs.Trained):
    """A folder with a REM (or a whole model), and how it came to be."""

    kind: str
    """"rem", or "whole": all weights were trained."""
    queries: int
    """Queries trained on."""
    dropped: int
    """Queries left out: the teacher scored too few documents of them."""
    parameters: int
    """Weights that were trained."""
    share: float
    """Of the backbone's weights, 0..1."""
    method: Mapping[str, Any] | None = None
    """What the method, such as "idro", says of itself; None for none."""


@dataclass(frozen=True)
class RemPlan:
    """What a run works on, and the key that tells whether it was done before."""

    settings: RemSettings
    judgements: Judged
    dam: Dam
    ranker: Ranker
    rem: RemFiles | None
    """The one that is trained on; None for a fresh one."""
    precision: TrainingPrecision
    backbone: int
    """Weights of the backbone alone."""
    processes: Processes
    source: str
    """Where negatives are mined."""
    target: TargetDomain | None
    """What vectors shall not tell from the source."""
    method: str | None
    """What stands on top of the loss."""
    key: str

    @property
    def name(self) -> str:
        """The adapter's name in the files."""
        return self.rem.name if self.rem else NAME

    def state_of(self, episode: int) -> Path:
        """Return the folder of an episode's state, numbered from 0."""
        state = self.settings.out / runs.STATE_FOLDER
        return below(state, f"episode-{episode + 1}") if episode else state


def train_rem(
    judgements: Judged,
    settings: RemSettings,
    *,
    rank: RanksQueries | None = None,
    source: str = "bm25",
    target: TargetDomain | None = None,
    progress: Progress = silent,
) -> RemTraining:
    """Train a REM on labelled queries, the DAM frozen (Zhan et al. 2022), into the folder `settings.out`.

    Without a file of negatives they are mined by BM25, in this process or by `rank` (a cluster's
    `Search(...).run`; `source` names it). Vectors learn not to tell a `target` from the source (MoDIR).
    A run that was finished with the same inputs and settings returns at once, a killed one goes on. Under
    `accelerate launch` every process takes `batch_size` queries. Raises SettingsError, DataError (labels,
    negatives, teacher, clusters, units), ModelError (DAM, REM, loss), DownloadError (disk).
    """
    require_consistent(settings)
    require_method(settings, invariant=target is not None)
    if method := settings.method or (MODIR if target else None):
        own_settings_of(method, settings)
    runs.require_own(settings.out, STAGE, "REM")
    processes = Processes(settings.device)
    report = progress if processes.is_main else silent
    judgements = judgements.sample(settings.max_queries, settings.seed)
    plan = plan_rem(judgements, settings, processes, source, target, report)
    if (finished := runs.read_finished(settings.out, STAGE, plan.key)) is not None:
        return runs.result_of(RemTraining, settings.out, finished[STAGE], reused=True)
    entry = fit(plan, rank, report)
    return runs.result_of(RemTraining, settings.out, entry, reused=False)


def own_settings_of(method: str, settings: RemSettings) -> Any:
    """Check a method's own settings. Raise SettingsError."""
    return member_of(OBJECTIVES, method).own_settings(**settings.method_settings)


def plan_rem(
    judgements: Judged,
    settings: RemSettings,
    processes: Processes,
    source: str,
    target: TargetDomain | None,
    progress: Progress,
) -> RemPlan:
    """Open DAM and REM, and fix what the run is. Raise SettingsError for another usage, or a missing file."""
    with processes.main_first():  # a published one is downloaded once
        dam = read_dam(local_path(settings.dam, progress))
        rem = read_rem(local_path(settings.rem, progress)) if settings.rem else None
    for origin in filter(None, (settings.dam, settings.rem)) if settings.ranker == "dense" else ():
        for name, trained in usage_of(origin).items():
            if trained != (value := getattr(settings, name)):
                raise SettingsError(
                    f"{origin} was trained with {name} {trained}, not {value}",
                    hint=f"[rem] {name} = '{trained}'",
                )
    for file in filter(None, (settings.negatives, settings.teacher)):
        if not file.is_file():
            raise SettingsError(f"there is no file {file}")
    ranker = RANKERS[settings.ranker](dam, settings.pooling, settings.similarity)
    precision = choose_precision(settings.precision, processes.device)
    method = settings.method or (MODIR if target else None)
    inputs = {
        "version": KEY_VERSION,
        "judged": judgements.fingerprint,
        "dam": ranker.fingerprint,
        "rem": rem and rem.fingerprint,
        "negatives": settings.negatives and sha256_of(settings.negatives),
        "teacher": settings.teacher and sha256_of(settings.teacher),
        "method": method,
        "method_settings": own_settings_of(method, settings).record() if method else {},
        "source": source,
        "precision": precision,
        "processes": processes.count,
        "target": target and target.fingerprint,
    }
    return RemPlan(
        settings=settings,
        judgements=judgements,
        dam=dam,
        ranker=ranker,
        rem=rem,
        precision=precision,
        backbone=sum(weight.numel() for weight in ranker.backbone.parameters()),
        processes=processes,
        source=source,
        target=target,
        method=method,
        key=fingerprint(runs.recorded(settings, without=NOT_COMPARED) | inputs),
    )


def read(plan: RemPlan, episode: int, rank: RanksQueries | None, progress: Progress) -> Examples:
    """Mine the negatives where no file is given, and tokenise what is trained on.

    After the first episode the ranker itself mines them, as far as it is trained.
    """
    settings, tokens = plan.settings, plan.ranker.tokens
    limits = Limits.of(plan.ranker, settings)
    if settings.teacher:
        minimum = settings.negatives_per_query
        return read_distilled(plan.judgements, settings.teacher, tokens, limits, minimum, progress=progress)
    file, source = settings.negatives, plan.source
    if episode:
        file, source = None, f"episode {episode + 1} of {plan.key}"
        rank = rank_by(plan.ranker, plan.judgements, limits)
    if file is None and settings.mined and settings.negatives_per_query:
        folder = plan.state_of(episode)
        with plan.processes.main_first():
            file = mine(plan.judgements, folder, settings.mined, rank=rank, source=source, progress=progress)
    return read_examples(plan.judgements, file, tokens, limits, progress=progress)


def fit(plan: RemPlan, rank: RanksQueries | None, progress: Progress) -> dict[str, Any]:
    """Train from the last checkpoint, where there is one, and write the folder; return its entry.

    An episode goes on from the weights of the one before; optimiser and method begin anew.
    """
    settings, processes = plan.settings, plan.processes
    first = read(plan, 0, rank, progress)
    weights = make_trainable(plan)
    parameters = sum(weight.numel() for weight in weights.values())
    queue = own_settings_of(MODIR, settings).queue * settings.batch_size if plan.target else 0
    queued = VECTORS * queue * processes.count * int(plan.ranker.config.hidden_size)
    require_space(settings.out, parameters * BYTES_PER_WEIGHT * settings.episodes + 4 * CHECKPOINTS * queued)
    plan.ranker.to(processes.device)
    run = runs.Training()
    for episode in range(settings.episodes):
        examples = read(plan, episode, rank, progress) if episode else first
        objective = objective_of(plan, examples, weights, episode)
        method = objective.method if plan.method else None
        state, key = plan.state_of(episode) / runs.STATE_FILE, f"{plan.key}:{episode}"
        trained = train(objective, state, key, memory=method, progress=progress)
        run = run.followed_by(trained)
        if method is not None:
            method.finish()
    entry = {
        "key": plan.key,
        "kind": "whole" if settings.full else "rem",
        "ranker": plan.ranker.ranker,
        "pooling": settings.pooling,
        "similarity": settings.similarity,
        "precision": plan.precision,
        "queries": len(first.queries),
        "dropped": first.dropped,
        "documents": len(first.documents),
        "parameters": parameters,
        "share": parameters / plan.backbone,
        **run.record(),
    }
    if method is not None:
        target = {"target": plan.target.name} if plan.target else {}
        entry["method"] = {"name": method.name, "source": method.source, **target, **method.record(trained)}
    if processes.is_main:
        write_training(plan, run, entry)
    processes.wait()
    return entry


def make_trainable(plan: RemPlan) -> dict[str, torch.nn.Parameter]:
    """Put the REM into the ranker, or free all weights; return what is trained by name."""
    settings, ranker = plan.settings, plan.ranker
    if plan.rem is not None:
        ranker.add_rem(plan.rem)
    elif not settings.full:
        attach_fresh(ranker, design_of(settings.design, settings.rank), settings.seed)
    add_head(ranker, TOKEN_DIM, settings.seed)
    head = head_weights(ranker, plan.name)
    if settings.full:
        return unfreeze(dict(ranker.backbone.named_parameters()) | head)
    inputs = embedding_weights(ranker)
    return unfreeze(adapters.adapter_weights(ranker.backbone, plan.name) | head | inputs)


def objective_of(
    plan: RemPlan, examples: Examples, weights: Mapping[str, torch.nn.Parameter], episode: int
) -> Any:
    """Set up the loss of an episode, which draws batches of its own, and the method on top of it."""
    processes, tokens, target = plan.processes, plan.ranker.tokens, plan.target
    settings = plan.settings.model_copy(update={"seed": plan.settings.seed + episode})
    size = settings.batch_size * processes.count
    batches = Batches(examples, size, settings.negatives_per_query, settings.seed)
    member = member_of(OBJECTIVES, "pairs" if settings.ranker == "rerank" else settings.loss)
    objective = member(plan.ranker, weights, batches, settings, plan.precision, processes)
    if plan.method is None:
        return objective
    texts, limits = None, objective.limits
    if target is not None:
        documents = [document.contents for document in target.documents]
        texts = TargetTexts(
            Rows.of(tokens.rows(target.queries, limits.query)),
            Rows.of(tokens.rows(documents, limits.document)),
            np.array(target.made_from),
        )
    own = own_settings_of(plan.method, plan.settings)
    materials = Materials(plan.settings, own, plan.judgements, texts)
    objective.method = member_of(OBJECTIVES, plan.method).create(objective, materials)
    return objective


def write_training(plan: RemPlan, run: runs.Training, entry: Mapping[str, Any]) -> None:
    """Write weights, losses and manifest, whole or not at all; the unfinished state goes."""
    settings = plan.settings
    with staged_folder(settings.out) as folder:
        if settings.full:
            heads = {} if settings.ranker == "splade" else head_weights(plan.ranker, plan.name)
            files = write_dam_files(plan.dam, folder, heads=heads, language_head=plan.dam.has_language_head)
        else:
            files = write_rem(plan.ranker, design_of(settings.design, settings.rank), NAME, folder)
        runs.write_steps(folder / runs.LOSSES_FILE, run)
        files += [runs.LOSSES_FILE]
        write_manifest(
            folder,
            stage=STAGE,
            settings=runs.recorded(settings, without=NOT_RECORDED),
            inputs={
                "judged": plan.judgements.fingerprint,
                "collection": plan.judgements.name,
                "negatives": plan.source,
                "target": plan.target and plan.target.fingerprint,
                **plan.ranker.origins,
            },
            outputs=files,
            extra={STAGE: dict(entry)},
        )
