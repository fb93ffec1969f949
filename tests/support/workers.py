"""Encoders for workers in other processes, which tell by files what they did; and a driver to be killed.

python workers.py URL INDEX RAY_ADDRESS FOLDER [once]
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from hybridr import ReindexSettings, connect
from hybridr.indexing import lag
from hybridr.indexing.reindexing import reindex
from support.hashing import HashingEncoder
from support.waiting import wait_until

SHARE = 20


class Telling(HashingEncoder):
    """Writes each text that it encodes into a file of its process, and dies once at some of them."""

    def __init__(self, folder: Path, deadly: Sequence[str] = (), waiting: str = "") -> None:
        super().__init__()
        self.folder, self.deadly, self.waiting = folder, tuple(deadly), waiting

    def encode_documents(self, texts: Sequence[str], *, max_tokens: int | None = None) -> np.ndarray:
        with (self.folder / f"{os.getpid()}.txt").open("a", encoding="utf-8") as told:
            told.writelines(f"{text}\n" for text in texts)
        for number, deadly in enumerate(self.deadly):
            if any(text.endswith(deadly) for text in texts) and self.is_first(f"died-{number}"):
                os.kill(os.getpid(), signal.SIGKILL)
        while self.waiting and not (self.folder / "go").exists() and self.is_to_wait(texts):
            time.sleep(0.05)
        return super().encode_documents(texts)

    def is_to_wait(self, texts: Sequence[str]) -> bool:
        """Whether a text is there at which workers wait for the file `go`."""
        return any(text.endswith(self.waiting) for text in texts)

    def is_first(self, name: str) -> bool:
        """Whether no process was here before."""
        try:
            (self.folder / name).touch(exist_ok=False)
        except FileExistsError:
            return False
        return True


class WaitingOnce(Telling):
    """Only the first worker waits, and tells on which host; hosts have a folder each."""

    def encode_documents(self, texts: Sequence[str], *, max_tokens: int | None = None) -> np.ndarray:
        own = self.folder / socket.gethostname()
        own.mkdir(exist_ok=True)
        if self.is_to_wait(texts) and self.is_first("waited"):
            (self.folder / f"waits-{own.name}").touch()
            while not (self.folder / "go").exists():
                time.sleep(0.05)
        return Telling(own).encode_documents(texts)


class Meeting(Telling):
    """Waits at its first texts until another process has some too."""

    def encode_documents(self, texts: Sequence[str], *, max_tokens: int | None = None) -> np.ndarray:
        found = super().encode_documents(texts)
        wait_until(lambda: len(list(self.folder.glob("*.txt"))) > 1)
        return found


class BrokenFor(HashingEncoder):
    """Gives no number for a text."""

    def encode_documents(self, texts: Sequence[str], *, max_tokens: int | None = None) -> np.ndarray:
        found = super().encode_documents(texts)
        return found * [[float("nan") if text.endswith(" n33") else 1.0] for text in texts]


def told_in(folder: Path) -> list[str]:
    """Every text that any other process encoded; this one does too, when it verifies."""
    files = [file for file in folder.rglob("*.txt") if file.stem != str(os.getpid())]
    return [line for file in files for line in file.read_text("utf-8").splitlines()]


def settled_count(count: Callable[[], int], rest_s: float = 1.0) -> int:
    """Count until nothing comes in any more: the node goes on with the bulk of a client that was killed."""
    before, now = -1, count()
    while now != before:
        time.sleep(rest_s)
        before, now = now, count()
    return now


def on_ray(**given: object) -> ReindexSettings:
    return ReindexSettings(
        **{"runner": "ray", "workers": 2, "term_table": False, "slow_search_ms": 0} | given
    )


def drive(url: str, index: str, address: str, folder: str, kind: str = "") -> None:
    """Reindex with workers that wait at a text, until killed; "once": only the first waits."""
    lag.SHARE = SHARE
    encoder = (WaitingOnce if kind == "once" else Telling)(Path(folder), waiting=" n70")
    reindex(connect(url), index, encoder, on_ray(ray_address=address))


def beside(url: str, index: str, folder: str) -> None:
    """Reindex as one of two processes, which begin to write when both have texts."""
    encoder = Meeting(Path(folder))
    done = reindex(connect(url), index, encoder, ReindexSettings(read_documents=20, term_table=False))
    assert (done.documents, done.switched) == (done.skipped + done.encoded, True), done


if __name__ == "__main__":
    drive(*sys.argv[1:])
