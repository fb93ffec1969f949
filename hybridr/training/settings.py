"""Settings of trainings: adaptation, DAM and REM; and checks that they go together."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from ..errors import SettingsError
from ..families import OneOf, member_names
from ..settings import NoOption, Option, OwnSettings, Stage

OBJECTIVES, ADAPTERS = "training.objectives", "encoders.adapters"
"""The families whose files the choices of `objective`, `loss` and `method` come from."""


class AdaptSettings(Stage):
    """Label-free adaptation to the documents of an index: of a retriever, or of the DAM beside a REM.

    None takes the default of the objective's Settings: of `ensemble` for a retriever, of `mlm` for a DAM.
    """

    table: ClassVar[str] = "adapt"

    out: Path = Field(Path("adapted-encoder"), description="folder of the encoder")
    base: str = Field("minilm", description="the packaged MiniLM, an encoder folder, or a DAM (with a REM)")
    rem: str | None = Field(
        None, description="REM to join, as folder, zip or published name; the base is a DAM then"
    )
    objective: Annotated[str | None, OneOf((ADAPTERS, OBJECTIVES), on="documents")] = Field(
        None, description="training objective"
    )
    fields: tuple[str, ...] = Field(
        (), description="text fields of the index; empty: those that `inspect` proposes"
    )
    max_documents: int | None = Field(
        None, ge=10, description="size of the random sample; None: 2,000 for a retriever, all for a DAM"
    )
    steps: int | None = Field(None, ge=1, le=1_000_000, description="optimiser steps")
    batch_size: NoOption[int | None] = Field(None, ge=2, le=4096, description="documents per step")
    learning_rate: NoOption[float | None] = Field(None, gt=0, lt=1, description="highest learning rate")
    strength: float | None = Field(
        None,
        ge=0,
        le=1,
        description="weight of the learnt change or of the second retriever; None: .3, 1 for a DAM",
    )
    pooling: NoOption[Literal["mean", "cls"] | None] = Field(
        None, description="pooling of token vectors, with a REM; None: as published, mean"
    )
    similarity: NoOption[Literal["ip", "cosine"] | None] = Field(
        None, description="similarity of two vectors, with a REM; None: as published, ip"
    )
    max_tokens: NoOption[int | None] = Field(
        None, ge=16, le=512, description="input limit; None: 256 (retriever), 512 (DAM), or the model's own"
    )
    queries: Path | None = Field(
        None, description="an unlabelled query log, one query per line, for the gate"
    )
    objective_settings: NoOption[OwnSettings] = Field(
        {},
        description="settings of the objective, such as held_out, second, span_tokens: NAME=VALUE,NAME=VALUE",
    )
    seed: NoOption[int] = Field(13, ge=0, description="seed of sample, batches and probes")
    device: NoOption[Literal["auto", "cpu", "cuda"]] = Field("auto", description="device to train on")
    any_language: Annotated[bool, Option("--yes")] = Field(
        False, description="fit an English model to any language"
    )
    force: bool = Field(False, description="export the adapted encoder although the gate rejects it")

    def objective_values(self, stage: type[Stage]) -> dict[str, Any]:
        """Return the values that the objective's settings class `stage` shares, and `objective_settings`."""
        values = ((name, getattr(self, name)) for name in type(self).model_fields)
        shared = {name: value for name, value in values if value is not None and name in stage.model_fields}
        return shared | self.objective_settings


class DamSettings(Stage):
    """Training of a DAM; defaults are those of Zhan et al. 2022 for a target corpus."""

    table: ClassVar[str] = "dam"

    out: Path = Field(Path("dam"), description="folder of the DAM")
    base: str = Field("minilm", min_length=1, description="source DAM: minilm, a published name, a folder")
    objective: Annotated[str, OneOf(OBJECTIVES, on="documents")] = Field(
        "mlm", description="training objective"
    )
    fields: tuple[str, ...] = Field(
        (), description="text fields; empty: title and text, or those that `inspect` proposes"
    )
    max_documents: NoOption[int | None] = Field(
        None, ge=2, description="size of a random sample of the corpus; None: all"
    )
    steps: int = Field(20_000, ge=1, le=10_000_000, description="optimiser steps")
    batch_size: int = Field(512, ge=1, le=65_536, description="documents per step, over all processes")
    learning_rate: NoOption[float] = Field(2e-5, gt=0, lt=1, description="learning rate after the warm-up")
    warm_up: NoOption[int | None] = Field(
        None, ge=0, description="steps of linear rise; None: 1,000, or a tenth of the steps if that is less"
    )
    max_tokens: NoOption[int] = Field(
        190, ge=8, le=8192, description="longest window of a document; the model's own limit if lower"
    )
    precision: NoOption[Literal["auto", "fp32", "bf16"]] = Field(
        "auto", description="number format of training"
    )
    token_budget: NoOption[int | None] = Field(
        None, ge=64, description="tokens of a micro-batch; None: 4,096 on a processor, 65,536 on a GPU"
    )
    span_tokens: NoOption[int] = Field(
        30, ge=8, le=510, description="coco: longest span, in tokens of the model"
    )
    pooling: NoOption[Literal["cls", "mean"]] = Field("cls", description="coco: pooling of a span")
    head_layers: NoOption[int | None] = Field(
        None, ge=0, le=24, description="coco: layers of a Condenser head; None: those of the base, or 0"
    )
    skip_from: NoOption[int | None] = Field(
        None, ge=0, description="coco: layer that the Condenser head reads; None: the middle one"
    )
    dropout: NoOption[float] = Field(
        0.0, ge=0, lt=1, description="dropout in training; 0 is fastest, BERT was trained with 0.1"
    )
    seed: NoOption[int] = Field(13, ge=0, description="seed of sample, windows, masks and head")
    device: NoOption[Literal["auto", "cpu", "cuda"]] = Field("auto", description="device to train on")
    checkpoint_every: NoOption[int] = Field(100, ge=1, description="steps between checkpoints")
    held_out: NoOption[int] = Field(
        200, ge=0, description="documents held out from training, to measure the loss on"
    )


class RemSettings(Stage):
    """Training of a REM on labelled queries; defaults are those of Zhan et al. 2022."""

    table: ClassVar[str] = "rem"

    dam: str = Field(min_length=1, description="DAM: published name or folder of a backbone; required")
    out: Path = Field(Path("rem"), description="folder of the REM")
    rem: str | None = Field(None, description="REM to continue training (few-shot); None: a new one")
    full: bool = Field(False, description="train all weights instead of a REM: the baseline DR")
    loss: Annotated[str, OneOf(OBJECTIVES, on="labels")] = Field(
        "contrast", description="loss; default with idro and groupdro: pairwise"
    )
    method: Annotated[str | None, OneOf(OBJECTIVES, on="method")] = Field(
        None, description="method on top of the loss; --invariant-to implies modir"
    )
    method_settings: OwnSettings = Field({}, description="settings of the method: NAME=VALUE,NAME=VALUE")
    episodes: NoOption[int] = Field(
        1, ge=1, le=100, description="rounds of training; each mines new negatives (and clusters)"
    )
    design: NoOption[Literal["lora", "parallel", "both"]] = Field(
        "lora", description="adapters of the REM; both: as published"
    )
    rank: NoOption[int] = Field(192, ge=1, le=4096, description="LoRA rank; alpha is the same")
    ranker: Literal["dense", "unicoil", "splade", "colbert", "rerank"] = Field(
        "dense", description="kind of ranker that the REM makes of the backbone"
    )
    flops: NoOption[float] = Field(
        1e-3, ge=0, le=10, description="weight of the penalty on dense vectors, splade only"
    )
    pooling: NoOption[Literal["mean", "cls"]] = Field("mean", description="pooling of token vectors")
    similarity: NoOption[Literal["ip", "cosine"]] = Field("ip", description="similarity of two vectors")
    inv_temperature: NoOption[float | None] = Field(
        None, gt=0, le=1000, description="factor of the scores in the loss; None: 1 for ip, 20 for cosine"
    )
    negatives: NoOption[Path | None] = Field(
        None, description="file of negatives (qid<TAB>d1 d2 ...); None: mined by BM25"
    )
    mined: NoOption[int] = Field(
        50, ge=0, le=10_000, description="negatives mined per query; 0: from all documents"
    )
    negatives_per_query: NoOption[int] = Field(
        3, ge=0, le=255, description="hard negatives drawn per query; 0: only the batch's other positives"
    )
    teacher: Path | None = Field(None, description="scores of a teacher, JSONL or TSV; for --loss distil")
    max_queries: NoOption[int | None] = Field(
        None, ge=1, description="size of a random sample of the queries; None: all"
    )
    batch_size: int = Field(32, ge=1, le=4096, description="queries per step and process")
    epochs: NoOption[int] = Field(5, ge=1, le=10_000, description="passes over all queries")
    steps: int | None = Field(None, ge=1, le=10_000_000, description="optimiser steps, instead of epochs")
    learning_rate: NoOption[float | None] = Field(
        None, gt=0, lt=1, description="constant learning rate; None: 2e-5, or 1e-5 with full"
    )
    max_query_tokens: NoOption[int] = Field(24, ge=3, le=512, description="longest query")
    max_document_tokens: NoOption[int] = Field(128, ge=3, le=512, description="longest document")
    dropout: NoOption[bool] = Field(
        True, description="keep dropout active in the frozen backbone, as DDR does"
    )
    precision: NoOption[Literal["auto", "fp32", "bf16"]] = Field(
        "auto", description="number format of training"
    )
    device: NoOption[Literal["auto", "cpu", "cuda"]] = Field("auto", description="device to train on")
    checkpoint_every: NoOption[int] = Field(100, ge=1, description="steps between checkpoints")
    seed: NoOption[int] = Field(2022, ge=0, description="seed of sample, weights, batches and dropout")

    @model_validator(mode="before")
    @classmethod
    def choose_loss(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Set the loss to pairwise for methods that weigh clusters, as in COCO-DR, unless a loss is given.

        Then a query's loss depends on its own texts only, and one backward pass gives the gradients of all
        clusters.
        """
        grouping = member_names(OBJECTIVES, on="method", by_clusters=True)
        return {"loss": "pairwise", **values} if values.get("method") in grouping else values


def require_consistent(settings: RemSettings) -> None:
    """Raise SettingsError if two settings contradict each other."""
    distilled = member_names(OBJECTIVES, on="labels", teacher=True)
    if settings.full and settings.rem:
        raise SettingsError("--full trains all weights, --rem continues a REM: give one of them")
    if (settings.loss in distilled) != (settings.teacher is not None):
        raise SettingsError(
            "distillation needs --teacher, and only distillation takes it",
            hint=f"--loss {' or '.join(distilled)} --teacher SCORES.jsonl",
        )
    separate = member_names(OBJECTIVES, on="labels", rows_apart=True)  # with a query's own negatives only
    if (settings.loss in separate or settings.ranker == "rerank") and not settings.negatives_per_query:
        raise SettingsError(f"{settings.loss} of {settings.ranker} needs [rem] negatives_per_query above 0")
    if settings.batch_size == 1 and not settings.negatives_per_query:
        raise SettingsError(
            "a batch of one query has nothing to tell its document from",
            hint="[rem] batch_size = 2 or more, or negatives_per_query = 1 or more",
        )
    if settings.ranker == "rerank" and settings.loss != "contrast":
        raise SettingsError("a re-ranker is trained by --loss contrast only")
    if settings.ranker != "dense" and (settings.pooling, settings.similarity) != ("mean", "ip"):
        raise SettingsError(f"pooling and similarity are for the dense ranker, not for {settings.ranker}")


def require_method(settings: RemSettings, *, invariant: bool) -> str | None:
    """Return the name of the method on top of the loss: the one that is set, or that for a target domain.

    `invariant` says whether there is a target domain to be invariant to. Raise SettingsError if a method
    conflicts with other settings.
    """
    target_methods = member_names(OBJECTIVES, on="method", needs_target=True)
    if invariant and settings.method not in (None, *target_methods):
        raise SettingsError(f"--method {settings.method} and --invariant-to are methods: give one of them")
    if settings.method in target_methods and not invariant:
        raise SettingsError(
            f"{settings.method} needs a domain to be invariant to", hint="--invariant-to INDEX"
        )
    if settings.method_settings and not (settings.method or invariant):
        raise SettingsError("--method-settings are those of --method: give it too")
    method_name = settings.method or (target_methods[0] if invariant else None)
    if method_name and settings.ranker != "dense":
        raise SettingsError(f"{method_name} is for the dense ranker, not for {settings.ranker}")
    if (
        method_name in member_names(OBJECTIVES, on="method", needs_negatives=True)
        and not settings.negatives_per_query
    ):
        raise SettingsError(f"{method_name} needs [rem] negatives_per_query above 0")
    if settings.episodes > 1 and (settings.ranker != "dense" or settings.teacher or invariant):
        raise SettingsError(
            "[rem] episodes mines negatives anew by the ranker itself: it needs the dense ranker, and "
            "neither --teacher nor --invariant-to",
        )
    return method_name
