"""Trains a REM on labelled queries and writes its folder (`hybridr rem train`).

The steps: mine negatives, tokenise, add adapters and a head to a ranker, train, write the files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..encoders.stored_models import STEMS
from ..errors import SettingsError, extra
from ..families import load_member, member_names
from ..files.local import child_path, fingerprint, require_space, sha256_of, write_json
from ..files.staging import claimed_folder, staged_folder
from ..records import Progress, silent
from ..relevance.corpus import TargetDomain
from . import adapters, runs
from .adapters import LORA_NEEDS, PARALLEL_NEEDS, Design, Lora, Parallel
from .backbone import (
    CONFIG,
    EMBEDDINGS,
    HEAD_CONFIG,
    HEAD_WEIGHTS,
    WEIGHTS,
    read_dam,
    read_rem,
    write_dam_files,
)
from .batches import Batches, Examples, Limits, Rows, TargetTexts, read_distilled, read_examples
from .judged import Judged, RanksQueries, dense_ranking, mine_negatives
from .loop import CHECKPOINTS, Processes, choose_precision, train
from .ranker import Ranker
from .rankers import RANKERS, CrossEncoder, Splade, local_path, read_trained_usage
from .settings import OBJECTIVES, RemSettings, require_consistent, require_method
from .torch_models import plain_tensors

with extra("train", "training a REM"):
    import torch

FORMAT = "3.2.1"  # the version of adapter-transformers whose file format this is
UNUSED_HYPERCOMPLEX: dict[str, Any] = {
    "factorized_phm_W": True,
    "factorized_phm_rule": False,
    "hypercomplex_nonlinearity": "glorot-uniform",
    "learn_phm": True,
    "phm_bias": True,
    "phm_c_init": "normal",
    "phm_dim": 4,
    "phm_init_range": 0.0001,
    "phm_rank": 1,
    "shared_W_phm": False,
    "shared_phm_rule": True,
}
"""Entries in published files about hypercomplex layers, which these adapters lack."""
CLASSES = {
    "dense": "{}Dense",
    "unicoil": "{}Unicoil",
    "splade": "{}Splade",
    "colbert": "ColBERT",
    "rerank": "{}AdapterModel",
}
"""The class that the authors' code opens a REM with."""
Trainable = dict[str, torch.nn.Parameter]
TAGGING: dict[str, Any] = {"head_type": "tagging", "layers": 1, "activation_function": "tanh"}
CLASSIFICATION = TAGGING | {"head_type": "classification", "bias": True, "use_pooler": False}


def design_for(kind: str, rank: int) -> Design:
    """Return the design of a REM by kind: "lora", "parallel", or "both" as published; alpha is the rank."""
    lora = Lora(rank, rank) if kind in ("lora", "both") else None
    return Design(lora, Parallel() if kind in ("parallel", "both") else None)


def attach_fresh(ranker: Ranker, design: Design, seed: int) -> None:
    """Add new adapters to the ranker, which leave its output unchanged, and freeze its other weights.

    A and W_down are Kaiming-uniform with a = sqrt(5) from `seed`, the rest is zero (Zhan et al. 2022).
    """
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        adapters.attach(ranker.backbone, design)


def design_config(design: Design) -> dict[str, Any]:
    """Return the `config` of `adapter_config.json` for a design of `design_for`."""
    parts = []
    if lora := design.lora:
        fields = {
            "architecture": "lora",
            "r": lora.rank,
            "alpha": lora.alpha,
            "dropout": lora.dropout,
            "attn_matrices": list(lora.projections),
            "init_weights": "lora",
        }
        parts.append(LORA_NEEDS | fields)
    if parallel := design.parallel:
        fields = {
            "reduction_factor": parallel.reduction_factor,
            "scaling": parallel.scaling,
            "non_linearity": parallel.activation,
            "init_weights": "mam_adapter",
            "inv_adapter_reduction_factor": None,
            "residual_before_ln": True,
        }
        parts.append(PARALLEL_NEEDS | UNUSED_HYPERCOMPLEX | fields)
    return parts[0] if len(parts) == 1 else {"architecture": "union", "configs": parts}


def write_rem(ranker: Ranker, design: Design, folder: Path) -> list[str]:
    """Write the REM in `ranker` into `folder`; return the names of the files."""
    if ranker.rem is not None:
        record = dict(ranker.rem.record)  # a REM that is trained further keeps its record
    else:
        config = design_config(design)
        record = {
            "config": config,
            "config_id": fingerprint(config)[:16],
            "hidden_size": int(ranker.config.hidden_size),
            "model_class": CLASSES[ranker.ranker].format(STEMS[ranker.config.model_type]),
            "model_name": None,
            "model_type": ranker.config.model_type,
            "name": NAME,
            "version": FORMAT,
        }
    tensors = adapters.adapter_weights(ranker.backbone, str(record["name"]))
    torch.save(plain_tensors(tensors), folder / WEIGHTS)
    write_json(folder / CONFIG, record)
    return [WEIGHTS, CONFIG, *write_head(ranker, record, folder)]


def add_head(ranker: Ranker, seed: int) -> None:
    """Add a new linear head to a ranker that needs one and has none.

    It has as many outputs as ColBERT's published vectors, unless the ranker's type fixes their number.
    Weights are drawn with the backbone's initial standard deviation; the bias is zero. Raises ModelError for
    SPLADE without a masked-LM head, which cannot be initialised.
    """
    if ranker.outputs is None or not isinstance(ranker.head, torch.nn.Identity):
        ranker.require_complete()
        return
    head = torch.nn.Linear(ranker.config.hidden_size, ranker.outputs or TOKEN_DIM)
    generator = torch.Generator().manual_seed(seed)
    std = float(getattr(ranker.config, "initializer_range", 0.02))
    torch.nn.init.normal_(head.weight, std=std, generator=generator)
    torch.nn.init.zeros_(head.bias)
    ranker.head = head.to(ranker.device)  # drawn on the processor: the same weights on every device


def embedding_weights(ranker: Ranker) -> Trainable:
    """Return the input embeddings that the REM of a re-ranker carries; empty for other rankers."""
    return dict(ranker.backbone.embeddings.named_parameters()) if isinstance(ranker, CrossEncoder) else {}


def unfreeze(weights: Trainable) -> Trainable:
    """Make parameters trainable and return them, tied ones only once."""
    distinct: Trainable = {}
    for key, weight in weights.items():
        if not any(weight is parameter for parameter in distinct.values()):
            weight.requires_grad_(True)
            distinct[key] = weight
    return distinct


def write_head(ranker: Ranker, record: Mapping[str, Any], folder: Path) -> list[str]:
    """Write the head (and a re-ranker's embeddings) beside the adapters; return the names of the files."""
    name = str(record["name"])
    weights = ranker.head_weights(name)
    if not weights:
        return []
    torch.save(plain_tensors(weights), folder / HEAD_WEIGHTS)
    names = ("hidden_size", "model_class", "model_name", "model_type", "name", "version")
    common = {key: record[key] for key in names if key in record}
    width = 2 if isinstance(ranker, Splade) else int(ranker.head.get_parameter("bias").numel())
    outputs = {"num_labels": width, "label2id": {f"LABEL_{number}": number for number in range(width)}}
    kind = CLASSIFICATION if isinstance(ranker, CrossEncoder) else TAGGING
    entries = (
        {"config": None, "name": None} | outputs if isinstance(ranker, Splade) else {"config": kind | outputs}
    )
    write_json(folder / HEAD_CONFIG, common | entries)
    if not isinstance(ranker, CrossEncoder):
        return [HEAD_WEIGHTS, HEAD_CONFIG]
    tensors = plain_tensors(embedding_weights(ranker))
    if "position_embeddings.weight" in tensors:
        tensors["position_ids"] = torch.arange(len(tensors["position_embeddings.weight"])).unsqueeze(0)
    torch.save(tensors, folder / EMBEDDINGS)
    return [HEAD_WEIGHTS, HEAD_CONFIG, EMBEDDINGS]


STAGE = "rem"
NAME = "rem"  # the adapter's name in its files
TOKEN_DIM = 32  # width of ColBERT's vectors, as published
KEY_VERSION = 3  # version of the procedure; raise it when results change, so that finished runs are repeated
NOT_RECORDED = {"out", "dam", "rem", "negatives", "teacher", "device"}
NOT_COMPARED = NOT_RECORDED | {"precision", "checkpoint_every"}  # files are compared by content
BYTES_PER_WEIGHT = 28  # two checkpoints (weight and both Adam moments, 12 each) and the result (4)


@dataclass(frozen=True, kw_only=True)
class RemTraining(runs.Trained):
    """The result: a folder with a REM (or a whole model), and how it was trained."""

    kind: str
    """"rem", or "whole" if all weights were trained."""
    queries: int
    """Queries trained on."""
    dropped: int
    """Queries left out because the teacher scored too few of their documents."""
    parameters: int
    """Weights that were trained."""
    share: float
    """Share of the backbone's weights that are trained, 0..1."""
    method: Mapping[str, Any] | None = None
    """Statistics of the method, such as "idro"; None without one."""


def train_rem(
    judgements: Judged,
    settings: RemSettings,
    *,
    rank: RanksQueries | None = None,
    source: str = "bm25",
    target: TargetDomain | None = None,
    progress: Progress = silent,
) -> RemTraining:
    """Train a REM on labelled queries with the DAM frozen (Zhan et al. 2022), and write it to `settings.out`.

    Without a file of negatives they are mined by BM25, in this process or by `rank` (a cluster's
    `Search(...).run`; `source` names it). With a `target` domain, vectors learn not to differ between source
    and target (MoDIR). A finished run with the same inputs and settings is reused, an interrupted one
    resumes. Under `accelerate launch` every process takes `batch_size` queries. Raises SettingsError,
    DataError (labels, negatives, teacher, clusters, units), ModelError (DAM, REM, loss), DownloadError
    (disk).
    """
    require_consistent(settings)
    with claimed_folder(settings.out):
        run = RemRun(judgements, settings, source, target, progress)
        if (finished := runs.read_finished(settings.out, STAGE, run.key)) is not None:
            return runs.make_result(RemTraining, settings.out, finished[STAGE], reused=True)
        return runs.make_result(RemTraining, settings.out, run.train(rank), reused=False)


class RemRun:
    """A training run of a REM: its inputs, and the key that identifies a finished run."""

    def __init__(
        self,
        judgements: Judged,
        settings: RemSettings,
        source: str,
        target: TargetDomain | None,
        progress: Progress,
    ) -> None:
        """Open DAM and REM. Raises SettingsError if pooling or similarity differ, or a file is missing."""
        method = require_method(settings, invariant=target is not None)
        self.method: Any = load_member(OBJECTIVES, method) if method else None
        self.method_settings = self.method.own_settings(**settings.method_settings) if self.method else None
        runs.require_own_folder(settings.out, STAGE, "REM")
        self.settings, self.source, self.target = settings, source, target
        self.judgements = judgements.sample(settings.max_queries, settings.seed)
        self.processes = Processes(settings.device)
        self.progress = progress if self.processes.is_main else silent
        with self.processes.main_first():  # so that a published checkpoint is downloaded once
            self.dam = read_dam(local_path(settings.dam, self.progress))
            self.rem = read_rem(local_path(settings.rem, self.progress)) if settings.rem else None
        self.name = self.rem.name if self.rem else NAME  # the adapter's name in the files
        is_dense = settings.ranker == "dense"
        for origin in filter(None, (settings.dam, settings.rem)) if is_dense else ():
            for name, trained_value in read_trained_usage(origin).items():
                if trained_value != (value := getattr(settings, name)):
                    raise SettingsError(
                        f"{origin} was trained with {name} {trained_value}, not {value}",
                        hint=f"[rem] {name} = '{trained_value}'",
                    )
        for file in filter(None, (settings.negatives, settings.teacher)):
            if not file.is_file():
                raise SettingsError(f"there is no file {file}")
        self.ranker = RANKERS[settings.ranker](self.dam, settings.pooling, settings.similarity)
        self.backbone = sum(weight.numel() for weight in self.ranker.backbone.parameters())
        self.precision = choose_precision(settings.precision, self.processes.device)
        inputs = {
            "version": KEY_VERSION,
            "judged": self.judgements.fingerprint,
            "dam": self.ranker.fingerprint,
            "rem": self.rem and self.rem.fingerprint,
            "negatives": settings.negatives and sha256_of(settings.negatives),
            "teacher": settings.teacher and sha256_of(settings.teacher),
            "method": method,
            "method_settings": self.method_settings.record() if self.method_settings else {},
            "source": source,
            "precision": self.precision,
            "processes": self.processes.count,
            "target": target and target.fingerprint,
        }
        self.key = fingerprint(runs.settings_record(settings, without=NOT_COMPARED) | inputs)

    def state_of(self, episode: int) -> Path:
        """Return the folder of an episode's checkpoint, numbered from 0."""
        state = self.settings.out / runs.STATE_FOLDER
        return child_path(state, f"episode-{episode + 1}") if episode else state

    def read(self, episode: int, rank: RanksQueries | None) -> Examples:
        """Return the tokenised training data of an episode; mine negatives first if no file is given.

        From the second episode on, the ranker mines negatives with its present weights.
        """
        settings, judgements, tokens = self.settings, self.judgements, self.ranker.tokens
        limits, progress = Limits.of(self.ranker, settings), self.progress
        if settings.teacher:
            minimum = settings.negatives_per_query
            return read_distilled(judgements, settings.teacher, tokens, limits, minimum, progress=progress)
        file, source = settings.negatives, self.source
        if episode:
            file, source = None, f"episode {episode + 1} of {self.key}"
            rank = dense_ranking(self.ranker, judgements, limits)
        if file is None and settings.mined and settings.negatives_per_query:
            folder = self.state_of(episode)
            with self.processes.main_first():
                file = mine_negatives(
                    judgements, folder, settings.mined, rank=rank, source=source, progress=progress
                )
        return read_examples(judgements, file, tokens, limits, progress=progress)

    def train(self, rank: RanksQueries | None) -> dict[str, Any]:
        """Train from the last checkpoint, if there is one, write the folder, and return its manifest entry.

        An episode continues with the weights of the previous one, and a new optimiser and method.
        """
        settings, processes, ranker = self.settings, self.processes, self.ranker
        first_examples = self.read(0, rank)
        if self.rem is not None:
            ranker.add_rem(self.rem)
        elif not settings.full:
            attach_fresh(ranker, design_for(settings.design, settings.rank), settings.seed)
        add_head(ranker, settings.seed)
        if settings.full:
            trainable = dict(ranker.backbone.named_parameters()) | ranker.head_weights(self.name)
        else:
            trainable = adapters.adapter_weights(ranker.backbone, self.name)
            trainable |= ranker.head_weights(self.name) | embedding_weights(ranker)
        weights = unfreeze(trainable)
        parameters = sum(weight.numel() for weight in weights.values())
        vectors = self.method.kept_vectors(self.method_settings) if self.method else 0
        queued = 4 * vectors * settings.batch_size * processes.count * int(ranker.config.hidden_size)
        require_space(settings.out, parameters * BYTES_PER_WEIGHT * settings.episodes + CHECKPOINTS * queued)
        ranker.to(processes.device)
        run = runs.Training()
        for episode in range(settings.episodes):
            examples = self.read(episode, rank) if episode else first_examples
            objective = self.objective(examples, weights, episode)
            method = objective.method if self.method else None
            state, key = self.state_of(episode) / runs.STATE_FILE, f"{self.key}:{episode}"
            episode_run = train(objective, state, key, carried_state=method, progress=self.progress)
            run = run.followed_by(episode_run)
            if method is not None:
                method.finish()
        entry = {
            "key": self.key,
            "kind": "whole" if settings.full else "rem",
            "ranker": ranker.ranker,
            "pooling": settings.pooling,
            "similarity": settings.similarity,
            "precision": self.precision,
            "queries": len(first_examples.queries),
            "dropped": first_examples.dropped,
            "documents": len(first_examples.documents),
            "parameters": parameters,
            "share": parameters / self.backbone,
            **run.record(),
        }
        if method is not None:
            target = {"target": self.target.name} if self.target else {}
            identity = {"name": method.name, "source": method.source}
            entry["method"] = {**identity, **target, **method.record(episode_run)}
        if processes.is_main:
            self.write(run, entry)
        processes.wait()
        return entry

    def objective(self, examples: Examples, weights: Mapping[str, torch.nn.Parameter], episode: int) -> Any:
        """Return the objective of an episode: its batches, the loss, and the method on top of it."""
        processes, tokens, target = self.processes, self.ranker.tokens, self.target
        settings = self.settings.model_copy(update={"seed": self.settings.seed + episode})
        size = settings.batch_size * processes.count
        batches = Batches(examples, size, settings.negatives_per_query, settings.seed)
        is_reranker = settings.ranker == "rerank"
        name = member_names(OBJECTIVES, on="pairs")[0] if is_reranker else settings.loss
        member = load_member(OBJECTIVES, name)
        objective = member(self.ranker, weights, batches, settings, self.precision, processes)
        if self.method is None:
            return objective
        texts, limits = None, objective.limits
        if target is not None:
            documents = [document.contents for document in target.documents]
            texts = TargetTexts(
                Rows.of(tokens.rows(target.queries, limits.query)),
                Rows.of(tokens.rows(documents, limits.document)),
                np.array(target.made_from),
            )
        objective.method = self.method.create(objective, self.method_settings, self.settings.seed, texts)
        return objective

    def write(self, run: runs.Training, entry: Mapping[str, Any]) -> None:
        """Write weights, losses and manifest atomically, in place of the unfinished run's state."""
        settings, dam = self.settings, self.dam
        with staged_folder(settings.out) as folder:
            if settings.full:
                heads = {} if settings.ranker == "splade" else self.ranker.head_weights(self.name)
                files = write_dam_files(dam, folder, heads=heads, language_head=dam.has_language_head)
            else:
                files = write_rem(self.ranker, design_for(settings.design, settings.rank), folder)
            runs.write_result(
                folder,
                files,
                run,
                stage=STAGE,
                settings=runs.settings_record(settings, without=NOT_RECORDED),
                inputs={
                    "judged": self.judgements.fingerprint,
                    "collection": self.judgements.name,
                    "negatives": self.source,
                    "target": self.target and self.target.fingerprint,
                    **self.ranker.origins,
                },
                extra={STAGE: dict(entry)},
            )
