"""Trains a REM on labelled queries and writes its folder (`hybridr rem train`): negatives, tokens, training,
files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import SettingsError
from ..families import member_of, names_of
from ..files.atomic import require_space, staged_folder
from ..files.folders import below
from ..files.manifest import fingerprint, sha256_of, write_manifest
from ..records import Progress, silent
from ..relevance.corpus import TargetDomain
from . import adapters, runs
from .assembly import RANKERS, local_path, usage_of
from .backbone import read_dam, write_dam_files
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
from .objectives.labelled import Materials
from .rem_files import read_rem
from .settings import OBJECTIVES, RemSettings, require_consistent, require_method

if TYPE_CHECKING:
    import torch

STAGE = "rem"
NAME = "rem"  # of the adapter in its files
TOKEN_DIM = 32  # of ColBERT, as published
KEY_VERSION = 3  # of the procedure; a change of its results makes finished runs start anew
NOT_RECORDED = {"out", "dam", "rem", "negatives", "teacher", "device"}
NOT_COMPARED = NOT_RECORDED | {"precision", "checkpoint_every"}  # what lies at the paths is
BYTES_PER_WEIGHT = 28  # two checkpoints of weight and both moments for a moment, and the result


@dataclass(frozen=True, kw_only=True)
class RemTraining(runs.Trained):
    """The result: a folder with a REM (or a whole model), and how it was trained."""

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
    and target (MoDIR). A run that was finished with the same inputs and settings returns at once, a killed
    one continues. Under `accelerate launch` every process takes `batch_size` queries. Raises SettingsError,
    DataError (labels, negatives, teacher, clusters, units), ModelError (DAM, REM, loss), DownloadError
    (disk).
    """
    require_consistent(settings)
    run = RemRun(judgements, settings, source, target, progress)
    if (finished := runs.read_finished(settings.out, STAGE, run.key)) is not None:
        return runs.result_of(RemTraining, settings.out, finished[STAGE], reused=True)
    return runs.result_of(RemTraining, settings.out, run.train(rank), reused=False)


class RemRun:
    """A training run of a REM: what it works on, and the key by which a finished run is recognised."""

    def __init__(
        self,
        judgements: Judged,
        settings: RemSettings,
        source: str,
        target: TargetDomain | None,
        progress: Progress,
    ) -> None:
        """Open DAM and REM. Raise SettingsError if pooling or similarity differ from theirs, or a file is
        missing.
        """
        method = require_method(settings, invariant=target is not None)
        self.method: Any = member_of(OBJECTIVES, method) if method else None
        self.own = self.method.own_settings(**settings.method_settings) if self.method else None
        runs.require_own(settings.out, STAGE, "REM")
        self.settings, self.source, self.target = settings, source, target
        self.judgements = judgements.sample(settings.max_queries, settings.seed)
        self.processes = Processes(settings.device)
        self.progress = progress if self.processes.is_main else silent
        with self.processes.main_first():  # a published one is downloaded once
            self.dam = read_dam(local_path(settings.dam, self.progress))
            self.rem = read_rem(local_path(settings.rem, self.progress)) if settings.rem else None
        self.name = self.rem.name if self.rem else NAME  # of the adapter in the files
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
            "method_settings": self.own.record() if self.own else {},
            "source": source,
            "precision": self.precision,
            "processes": self.processes.count,
            "target": target and target.fingerprint,
        }
        self.key = fingerprint(runs.recorded(settings, without=NOT_COMPARED) | inputs)

    def state_of(self, episode: int) -> Path:
        """Return the folder of an episode's checkpoint, numbered from 0."""
        state = self.settings.out / runs.STATE_FOLDER
        return below(state, f"episode-{episode + 1}") if episode else state

    def read(self, episode: int, rank: RanksQueries | None) -> Examples:
        """Return the tokenised training data of an episode; mine negatives first if no file is given.

        After the first episode the ranker mines negatives itself, as far as it is trained.
        """
        settings, judgements, tokens = self.settings, self.judgements, self.ranker.tokens
        limits, progress = Limits.of(self.ranker, settings), self.progress
        if settings.teacher:
            minimum = settings.negatives_per_query
            return read_distilled(judgements, settings.teacher, tokens, limits, minimum, progress=progress)
        file, source = settings.negatives, self.source
        if episode:
            file, source = None, f"episode {episode + 1} of {self.key}"
            rank = rank_by(self.ranker, judgements, limits)
        if file is None and settings.mined and settings.negatives_per_query:
            folder = self.state_of(episode)
            with self.processes.main_first():
                file = mine(judgements, folder, settings.mined, rank=rank, source=source, progress=progress)
        return read_examples(judgements, file, tokens, limits, progress=progress)

    def train(self, rank: RanksQueries | None) -> dict[str, Any]:
        """Train from the last checkpoint, if there is one, write the folder, and return its manifest entry.

        An episode continues with the weights of the one before; optimiser and method begin anew.
        """
        settings, processes, ranker = self.settings, self.processes, self.ranker
        first = self.read(0, rank)
        if self.rem is not None:
            ranker.add_rem(self.rem)
        elif not settings.full:
            attach_fresh(ranker, design_of(settings.design, settings.rank), settings.seed)
        add_head(ranker, TOKEN_DIM, settings.seed)
        if settings.full:
            trainable = dict(ranker.backbone.named_parameters()) | head_weights(ranker, self.name)
        else:
            trainable = adapters.adapter_weights(ranker.backbone, self.name)
            trainable |= head_weights(ranker, self.name) | embedding_weights(ranker)
        weights = unfreeze(trainable)
        parameters = sum(weight.numel() for weight in weights.values())
        vectors = self.method.kept_vectors(self.own) if self.method else 0
        queued = 4 * vectors * settings.batch_size * processes.count * int(ranker.config.hidden_size)
        require_space(settings.out, parameters * BYTES_PER_WEIGHT * settings.episodes + CHECKPOINTS * queued)
        ranker.to(processes.device)
        run = runs.Training()
        for episode in range(settings.episodes):
            examples = self.read(episode, rank) if episode else first
            objective = self.objective(examples, weights, episode)
            method = objective.method if self.method else None
            state, key = self.state_of(episode) / runs.STATE_FILE, f"{self.key}:{episode}"
            trained = train(objective, state, key, memory=method, progress=self.progress)
            run = run.followed_by(trained)
            if method is not None:
                method.finish()
        entry = {
            "key": self.key,
            "kind": "whole" if settings.full else "rem",
            "ranker": ranker.ranker,
            "pooling": settings.pooling,
            "similarity": settings.similarity,
            "precision": self.precision,
            "queries": len(first.queries),
            "dropped": first.dropped,
            "documents": len(first.documents),
            "parameters": parameters,
            "share": parameters / self.backbone,
            **run.record(),
        }
        if method is not None:
            target = {"target": self.target.name} if self.target else {}
            named = {"name": method.name, "source": method.source}
            entry["method"] = {**named, **target, **method.record(trained)}
        if processes.is_main:
            self.write(run, entry)
        processes.wait()
        return entry

    def objective(self, examples: Examples, weights: Mapping[str, torch.nn.Parameter], episode: int) -> Any:
        """Return the objective of an episode, with batches of its own and the method on top of the loss."""
        processes, tokens, target = self.processes, self.ranker.tokens, self.target
        settings = self.settings.model_copy(update={"seed": self.settings.seed + episode})
        size = settings.batch_size * processes.count
        batches = Batches(examples, size, settings.negatives_per_query, settings.seed)
        pairs = settings.ranker == "rerank"
        member = member_of(OBJECTIVES, names_of(OBJECTIVES, on="pairs")[0] if pairs else settings.loss)
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
        materials = Materials(self.settings, self.own, texts)
        objective.method = self.method.create(objective, materials)
        return objective

    def write(self, run: runs.Training, entry: Mapping[str, Any]) -> None:
        """Write weights, losses and manifest to the result's folder atomically, in place of the unfinished
        state.
        """
        settings, dam = self.settings, self.dam
        with staged_folder(settings.out) as folder:
            if settings.full:
                heads = {} if settings.ranker == "splade" else head_weights(self.ranker, self.name)
                files = write_dam_files(dam, folder, heads=heads, language_head=dam.has_language_head)
            else:
                files = write_rem(self.ranker, design_of(settings.design, settings.rank), NAME, folder)
            runs.write_steps(folder / runs.LOSSES_FILE, run)
            write_manifest(
                folder,
                stage=STAGE,
                settings=runs.recorded(settings, without=NOT_RECORDED),
                inputs={
                    "judged": self.judgements.fingerprint,
                    "collection": self.judgements.name,
                    "negatives": self.source,
                    "target": self.target and self.target.fingerprint,
                    **self.ranker.origins,
                },
                outputs=[*files, runs.LOSSES_FILE],
                extra={STAGE: dict(entry)},
            )
