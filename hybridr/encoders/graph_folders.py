"""Graph folders: a graph and a tokenizer that make something else of texts than one vector; opened once."""

from __future__ import annotations

from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import ClassVar, TypeVar

from ..errors import DownloadError, FingerprintMismatch, ModelError
from ..files.manifest import read_manifest
from ..files.remembered import folder_of, remember_encoder
from .contract import require_no_links
from .engines import GRAPHS
from .folder import GraphEntry, checked_entry, physical_cores, require_outputs, tokenizer_in
from .tokens import TOKENIZER_FILE


class GraphFolder:
    """A graph folder at work.

    A subclass states its `entry` in a manifest (that of an encoder of vectors is `encoder`), how one is
    `made`, and which settings `name` its folder.
    """

    entry: ClassVar[str]
    how_to_make: ClassVar[str]
    named: ClassVar[str]
    kind: ClassVar[type[GraphEntry]] = GraphEntry

    def __init__(self, folder: Path | str) -> None:
        """Open a folder of `hybridr export`. Raises ModelError for another, or a damaged one."""
        self.folder = Path(folder).expanduser()
        self.details = graph_entry(type(self), self.folder)
        require_outputs(self.folder, (GRAPHS["fp32"], TOKENIZER_FILE))
        self.fingerprint, self.max_tokens = self.details.fingerprint, self.details.max_tokens
        self._texts, self._threads = tokenizer_in(self.folder), physical_cores()


F = TypeVar("F", bound=GraphFolder)


def graph_entry(kind: type[GraphFolder], folder: Path) -> GraphEntry:
    """Read what the manifest of a folder says. Raises ModelError for one of another kind, or damaged."""
    if folder.is_dir():
        require_no_links(folder)
    entry = (read_manifest(folder) or {}).get(kind.entry) if folder.is_dir() else None
    if entry is None:
        lack = f"holds no {kind.entry.replace('_', ' ')} of hybridr" if folder.is_dir() else "is not there"
        raise ModelError(f"{folder} {lack}", hint=kind.how_to_make)
    return checked_entry(kind.kind, entry, folder, kind.entry)


def open_once(kind: type[F], folder: Path | None, purpose: str = "") -> F:
    """Open a graph folder once: the given one, else that which this machine remembers as `wanted`.

    Raises ModelError where there is none, FingerprintMismatch where the folder's is another.
    """
    what, place = kind.entry.replace("_", " "), folder or folder_of(purpose)
    if place is None:
        raise ModelError(f"the {what} {purpose[:12]} is not known on this machine", hint=kind.named)
    opened = _opened(kind, place, graph_entry(kind, place).fingerprint)  # type: ignore[arg-type]
    assert isinstance(opened, kind)
    if purpose and opened.fingerprint != purpose:
        raise FingerprintMismatch(
            f"{place} is the {what} {opened.fingerprint[:12]}, the index was written by {purpose[:12]}",
            hint="give the folder of that one",
        )
    if folder_of(opened.fingerprint) != place.resolve():
        with suppress(DownloadError):  # what is asked does not fail because nothing can be written
            remember_encoder(opened.fingerprint, place)
    return opened


@lru_cache(maxsize=4)
def _opened(kind: type[GraphFolder], folder: Path, fingerprint: str) -> GraphFolder:
    return kind(folder)
