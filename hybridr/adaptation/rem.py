"""From labelled queries to a REM folder: negatives, tokens, training, files."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..assembly import adapters
from ..assembly.assembly import RANKERS, located
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
from ..errors import ModelError, SettingsError
from ..files.atomic import require_space, staged_folder
from ..files.manifest import fingerprint, read_manifest, sha256_of, write_manifest
from ..progress import Progress, silent
from .batches import Batches, Examples, Limits, read_distilled, read_examples
from .judged import Judged, Ranking, mine
from .loop import (
    LOSSES_FILE,
    STATE_FILE,
    STATE_FOLDER,
    Precision,
    Processes,
    Recipe,
    Training,
    choose_precision,
    train,
)
from .objectives.contrast import Contrastive
from .objectives.distil import MarginMse
from .objectives.labelled import Comparison, Strength
from .objectives.pairs import PairChoice
from .runs import CURVE_FILE, thinned, write_curve
from .settings import RemSettings

VERSION = 1  # of the procedure; a change of its results makes finished runs start anew
INV_TEMPERATURES = {"ip": 1.0, "cosine": 20.0}
OBJECTIVES: dict[str, type[Comparison]] = {"contrast": Contrastive, "distil": MarginMse}
RATES = {False: 2e-5, True: 1e-5}
"""Learning rates of a REM, and of all weights."""
NOT_TRAINED_BY = {"out", "dam", "rem", "negatives", "teacher", "device", "precision", "checkpoint_every"}
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
class Plan:
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
    size: int
    """Queries in a batch of all processes."""
    source: str
    """Where negatives are mined."""
    key: str

    @property
    def limits(self) -> Limits:
        """Longest inputs. Raises DataError when the backbone has no positions for them."""
        query, document = self.settings.max_query_tokens, self.settings.max_document_tokens
        if self.settings.ranker == "rerank":
            self.ranker.limit(query + document)
        return Limits(self.ranker.limit(query), self.ranker.limit(document))

    @property
    def name(self) -> str:
        """The adapter's name in the files."""
        return self.rem.name if self.rem else self.settings.name

    @property
    def state(self) -> Path:
        """The checkpoint of an unfinished run."""
        return self.settings.out / STATE_FOLDER / STATE_FILE


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
    require_replaceable(settings.out)
    processes = Processes(settings.device)
    report = progress if processes.is_main else silent
    plan = prepare(judged.sample(settings.max_queries, settings.seed), settings, processes, source, report)
    if (finished := read_finished(plan)) is not None:
        return finished
    examples = read(plan, rank, processes, report)
    return fit(plan, examples, processes, report)


def require_consistent(settings: RemSettings) -> None:
    """Raise SettingsError when two settings contradict each other."""
    if settings.full and settings.rem:
        raise SettingsError("--full trains all weights, --rem continues a REM: give one of them")
    if (settings.loss == "distil") != (settings.teacher is not None):
        raise SettingsError(
            "distillation needs --teacher FILE with scores, and only distillation takes it",
            hint="--loss distil --teacher SCORES.jsonl",
        )
    if (settings.loss == "distil" or settings.ranker == "rerank") and not settings.negatives_per_query:
        raise SettingsError(f"{settings.loss} of {settings.ranker} needs --negatives-per-query 1 or more")
    if settings.loss == "distil" and settings.ranker == "rerank":
        raise SettingsError("a re-ranker is trained by --loss contrast only")
    if settings.ranker != "dense" and (settings.pooling, settings.similarity) != ("mean", "ip"):
        raise SettingsError(f"pooling and similarity are for the dense ranker, not for {settings.ranker}")


def require_replaceable(folder: Path) -> None:
    """Raise ModelError when `folder` holds anything but a REM of ours or the state of an unfinished run."""
    found = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    own = STATE_FOLDER in found or (read_manifest(folder) or {}).get("stage") == "rem"
    if folder.exists() and not folder.is_dir() or found and not own:
        raise ModelError(
            f"{folder} exists and is not a REM that hybridr trained, so it is not replaced",
            hint="choose another folder with --out, or remove it",
        )


def prepare(
    judged: Judged, settings: RemSettings, processes: Processes, source: str, progress: Progress
) -> Plan:
    """Open DAM and REM, and fix what the run is."""
    with processes.main_first():  # a published one is downloaded once
        dam = read_dam(located(settings.dam, progress))
        rem = read_rem(located(settings.rem, progress)) if settings.rem else None
    ranker = RANKERS[settings.ranker](dam, settings.pooling, settings.similarity)
    precision = choose_precision(settings.precision, processes.device)
    values = {name: value for name, value in settings.record().items() if name not in NOT_TRAINED_BY}
    parts = values | {
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
    size = settings.batch_size * processes.count
    return Plan(settings, judged, dam, ranker, rem, precision, backbone, size, source, fingerprint(parts))


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


def read(plan: Plan, rank: Ranking | None, processes: Processes, progress: Progress) -> Examples:
    """Mine the negatives where no file is given, and tokenise what is trained on."""
    settings, tokens = plan.settings, plan.ranker.tokens
    limits = plan.limits
    if settings.teacher:
        least = settings.negatives_per_query
        return read_distilled(plan.judged, settings.teacher, tokens, limits, least, progress=progress)
    file = settings.negatives
    if file is None and settings.mined and settings.negatives_per_query:
        with processes.main_first():
            file = mine(
                plan.judged,
                settings.out / STATE_FOLDER,
                settings.mined,
                rank=rank,
                source=plan.source,
                progress=progress,
            ).file
    return read_examples(plan.judged, file, tokens, limits, progress=progress)


def fit(plan: Plan, examples: Examples, processes: Processes, progress: Progress) -> RemTraining:
    """Train from the last checkpoint, where there is one, and write the folder."""
    settings = plan.settings
    batches = Batches(examples, plan.size, settings.negatives_per_query, settings.seed)
    weights = make_trainable(plan)
    require_space(settings.out, sum(map(torch.numel, weights.values())) * BYTES_PER_WEIGHT)
    plan.ranker.to(processes.device)
    kind = PairChoice if settings.ranker == "rerank" else OBJECTIVES[settings.loss]
    strength = Strength(
        inv_temperature=settings.inv_temperature or INV_TEMPERATURES[settings.similarity],
        flops=settings.flops if settings.ranker == "splade" else 0.0,
        dropout=settings.dropout,
    )
    objective = kind(plan.ranker, weights, batches, processes, plan.limits, strength)
    recipe = Recipe(
        steps=settings.steps or settings.epochs * batches.per_epoch,
        seed=settings.seed,
        learning_rate=settings.learning_rate or RATES[settings.full],
        precision=plan.precision,
        checkpoint_every=settings.checkpoint_every,
    )
    run = train(objective, recipe, plan.state, plan.key, processes=processes, progress=progress)
    if processes.is_main:
        write(plan, run, facts(plan, examples, weights, run))
    processes.wait()
    return result(settings.out, read_manifest(settings.out) or {})


def make_trainable(plan: Plan) -> dict[str, torch.nn.Parameter]:
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


def facts(
    plan: Plan, examples: Examples, weights: Mapping[str, torch.nn.Parameter], run: Training
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
        "steps": len(run.losses),
        "loss_start": run.loss_start,
        "loss_end": run.loss_end,
        "seconds": round(run.seconds, 1),
        "resumed_from": run.resumed_from,
        "losses": thinned(run.losses),
    }


def write(plan: Plan, run: Training, entry: Mapping[str, Any]) -> None:
    """Write weights, losses, curve and manifest, whole or not at all; the unfinished state goes."""
    settings = plan.settings
    paths = {"out", "dam", "rem", "negatives", "teacher", "device"}
    with staged_folder(settings.out) as folder:
        if settings.full:
            heads = {} if settings.ranker == "splade" else head_weights(plan.ranker, plan.name)
            files = write_dam_files(plan.dam, folder, heads=heads, language_head=plan.dam.has_language_head)
        else:
            files = write_rem(plan.ranker, design_of(settings.design, settings.rank), settings.name, folder)
        shutil.copyfile(plan.state.parent / LOSSES_FILE, folder / LOSSES_FILE)
        write_curve(folder / CURVE_FILE, run.losses)
        write_manifest(
            folder,
            stage="rem",
            settings={name: value for name, value in settings.record().items() if name not in paths},
            inputs={
                "judged": plan.judged.fingerprint,
                "collection": plan.judged.name,
                "negatives": plan.source,
                **plan.ranker.origins,
            },
            outputs=[*files, LOSSES_FILE, CURVE_FILE],
            extra={"rem": dict(entry)},
        )


def read_finished(plan: Plan) -> RemTraining | None:
    """Give the result of a finished run with the plan's key, if its files are intact."""
    folder = plan.settings.out
    manifest = read_manifest(folder) or {}
    if manifest.get("stage") != "rem" or manifest["rem"]["key"] != plan.key:
        return None
    for name, digest in manifest["outputs"].items():
        if not (folder / name).is_file() or sha256_of(folder / name) != digest:
            return None
    return result(folder, manifest, reused=True)


def result(folder: Path, manifest: Mapping[str, Any], *, reused: bool = False) -> RemTraining:
    """Give the result that a manifest records."""
    values = {name: value for name, value in manifest["rem"].items() if name in RemTraining.__annotations__}
    return RemTraining(folder=folder, reused=reused, **values | {"losses": tuple(values["losses"])})
