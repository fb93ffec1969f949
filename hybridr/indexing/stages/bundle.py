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
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO, TypeVar

from pydantic import ValidationError

from ...errors import DataError
from ...files.atomic import storing
from ...files.folders import below
from ...files.foreign import require_own_files
from ...files.manifest import FILE_NAME, read_manifest, sha256_of
from .labels import Label, wrong_value

L = TypeVar("L", bound=Label)
LOCKING = "machines that share the folder need a file system that locks for all of them, such as NFS 4"
PART = re.compile(r"\d{5}-\d{6}\.parquet")  # shard, running number


def part_name(shard: int, number: int) -> str:
    """Name a part."""
    return f"{shard:05d}-{number:06d}.parquet"


@dataclass(frozen=True)
class StageFolder:
    """Where the parts of a stage are, and the command that makes them, and goes on with it."""

    folder: Path
    command: str

    @classmethod
    def texts(cls, bundle: Path, index: str = "NAME") -> StageFolder:
        """Give that of the first stage."""
        return cls(bundle / "texts", f"hybridr export-text {index} --out {bundle}")

    @classmethod
    def vectors(cls, bundle: Path) -> StageFolder:
        """Give that of the second stage."""
        return cls(bundle / "vectors", f"hybridr encode {bundle}")

    def file(self, part: str) -> Path:
        """Name the file of a part."""
        return below(self.folder, part)

    def parts(self) -> list[str]:
        """List the parts that are there, in order. Raises DataError for a link that leads out."""
        if not self.folder.is_dir():
            return []
        try:
            require_own_files(self.folder)
        except ValueError as error:
            raise DataError(
                f"{self.folder} cannot be read: {error}", hint="copy the files themselves"
            ) from None
        return sorted(path.name for path in self.folder.iterdir() if PART.fullmatch(path.name))

    def finished(self) -> dict[str, Any]:
        """Read the manifest. Raises DataError when the stage is not done."""
        parts, manifest, folder = self.parts(), self.manifest(), self.folder
        if manifest is None:
            problem = f"{folder} has {len(parts)} parts and no manifest: that stage has not ended"
            raise DataError(problem if parts else f"there is nothing in {folder}", hint=self.command)
        named = set(manifest.get("outputs", ["its outputs"]))
        if missing := sorted(named.difference(parts)):
            raise DataError(f"{folder} lacks {missing[0]}, which its manifest names", hint=self.command)
        if strange := [name for name in parts if name not in named]:
            file = folder / strange[0]
            raise DataError(f"{file} is not in the manifest", hint=f"rm {file}")
        return manifest

    def manifest(self) -> dict[str, Any] | None:
        """Read the manifest, None when there is none. Raises DataError."""
        try:
            return read_manifest(self.folder)
        except DataError as error:
            raise DataError(str(error), hint=f"rm {self.folder / FILE_NAME}; {self.command}") from None

    def entry(self, manifest: Mapping[str, Any], name: str, kind: type[L]) -> L:
        """Read a label out of the manifest. Raises DataError."""
        file = self.folder / FILE_NAME
        try:
            return kind.model_validate(manifest.get(name))
        except ValidationError as error:
            raise DataError(f"{file}: {wrong_value(error)}", hint=f"rm {file}; {self.command}") from None

    def unchanged(self, part: str, digest: str) -> Path:
        """Give the file of a part. Raises DataError unless it is the one that the manifest speaks of."""
        file = self.file(part)
        with storing(file):
            sha256 = sha256_of(file)
        if sha256 != digest:
            raise DataError(
                f"{file} is not the file that was written: it is damaged, or another",
                hint=f"rm {file}; {self.command}",
            )
        return file

    def compare(self) -> None:
        """Compare the parts with the manifest, if there is one: the next one would call them whole.

        Raises DataError.
        """
        written = (self.manifest() or {}).get("outputs", {})
        for name in self.parts():
            if name in written:
                self.unchanged(name, written[name])

    def reopen(self) -> None:
        """Take the manifest away while parts are made."""
        (self.folder / FILE_NAME).unlink(missing_ok=True)

    def drop_behind_gaps(self) -> None:
        """Take parts away that come behind a missing one: they are made with it, and tile their shard."""
        numbers: Counter[str] = Counter()
        for name in self.parts():
            shard = name.partition("-")[0]
            if name == part_name(int(shard), numbers[shard]):
                numbers[shard] += 1
            else:
                (self.folder / name).unlink()


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
