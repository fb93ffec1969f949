"""Joins a DAM (backbone fitted to a domain) and a REM (adapters fitted to relevance) to a ranker."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..encoders.contract import Precision
from ..encoders.export.exporting import export, require_replaceable
from ..encoders.export.fetched_models import entry_of, fetch_published
from ..errors import ModelError, SettingsError, extra
from ..families import names_of
from ..files.manifest import read_manifest
from ..records import Document, Progress, silent
from .adapters import lora_layers
from .backbone import read_dam
from .ranker import Ranker
from .rankers import Colbert, CrossEncoder, Dense, Splade, Unicoil
from .rem_files import read_rem
from .settings import OBJECTIVES, AdaptSettings
from .torch_models import BiEncoder

with extra("train", "assembling DAM and REM"):
    import torch

RANKERS: dict[str, type[Ranker]] = {
    kind.ranker: kind for kind in (Dense, Unicoil, Splade, Colbert, CrossEncoder)
}
CHOICES = {"ranker": tuple(RANKERS), "pooling": ("mean", "cls"), "similarity": ("ip", "cosine")}


def assemble(
    dam: Path | str,
    rem: Path | str | None = None,
    *,
    ranker: str = "dense",
    pooling: str | None = None,
    similarity: str | None = None,
    merge: bool = True,
    load_rem_embeddings: bool = True,
    progress: Progress = silent,
) -> Ranker:
    """Join a DAM (a masked-LM checkpoint of BERT, RoBERTa or DistilBERT) and a REM to a ranker, and return
    it.

    `dam` is a folder, `rem` a folder or zip; each may be a published name (`hybridr models`), which is
    downloaded. `ranker` is "dense", "unicoil", "splade", "colbert" or "rerank". For "dense", `pooling` is
    "mean" or "cls" and `similarity` "ip" or "cosine"; None takes what the published name or the REM was
    trained with, else "mean" and "ip". `merge` folds the LoRA into the weights (a parallel adapter stays).
    `load_rem_embeddings=False` keeps the DAM's embeddings if a REM (of splade and rerank) carries its own.
    The ranker encodes texts or token ids in fp32 on the CPU, or where `.to(device)` puts it.

    Method: Zhan et al. 2022, "Disentangled Modeling of Domain and Relevance for Adaptable Dense Retrieval".
    Raises SettingsError, DownloadError, and ModelError for a checkpoint that is damaged, asks to run code,
    has unsupported options, or does not fit.
    """
    left, right = entry_of(dam), entry_of(rem) if rem is not None else None
    for entry in (left, right):  # published names that do not go together: their sizes would not tell
        if entry and entry.ranker not in ("any", ranker):
            raise ModelError(
                f"{entry.name} is a {entry.ranker} ranker, not {ranker}", hint=f'ranker="{entry.ranker}"'
            )
    if left and right and left.language != right.language:
        raise ModelError(
            f"{left.name} is {left.language} and {right.name} is {right.language}",
            hint="`hybridr models` shows which REM goes with which DAM",
        )
    used = usage_of(dam) | (usage_of(rem) if rem is not None else {})
    kind = RANKERS[chosen("ranker", ranker)]
    if ranker != "dense" and (pooling or "mean", similarity or "ip") != ("mean", "ip"):
        raise SettingsError(f"pooling and similarity are for the dense ranker, not for {ranker}")
    pooling = chosen("pooling", pooling or used.get("pooling", "mean"))
    similarity = chosen("similarity", similarity or used.get("similarity", "ip"))
    assembled = kind(read_dam(local_path(dam, progress)), pooling, similarity)
    if rem is not None:
        assembled.add_rem(read_rem(local_path(rem, progress)), load_embeddings=load_rem_embeddings)
        if merge and any(lora_layers(assembled.backbone)):
            assembled.merge()
    assembled.require_complete()
    return assembled.eval()


def usage_of(source: Path | str) -> dict[str, str]:
    """Return the pooling and similarity that a published model, or a folder trained by hybridr, was trained
    with.
    """
    if (entry := entry_of(source)) is not None:
        return {"pooling": entry.pooling, "similarity": entry.similarity}
    folder = Path(source).expanduser()
    manifest = (read_manifest(folder) if folder.is_dir() else None) or {}
    trained: dict[str, Any] = {}
    pooled = names_of(OBJECTIVES, on="documents", pooled=True)
    if manifest.get("stage") == "rem":
        trained = manifest["rem"]
    elif manifest.get("stage") == "dam" and manifest["dam"]["objective"] in pooled:
        trained = manifest["settings"]
    return {name: trained[name] for name in ("pooling", "similarity") if name in trained}


def local_path(source: Path | str, progress: Progress) -> Path:
    """Return the local path of a folder, zip or published name, downloaded if needed. Raises ModelError,
    DownloadError.
    """
    path = Path(source).expanduser()
    if path.exists():
        return path
    entry = entry_of(source)
    if entry is None or str(source) not in (entry.name, entry.repository):
        raise ModelError(
            f"there is no DAM or REM {source}", hint="`hybridr models` lists the published names"
        )
    return fetch_published(entry.name, progress=progress)


def chosen(setting: str, value: str) -> str:
    """Return `value`. Raise SettingsError if it is not one of the setting's choices."""
    if value not in CHOICES[setting]:
        raise SettingsError(f"there is no {setting} '{value}'", hint=f"one of {', '.join(CHOICES[setting])}")
    return value


def export_joined(
    dam: Path | str,
    rem: Path | str | None,
    folder: Path | str,
    *,
    ranker: str = "dense",
    precision: Precision = "fp32",
    texts: Sequence[Document | str] = (),
    progress: Progress = silent,
    **usage: Any,
) -> Path:
    """Join DAM and REM by `assemble` and export the ranker to `folder`. Raises what `assemble` and `export`
    raise.

    `usage` are further arguments of `assemble`. The dense ranker becomes an encoder, the others folders of
    their own kinds.
    """
    require_replaceable(Path(folder))
    joined = assemble(dam, rem, ranker=ranker, progress=progress, **usage)
    return export(joined, folder, precision=precision, texts=texts, progress=progress)


def joined_encoder(dam: Path | str, settings: AdaptSettings, progress: Progress) -> BiEncoder:
    """Return the exportable encoder made of a DAM and the REM in the settings."""
    ranker = assemble(
        dam, settings.rem, pooling=settings.pooling, similarity=settings.similarity, progress=progress
    )
    encoder = ranker.retriever()
    limit = min(settings.max_tokens or encoder.max_tokens, encoder.max_tokens)
    encoder.usage = replace(encoder.usage, max_tokens=limit)
    return encoder


def between(old: BiEncoder, new: BiEncoder, strength: float) -> BiEncoder:
    """Return the encoder with weights `old + strength * (new - old)`; weights equal in both stay."""
    if strength == 1:
        return new
    result = copy.deepcopy(new)
    before = dict(old.backbone.named_parameters())
    with torch.no_grad():
        for name, weight in result.backbone.named_parameters():
            weight.copy_(before[name].lerp(weight, strength))
    return result
