"""From labelled queries to a REM folder: negatives, tokens, training, files."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..assembly import adapters
from ..assembly.assembly import RANKERS, local_path
from ..assembly.backbone import Dam, read_dam, write_dam_files
from ..assembly.new_rem import (
    add_head,
    attach_fresh,
    design_of,
    embedding_weights,
    head_weights,
    unfreeze,
    write_rem,
)
from ..assembly.ranker import Ranker
from ..assembly.rem_files import EMBEDDINGS, HEAD_WEIGHTS, WEIGHTS, RemFiles, read_rem
from ..errors import SettingsError
from ..files.atomic import require_space, staged_folder
from ..files.family import member_of, names_of
from ..files.manifest import fingerprint, sha256_of, write_manifest
from ..progress import Progress, silent
from . import runs
from .batches import Batches, Examples, Limits, read_distilled, read_examples
from .judged import Judged, Ranking, mine
from .loop import Processes, choose_precision, train
from .objectives import Precision
from .settings import OBJECTIVES, RemSettings

VERSION = 1  # of the procedure; a change of its results makes finished runs start anew
STAGE = "rem"
PATHS = {"out", "dam", "rem", "negatives", "teacher"}
NOT_RECORDED = PATHS | {"device"}
NOT_COMPARED = NOT_RECORDED | {"precision", "checkpoint_every"}  # what lies at the paths is
BYTES_PER_WEIGHT = 28  # two checkpoints of weight and both moments for a moment, and the result


@dataclass(frozen=True)
class RemTraining:
    """A folder with a REM (or a whole model), and how it came to be.

    `loss_start` and `loss_end` are means over the first and last tenth of the steps.
    """

    folder: Path
    kind: str
    """"rem", or "whole": all weights were trained."""
    steps: int
    queries: int
    """Queries trained on."""
    dropped: int
    """Queries left out: the teacher scored too few documents of them."""
    documents: int
    parameters: int
    """Weights that were trained."""
    share: float
    """Of the backbone's weights, 0..1."""
    loss_start: float
    loss_end: float
    seconds: float
    resumed_from: int
    losses: tuple[float, ...] = ()
    """At most some 200 of them, evenly chosen."""
    reused: bool = False


@dataclass(frozen=True)
class RemPlan:
    """What a run works on, and the key that tells whether it was done before."""

    settings: RemSettings
    judged: Judged
    dam: Dam
    ranker: Ranker
    rem: RemFiles | None
    """The one that is trained on; None for a fresh one."""
    precision: Precision
    backbone: int
    """Weights of the backbone alone."""
    processes: Processes
    source: str
    """Where negatives are mined."""
    key: str

    @property
    def name(self) -> str:
        """The adapter's name in the files."""
        return self.rem.name if self.rem else self.settings.name

    @property
    def state(self) -> Path:
        """Where an unfinished run lies."""
        return self.settings.out / runs.STATE_FOLDER


def train_rem(
    judged: Judged,
    settings: RemSettings,
    *,
    rank: Ranking | None = None,
    source: str = "bm25",
    progress: Progress = silent,
) -> RemTraining:
    """Train a REM on labelled queries, the DAM frozen (Zhan et al. 2022), into the folder `settings.out`.

    Without a file of negatives they are mined by BM25, in this process or by `rank` (a cluster's
    `Search(...).run`; `source` names it). A run that was finished with the same inputs and settings returns
    at once, a killed one goes on. Under `accelerate launch` every process takes `batch_size` queries. Raises
    SettingsError, DataError (labels, negatives, teacher), ModelError (DAM, REM, loss), DownloadError (disk).
    """
    require_consistent(settings)
    runs.require_own(settings.out, STAGE, "REM")
    processes = Processes(settings.device)
    report = progress if processes.is_main else silent
    plan = plan_rem(judged.sample(settings.max_queries, settings.seed), settings, processes, source, report)
    if (finished := runs.read_finished(settings.out, STAGE, plan.key)) is not None:
        return runs.result_of(RemTraining, settings.out, finished[STAGE], reused=True)
    entry = fit(plan, read(plan, rank, report), report)
    return runs.result_of(RemTraining, settings.out, entry, reused=False)


def require_consistent(settings: RemSettings) -> None:
    """Raise SettingsError when two settings contradict each other."""
    taught = names_of(OBJECTIVES, on="labels", teacher=True)
    if settings.full and settings.rem:
        raise SettingsError("--full trains all weights, --rem continues a REM: give one of them")
    if (settings.loss in taught) != (settings.teacher is not None):
        raise SettingsError(
            "distillation needs --teacher FILE with scores, and only distillation takes it",
            hint=f"--loss {' or '.join(taught)} --teacher SCORES.jsonl",
        )
    if (settings.loss in taught or settings.ranker == "rerank") and not settings.negatives_per_query:
        raise SettingsError(f"{settings.loss} of {settings.ranker} needs --negatives-per-query 1 or more")
    if settings.ranker == "rerank" and settings.loss != "contrast":
        raise SettingsError("a re-ranker is trained by --loss contrast only")
    if settings.ranker != "dense" and (settings.pooling, settings.similarity) != ("mean", "ip"):
        raise SettingsError(f"pooling and similarity are for the dense ranker, not for {settings.ranker}")


def plan_rem(
    judged: Judged, settings: RemSettings, processes: Processes, source: str, progress: Progress
) -> RemPlan:
    """Open DAM and REM, and fix what the run is."""
    with processes.main_first():  # a published one is downloaded once
        dam = read_dam(local_path(settings.dam, progress))
        rem = read_rem(local_path(settings.rem, progress)) if settings.rem else None
    ranker = RANKERS[settings.ranker](dam, settings.pooling, settings.similarity)
    precision = choose_precision(settings.precision, processes.device)
    key = {
        **runs.recorded(settings, without=NOT_COMPARED),
        "version": VERSION,
        "judged": judged.fingerprint,
        "dam": ranker.fingerprint,
        "source": source,
        "rem": rem and fingerprint_of(rem),
        "precision": precision,
        "processes": processes.count,
        "negatives": settings.negatives and sha256_of(existing(settings.negatives)),
        "teacher": settings.teacher and sha256_of(existing(settings.teacher)),
    }
    backbone = sum(weight.numel() for weight in ranker.backbone.parameters())
    return RemPlan(
        settings, judged, dam, ranker, rem, precision, backbone, processes, source, fingerprint(key)
    )


def existing(file: Path) -> Path:
    """Give the file back. Raises SettingsError when there is none."""
    if not file.is_file():
        raise SettingsError(f"there is no file {file}")
    return file


def fingerprint_of(rem: RemFiles) -> str:
    """Hash a REM's design and weights."""
    digest = hashlib.sha256(fingerprint(rem.record["config"]).encode())
    for file in (WEIGHTS, HEAD_WEIGHTS, EMBEDDINGS):
        for key, value in sorted(rem.tensors(file).items()):
            digest.update(key.encode() + value.contiguous().numpy().tobytes())
    return digest.hexdigest()


def read(plan: RemPlan, rank: Ranking | None, progress: Progress) -> Examples:
    """Mine the negatives where no file is given, and tokenise what is trained on."""
    settings, tokens = plan.settings, plan.ranker.tokens
    limits = Limits.of(plan.ranker, settings)
    if settings.teacher:
        least = settings.negatives_per_query
        return read_distilled(plan.judged, settings.teacher, tokens, limits, least, progress=progress)
    file = settings.negatives
    if file is None and settings.mined and settings.negatives_per_query:
        with plan.processes.main_first():
            file = mine(
                plan.judged, plan.state, settings.mined, rank=rank, source=plan.source, progress=progress
            ).file
    return read_examples(plan.judged, file, tokens, limits, progress=progress)


def fit(plan: RemPlan, examples: Examples, progress: Progress) -> dict[str, Any]:
    """Train from the last checkpoint, where there is one, and write the folder; give its entry."""
    settings, processes = plan.settings, plan.processes
    size = settings.batch_size * processes.count
    batches = Batches(examples, size, settings.negatives_per_query, settings.seed)
    weights = make_trainable(plan)
    require_space(settings.out, sum(map(torch.numel, weights.values())) * BYTES_PER_WEIGHT)
    plan.ranker.to(processes.device)
    member = member_of(OBJECTIVES, "pairs" if settings.ranker == "rerank" else settings.loss)
    objective = member(plan.ranker, weights, batches, settings, plan.precision, processes)
    state = plan.state / runs.STATE_FILE
    run = train(objective, objective.recipe, state, plan.key, processes=processes, progress=progress)
    entry = rem_entry(plan, examples, weights, run)
    if processes.is_main:
        write_training(plan, run, entry)
    processes.wait()
    return entry


def make_trainable(plan: RemPlan) -> dict[str, torch.nn.Parameter]:
    """Put the REM into the ranker, or free all weights; give what is trained by name."""
    settings, ranker = plan.settings, plan.ranker
    if plan.rem is not None:
        ranker.add_rem(plan.rem)
    elif not settings.full:
        attach_fresh(ranker, design_of(settings.design, settings.rank), settings.seed)
    add_head(ranker, settings.token_dim, settings.seed)
    head = head_weights(ranker, plan.name)
    if settings.full:
        return unfreeze(dict(ranker.backbone.named_parameters()) | head)
    inputs = embedding_weights(ranker) if settings.train_embeddings else {}
    return unfreeze(adapters.adapter_weights(ranker.backbone, plan.name) | head | inputs)


def rem_entry(
    plan: RemPlan, examples: Examples, weights: Mapping[str, torch.nn.Parameter], run: runs.Training
) -> dict[str, Any]:
    """Give the `rem` entry of the manifest."""
    settings = plan.settings
    parameters = sum(map(torch.numel, weights.values()))
    return {
        "key": plan.key,
        "kind": "whole" if settings.full else "rem",
        "ranker": plan.ranker.ranker,
        "pooling": settings.pooling,
        "similarity": settings.similarity,
        "precision": plan.precision,
        "queries": len(examples.queries),
        "dropped": examples.dropped,
        "documents": len(examples.documents),
        "parameters": parameters,
        "share": parameters / plan.backbone,
        **run.record(),
    }


def write_training(plan: RemPlan, run: runs.Training, entry: Mapping[str, Any]) -> None:
    """Write weights, losses, curve and manifest, whole or not at all; the unfinished state goes."""
    settings = plan.settings
    with staged_folder(settings.out) as folder:
        if settings.full:
            heads = {} if settings.ranker == "splade" else head_weights(plan.ranker, plan.name)
            files = write_dam_files(plan.dam, folder, heads=heads, language_head=plan.dam.has_language_head)
        else:
            files = write_rem(plan.ranker, design_of(settings.design, settings.rank), settings.name, folder)
        files += runs.write_history(folder, plan.state, run.losses)
        write_manifest(
            folder,
            stage=STAGE,
            settings=runs.recorded(settings, without=NOT_RECORDED),
            inputs={
                "judged": plan.judged.fingerprint,
                "collection": plan.judged.name,
                "negatives": plan.source,
                **plan.ranker.origins,
            },
            outputs=files,
            extra={STAGE: dict(entry)},
        )
