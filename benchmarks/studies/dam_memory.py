"""What memory does masked-LM training take on a small and a large part of one corpus?

    python benchmarks/run.py dam-memory FOLDER [--every 21] [--steps 8]

FOLDER is a BEIR folder with many documents; each part has a process of its own. What counts is the peak of
anonymous pages (/proc, Linux): pages of the mapped token cache are the kernel's to drop. It reads and
tokenises the documents and trains the packaged MiniLM for some steps.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
import threading
import time
from itertools import islice
from pathlib import Path

from study import Section, own_process

ROLLUP = Path("/proc/self/smaps_rollup")
INTERVAL_S = 0.1


class Peak(threading.Thread):
    """Watches this process's anonymous pages."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.kib: dict[str, int] = {}
        self.stage = "start"

    def run(self) -> None:
        """Sample until the process ends."""
        while True:
            self.kib[self.stage] = max(self.kib.get(self.stage, 0), anonymous_kib())
            time.sleep(INTERVAL_S)


def anonymous_kib() -> int:
    """Read the anonymous pages of this process."""
    lines = ROLLUP.read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Anonymous:"))


def fit(folder: Path, every: int, steps: int) -> dict[str, object]:
    """Train on every n-th document and give the peaks by stage."""
    from hybridr.adaptation.corpus import CorpusFile
    from hybridr.adaptation.dam import fit_dam
    from hybridr.adaptation.settings import DamSettings

    peak = Peak()
    peak.start()

    def follow(stage: str, done: int, total: int | None = None, note: str = "") -> None:
        peak.stage = "prepare" if stage == "read" and done == total else stage

    with tempfile.TemporaryDirectory() as scratch:
        settings = DamSettings(
            out=Path(scratch) / "dam",
            steps=steps,
            batch_size=64,
            max_tokens=64,
            held_out=50,
            precision="fp32",
            device="cpu",
        )
        found = fit_dam(islice(CorpusFile(folder), 0, None, every), settings, progress=follow)
    return {"documents": found.documents, "tokens": found.tokens, "peak_kib": peak.kib}


def options(parser: argparse.ArgumentParser) -> None:
    """Take the corpus, and how much is trained."""
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    parser.add_argument("--every", type=int, default=21, help="the small part is every n-th document")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--part", choices=["small", "whole"], help=argparse.SUPPRESS)


def measure(given: argparse.Namespace) -> None:
    """Run both parts and compare; or one of them, in this process."""
    if given.part:
        print(json.dumps(fit(given.folder, given.every if given.part == "small" else 1, given.steps)))
        return
    options = [given.folder, "--every", given.every, "--steps", given.steps]
    found = {}
    for part in ("small", "whole"):
        command = own_process("dam-memory", *options, "--part", part)
        found[part] = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
        print(part, found[part])
    small, whole = (max(found[part]["peak_kib"].values()) for part in ("small", "whole"))
    print(f"anonymous pages {small / 1024:,.0f} -> {whole / 1024:,.0f} MiB, {whole / small - 1:+.1%}")


SECTIONS: list[Section] = []
