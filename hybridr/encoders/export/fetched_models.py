"""Fetches models from the model hub: by name, and the published checkpoints of DDR and COCO-DR."""

from __future__ import annotations

import io
from collections.abc import Sequence
from concurrent.futures import TimeoutError as StillRunning
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

from ...errors import DownloadError, ModelError, first_line
from ...files.fetching import run_in_thread
from ...files.local import MAX_SETTINGS_BYTES, cache_folder, child_path, sha256_of, state_folder, text_within
from ...files.remembered import KNOWN_FILE, known_checkpoint, remember_checkpoint
from ...records import Progress, silent

HUB_WAIT_S = 3.0
"""Seconds to wait for the model hub, also for models that are packaged."""
OWNER = "jingtao"
REM_FILE = "lora192-pa4.zip"
SOURCES = {"en": "msmarco", "zh": "dureader"}
TARGETS = {
    "en": ("trec_covid", *(f"lotte_{part}_test" for part in ("write", "rec", "tech", "life", "sci"))),
    "zh": ("cpr_ecom", "cpr_video", "cpr_medical", "cmedqav2"),
}
USAGE = {"en": ("mean", "ip"), "zh": ("mean", "cosine")}
"""Pooling and similarity, which the checkpoints do not contain."""

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
"""Suffixes of COCO-DR's checkpoints: pretrained on BEIR's corpora; then trained on MS MARCO; trained without
the pretraining; trained by BM25's negatives only."""
WEIGHT_FILES = ("pytorch_model.bin", "model.safetensors")
WANTED = ("*.json", "*.txt", "*.bin", "*.safetensors", "*.zip")
UNWANTED = ("training_args.bin", "optimizer.*", "scheduler.*")
UNHASHED = (*UNWANTED[:1], ".gitattributes", "README.md")


@dataclass(frozen=True)
class Published:
    """A published checkpoint of DDR or COCO-DR."""

    name: str
    kind: str
    """"dam", "rem", or "full": a baseline with all weights trained, which takes no REM."""
    ranker: str
    """"dense", "unicoil", "splade", "colbert" or "rerank"; "any" for a DAM."""
    language: str
    """"en" or "zh"."""
    pooling: str
    similarity: str
    partner: str
    """Models it can be assembled with: names of this table, * stands for anything; empty for a full model."""
    owner: str = OWNER

    @property
    def repository(self) -> str:
        """Return the name of the repository on the hub."""
        return f"{self.owner}/{self.name}"


@cache
def published_checkpoints() -> tuple[Published, ...]:
    """Return the 48 checkpoints of DDR (DAMs, REMs, then the baselines without either) and the 8 of COCO-DR.

    Those of COCO-DR are full encoders with [CLS], inner product and no projection.
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


def published_checkpoint(source: Path | str) -> Published | None:
    """Return the published checkpoint for a name, a repository or a folder's name; None for others."""
    name = str(source).rstrip("/").rsplit("/", 1)[-1]
    return next((entry for entry in published_checkpoints() if entry.name == name), None)


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
    revision = known_checkpoint(entry.repository).get("revision")  # the one fetched first; None: the newest
    files = [REM_FILE] if entry.kind == "rem" else WANTED
    try:
        folder = snapshot(entry.repository, revision, files, UNWANTED, bar_class(entry.name, progress))
    except Exception as error:  # the hub's client raises many kinds, and its HTTP library more
        raise unreachable_error(entry, error) from error
    alternatives = [(REM_FILE,)] if entry.kind == "rem" else [("config.json",), WEIGHT_FILES]
    for names in alternatives:
        if not any((folder / name).is_file() for name in names):
            raise unreachable_error(entry, FileNotFoundError(f"the download lacks {' or '.join(names)}"))
    require_unchanged(entry.repository, folder)
    progress(f"download {entry.name}", 1, 1)
    return folder / REM_FILE if entry.kind == "rem" else folder


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


def snapshot(
    repository: str, revision: str | None, patterns: Sequence[str], unwanted: Sequence[str], bar: type
) -> Path:
    """Return the folder of a hub repository, fetching only missing files.

    Raises any error of the hub's client.
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


def unreachable_error(entry: Published, error: Exception) -> DownloadError:
    """Return the error for a checkpoint that could not be fetched, with advice for work without the hub."""
    files = REM_FILE if entry.kind == "rem" else "config.json, the weights and the tokenizer"
    return DownloadError(
        f"{entry.repository} could not be fetched from the model hub: {first_line(error)}",
        hint="check the network and run this again to resume (HF_HUB_OFFLINE=1 forbids downloads); "
        f"or copy {files} from a machine that reaches the hub and give the path",
    )
