"""From the name of an encoder, or a sentence-transformers folder, to an encoder folder, made once."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from ..assembly.published import UNWANTED, reporting, require_unchanged
from ..encoding.contract import Usage, model_name
from ..encoding.folder import encoder_record, verify_encoder
from ..encoding.registry import PACKAGED, KnownEncoder, known_as
from ..encoding.sentence_transformers import read_retriever, read_usage
from ..errors import DownloadError, MissingExtra, ModelError
from ..files.folders import below, cache_folder
from ..progress import Progress, silent
from .exporting import export, minilm_encoder
from .model_files import Exportable
from .weights import open_without_torch

REPOSITORY = re.compile(r"[A-Za-z0-9][\w-]*/[\w.-]+")
WANTED = ("*.json", "*.txt", "*.model", "model.safetensors", "README.md")
ELSEWHERE = ("onnx/*", "openvino/*", *UNWANTED)


def encoder_folder(source: Path | str, *, progress: Progress = silent) -> Path:
    """Give the encoder folder that a folder or a name stands for.

    An encoder folder is given back. A sentence-transformers folder, and a name of the registry or the hub
    (OWNER/NAME), is exported into the cache, by fingerprint: once. Raises ModelError, DownloadError (the hub
    cannot be reached), MissingExtra (a kind of model that only torch reads).
    """
    folder = Path(source).expanduser()
    if (folder / "modules.json").is_file() and not is_encoder(folder):
        return exported_once(folder, progress)
    if folder.exists():
        return folder
    known = known_as(str(source))
    if known and known.name == PACKAGED:
        return minilm_encoder(progress=progress)
    if known is None and not REPOSITORY.fullmatch(str(source)):
        raise ModelError(
            f"there is no encoder folder {source}, and no encoder of that name",
            hint="hybridr models --encoders lists names; OWNER/NAME is fetched from the model hub; "
            "hybridr adapt --index NAME --out DIR makes one",
        )
    return exported_once(
        fetch_from_hub(known, known.repository if known else str(source), progress), progress
    )


def is_encoder(folder: Path) -> bool:
    """Tell whether a folder is an encoder already."""
    try:
        encoder_record(folder)
    except ModelError:
        return False
    return True


def exported_once(source: Path, progress: Progress) -> Path:
    """Export a sentence-transformers folder into the cache, or find that this was done."""
    retriever = open_with_prefixes(source)
    folder = below(cache_folder() / "models", f"encoder-{retriever.fingerprint[:16]}")
    try:
        verify_encoder(folder)
    except ModelError:
        progress(f"export {model_name(source)}", 0, 1)
        export(retriever, folder)
        progress(f"export {model_name(source)}", 1, 1)
    return folder


def open_with_prefixes(source: Path) -> Exportable:
    """Open a model, by torch only where nothing else can, with the prefixes that the registry knows of it."""
    usage = prefixed_usage(source)
    try:
        return open_without_torch(source, usage=usage)
    except MissingExtra:
        found = read_retriever(source)
        found.usage = replace(found.usage, prefixes=usage.prefixes)
        return found


def prefixed_usage(source: Path) -> Usage:
    """Read how a folder's model is used; many name no prefixes although they were trained with them."""
    usage, known = read_usage(source), known_as(model_name(source))
    if known is None or any(usage.prefixes.values()):
        return usage
    return replace(usage, prefixes={"query": known.query, "document": known.document})


def fetch_from_hub(known: KnownEncoder | None, repository: str, progress: Progress) -> Path:
    """Give the folder of a model of the hub, in the revision that was fetched first.

    Raises DownloadError, and ModelError where a file is not what was fetched before.
    """
    from huggingface_hub import snapshot_download

    cache = cache_folder() / "hub"
    first = below(cache, f"models--{repository.replace('/', '--')}") / "refs" / "main"
    revision = first.read_text(encoding="utf-8").strip() if first.is_file() else None
    try:
        path = snapshot_download(
            repository,
            revision=(known.revision if known else None) or revision,
            allow_patterns=list(WANTED),
            ignore_patterns=list(ELSEWHERE),
            cache_dir=cache,
            tqdm_class=reporting(repository, progress),
        )
    except Exception as error:  # the hub's client raises many kinds, and its transport others
        name = repository.partition("/")[2]
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise DownloadError(
            f"{repository} could not be fetched from the model hub: {reason}",
            hint=f"on a machine that reaches it: hf download {repository} --local-dir {name}; bring the "
            f"folder here and give --encoder {name}",
        ) from error
    require_unchanged(repository, Path(path))
    return Path(path)
