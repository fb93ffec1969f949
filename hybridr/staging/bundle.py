"""The folder between the stages: parts of texts and of vectors, and who works on them at this moment.

`texts/` and `vectors/` each have a manifest when their stage is done, and not before: a manifest names the
parts that there are, with their sha256.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from ..errors import DataError, SettingsError
from ..files.atomic import storing
from ..files.foreign import require_own_files
from ..files.manifest import read_manifest, sha256_of
from ..reindexing.runners import Packed, Runner, runner
from ..reindexing.settings import ReindexSettings
from ..sharing.board import Board
from .labels import Label, wrong_value

L = TypeVar("L", bound=Label)
PART = re.compile(r"\d{5}-\d{6}\.parquet")  # shard, running number


def texts_folder(folder: Path) -> Path:
    """Name where the texts are."""
    return folder / "texts"


def vectors_folder(folder: Path) -> Path:
    """Name where the vectors are."""
    return folder / "vectors"


class Local:
    """What an errand is that is done in this process only, by threads."""

    leases: Board | None = None

    def packed(self, workers: int) -> Packed:
        """Raise SettingsError: this does not travel."""
        raise SettingsError("this stage works in this process", hint="leave runner out; --workers shares it")


def threads_of(settings: ReindexSettings) -> Runner:
    """Give what works on the shares of such an errand."""
    return runner(ReindexSettings(workers=settings.workers))


def part_name(shard: int, number: int) -> str:
    """Name a part."""
    return f"{shard:05d}-{number:06d}.parquet"


def parts_in(folder: Path) -> list[str]:
    """List the parts that lie in a folder, in order. Raises DataError for a link that leads out of it."""
    if not folder.is_dir():
        return []
    try:
        require_own_files(folder)
    except ValueError as error:
        raise DataError(f"{folder} cannot be read: {error}", hint="copy the files themselves") from None
    return sorted(path.name for path in folder.iterdir() if PART.fullmatch(path.name))


def finished_stage(folder: Path, command: str) -> dict[str, Any]:
    """Read the manifest of a stage.

    Raises DataError, with the `command` of that stage, when it is not done.
    """
    parts = parts_in(folder)
    manifest = read_manifest(folder)
    if manifest is None:
        found = f"{len(parts)} parts and no manifest: that stage has not ended" if parts else "nothing"
        raise DataError(f"there is {found} in {folder}", hint=command)
    missing = sorted(manifest["outputs"].keys() - set(parts)) if "outputs" in manifest else ["its outputs"]
    if missing:
        raise DataError(f"{folder} lacks {missing[0]}, which its manifest names", hint=command)
    strange = [name for name in parts if name not in manifest["outputs"]]
    if strange:
        raise DataError(f"{folder / strange[0]} is not in the manifest", hint=f"rm {folder / strange[0]}")
    return manifest


def entry_label(manifest: Mapping[str, Any], name: str, kind: type[L], folder: Path) -> L:
    """Read a label out of a manifest. Raises DataError."""
    try:
        return kind.model_validate(manifest.get(name))
    except ValidationError as error:
        raise DataError(f"{folder}/manifest.json: {wrong_value(error)}", hint="make it again") from None


def unchanged_part(file: Path, digest: str, again: str) -> Path:
    """Give a part back. Raises DataError unless it is the file that the manifest speaks of."""
    with storing(file):
        found = sha256_of(file)
    if found != digest:
        raise DataError(f"{file} is not the file that was written: it is damaged, or another", hint=again)
    return file


@contextmanager
def claimed(file: Path) -> Iterator[bool]:
    """Claim a file that is to be made, for as long as this process lives; False while another one has it.

    What a process that was killed left of it is taken away.
    """
    if sys.platform == "win32":
        yield True
        return
    import fcntl

    lock = file.with_name(f".{file.name}.lock")
    with storing(file):
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        stream = lock.open("w")
    with stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield False
            return
        for left in file.parent.glob(f".{file.name}.*"):
            if left != lock:
                left.unlink(missing_ok=True)
        try:
            yield True
        finally:
            lock.unlink(missing_ok=True)
