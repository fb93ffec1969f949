"""The folder between the stages: parts of texts and of vectors, and who works on them at this moment.

`texts/` and `vectors/` each have a manifest when their stage is done, and not before: a manifest names the
parts that there are, with their sha256.
"""

from __future__ import annotations

import os
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TextIO, TypeVar

from pydantic import ValidationError

from ..errors import DataError
from ..files.atomic import storing
from ..files.foreign import require_own_files
from ..files.manifest import FILE_NAME, read_manifest, sha256_of
from .labels import Label, wrong_value

L = TypeVar("L", bound=Label)
LOCKING = "machines that share the folder need a file system that locks for all of them, such as NFS 4"
PART = re.compile(r"\d{5}-\d{6}\.parquet")  # shard, running number


def texts_folder(folder: Path) -> Path:
    """Name where the texts are."""
    return folder / "texts"


def vectors_folder(folder: Path) -> Path:
    """Name where the vectors are."""
    return folder / "vectors"


def export_command(folder: Path, name: str = "NAME") -> str:
    """Give the command of the first stage, which also goes on with it."""
    return f"hybridr export-text {name} --out {folder}"


def encode_command(folder: Path) -> str:
    """Give the command of the second stage."""
    return f"hybridr encode {folder}"


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
    manifest = manifest_in(folder, command)
    if manifest is None:
        found = f"{folder} has {len(parts)} parts and no manifest: that stage has not ended"
        raise DataError(found if parts else f"there is nothing in {folder}", hint=command)
    missing = sorted(manifest["outputs"].keys() - set(parts)) if "outputs" in manifest else ["its outputs"]
    if missing:
        raise DataError(f"{folder} lacks {missing[0]}, which its manifest names", hint=command)
    strange = [name for name in parts if name not in manifest["outputs"]]
    if strange:
        raise DataError(f"{folder / strange[0]} is not in the manifest", hint=f"rm {folder / strange[0]}")
    return manifest


def manifest_in(folder: Path, command: str) -> dict[str, Any] | None:
    """Read the manifest of a stage, None when there is none. Raises DataError with the stage's `command`."""
    try:
        return read_manifest(folder)
    except DataError as error:
        raise DataError(str(error), hint=f"rm {folder / FILE_NAME}; {command}") from None


def entry_label(manifest: Mapping[str, Any], name: str, kind: type[L], folder: Path, command: str) -> L:
    """Read a label out of the manifest of a stage. Raises DataError with the stage's `command`."""
    file = folder / FILE_NAME
    try:
        return kind.model_validate(manifest.get(name))
    except ValidationError as error:
        raise DataError(f"{file}: {wrong_value(error)}", hint=f"rm {file}; {command}") from None


def unchanged_part(file: Path, digest: str, again: str) -> Path:
    """Give a part back. Raises DataError unless it is the file that the manifest speaks of."""
    with storing(file):
        found = sha256_of(file)
    if found != digest:
        raise DataError(
            f"{file} is not the file that was written: it is damaged, or another", hint=f"rm {file}; {again}"
        )
    return file


def compare_with_manifest(folder: Path, command: str) -> None:
    """Compare the parts of a stage with its manifest, if it ended: the next manifest would call them whole.

    Raises DataError with the stage's `command`.
    """
    written = (manifest_in(folder, command) or {}).get("outputs", {})
    for name in parts_in(folder):
        if name in written:
            unchanged_part(folder / name, written[name], command)


def reopen(folder: Path) -> None:
    """Take the manifest of a stage away while its parts are made."""
    (folder / FILE_NAME).unlink(missing_ok=True)


def drop_behind_gaps(folder: Path) -> None:
    """Take parts away that come behind a missing one: they are made again with it, and tile their shard."""
    numbers: Counter[str] = Counter()
    for name in parts_in(folder):
        shard = name.partition("-")[0]
        if name == part_name(int(shard), numbers[shard]):
            numbers[shard] += 1
        else:
            (folder / name).unlink()


def lock_taken(stream: TextIO) -> bool:
    """Lock an open file until it is closed; False while another process has it. Raises OSError."""
    import fcntl

    try:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def lock_of(lock: Path) -> TextIO | None:
    """Open a lock file that this process has from now on; None while another one has it.

    Whoever ends takes his file away, which others may have opened before: they lock what nobody finds any
    more, and have to look again. Raises DownloadError.
    """
    while True:
        with storing(lock):
            stream = lock.open("w")
        with storing(lock, LOCKING):
            taken = lock_taken(stream)
        if not taken:
            stream.close()
            return None
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(stream.fileno()), lock.stat()):
                return stream
        stream.close()


@contextmanager
def claimed(file: Path) -> Iterator[bool]:
    """Claim a file that is to be made, for as long as this process lives; False while another one has it.

    What a process that was killed left of it is taken away. Raises DownloadError where nothing can be locked.
    """
    if sys.platform == "win32":
        yield True
        return
    lock = file.with_name(f".{file.name}.lock")
    with storing(file):
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    stream = lock_of(lock)
    if stream is None:
        yield False
        return
    with stream:
        for left in file.parent.glob(f".{file.name}.*"):
            if left != lock:
                left.unlink(missing_ok=True)
        try:
            yield True
        finally:
            lock.unlink(missing_ok=True)
