"""Encoding against what one would use otherwise: each in its own process, in turns, over the same texts.

What is compared is the time of all processors: on a machine that does other things too the clock says little.
"""

from __future__ import annotations

import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from hybridr.demo.demo import read_pydocs
from hybridr.encoders.contract import Vectors
from hybridr.encoders.opening import OnnxEncoder, load_encoder
from hybridr.files.formats import document_of, read_corpus
from hybridr.records import Progress, silent

from . import contender
from .contender import OPENERS

BASELINE = "sentence-transformers"
REFERENCE = "hybridr onnx fp32"
OURS = "hybridr"
FEW = 32  # texts that are encoded once before anything is measured
CLOSING_S = 20


@dataclass
class Contender:
    """One way to encode a set of texts; `reason` says why it was not run."""

    name: str
    versions: dict[str, str] = field(default_factory=dict)
    rounds: list[dict[str, float]] = field(default_factory=list)
    """CPU seconds, seconds of the clock and the highest resident memory (MB) of each round."""
    cosine: tuple[float, float] | None = None
    """Mean and least to our fp32 vectors."""
    reason: str = ""

    def middle(self, figure: str) -> float:
        """Give the median over the rounds."""
        return statistics.median(row[figure] for row in self.rounds)


@dataclass(frozen=True)
class Contest:
    """All contenders over one set of texts, the baseline first if it ran."""

    name: str
    documents: int
    tokens: int
    gflop: float
    """Billions of products and sums that a pass over all texts takes, without padding."""
    product: float
    """Those of one product of matrices of the encoder's shapes, in a processor second of one thread."""
    contenders: list[Contender]

    def ratios(self, one: Contender) -> list[float]:
        """Give the CPU seconds of the first that ran over those of `one`, round by round."""
        first = next(other for other in self.contenders if other.rounds)
        pairs = zip(first.rounds, one.rounds, strict=True)
        return [theirs["cpu_s"] / ours["cpu_s"] for theirs, ours in pairs]

    def record(self) -> dict[str, Any]:
        """Give the figures as JSON."""
        rows = [
            self.row(one) if one.rounds else {"name": one.name, "not_run": one.reason}
            for one in self.contenders
        ]
        figures = {name: getattr(self, name) for name in ("name", "documents", "tokens", "gflop", "product")}
        return {**figures, "contenders": rows}

    def row(self, one: Contender) -> dict[str, Any]:
        """Give the figures of a contender that ran."""
        ratios, wall = self.ratios(one), one.middle("wall_s")
        return {
            "name": one.name,
            "cpu_s": round(one.middle("cpu_s"), 3),
            "wall_s": round(wall, 3),
            "documents_per_s": round(self.documents / wall, 1),
            "tokens_per_s": round(self.tokens / wall, 1),
            "peak_mb": round(max(row["peak_mb"] for row in one.rounds)),
            "of_product": round(self.gflop / one.middle("cpu_s") / self.product, 3),
            "ratio": round(statistics.median(ratios), 3),
            "ratio_by_round": [round(ratio, 3) for ratio in ratios],
            "cosine": one.cosine and dict(zip(("mean", "least"), one.cosine, strict=True)),
            "versions": one.versions,
        }


class Child:
    """A contender's process."""

    def __init__(self, name: str, folder: Path, python: str) -> None:
        self.name = name
        command = [python, str(Path(contender.__file__)), name, str(folder)]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        self.found = self.read()

    def read(self) -> dict[str, Any]:
        """Read an answer; a child that died is one too."""
        assert self.process.stdout
        line = self.process.stdout.readline()
        if line:
            answer: dict[str, Any] = json.loads(line)
            return answer
        return {"reason": f"its process ended with {self.process.wait()}"}

    def encode(self, texts: Path, vectors: Path | None = None) -> dict[str, Any]:
        """Let it encode the texts of a file."""
        assert self.process.stdin
        order = {"texts": str(texts), "vectors": str(vectors) if vectors else None}
        try:
            self.process.stdin.write(json.dumps(order) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # the answer says how it ended
        return self.read()

    def close(self) -> None:
        """End the process."""
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.close()
        try:
            self.process.wait(CLOSING_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()


def compare_encoders(
    folder: Path,
    texts: Mapping[str, Sequence[str]],
    *,
    names: Sequence[str] = tuple(OPENERS),
    rounds: int = 3,
    peers: Path | None = None,
    progress: Progress = silent,
) -> list[Contest]:
    """Encode each set of `texts` with every contender in turns, `rounds` times after one that is not counted.

    `folder` is an encoder with fp32 and int8 graphs. What is not hybridr runs in the interpreter `peers`,
    None is this one. A contender that cannot run is in the result with its reason.
    """
    encoder = load_encoder(folder, precision="fp32")
    with tempfile.TemporaryDirectory() as scratch, running(folder, names, peers) as children:
        return [
            contest(name, list(given), (folder, encoder), children, rounds, Path(scratch) / name, progress)
            for name, given in texts.items()
        ]


@contextmanager
def running(folder: Path, names: Sequence[str], peers: Path | None) -> Iterator[list[Child]]:
    """Start a process for each contender, and end them all."""
    with ExitStack() as stack:
        children = []
        for name in names:
            python = sys.executable if name.startswith(OURS) or peers is None else str(peers)
            child = Child(name, folder, python)
            stack.callback(child.close)
            children.append(child)
        yield children


def contest(
    name: str,
    texts: list[str],
    opened: tuple[Path, OnnxEncoder],
    children: list[Child],
    rounds: int,
    scratch: Path,
    progress: Progress,
) -> Contest:
    """Let all encode one set of texts, round by round."""
    folder, encoder = opened
    scratch.mkdir()
    (scratch / "few").write_text(json.dumps(texts[:FEW]), encoding="utf-8")
    (scratch / "all").write_text(json.dumps(texts), encoding="utf-8")
    runners = [(child, Contender(child.name, child.found.get("versions", {}))) for child in children]
    for child, one in runners:
        one.reason = child.found.get("reason", "") or child.encode(scratch / "few").get("reason", "")
    for number in range(rounds):
        for position, (child, one) in enumerate(runners):
            progress(f"encode {name}", number * len(runners) + position, rounds * len(runners), child.name)
            if not one.reason:
                file = scratch / f"{position}.npy"
                took = child.encode(scratch / "all", None if number else file)
                one.reason = took.get("reason", "")
                one.rounds = [] if one.reason else [*one.rounds, took]
    vectors = {
        one.name: np.load(scratch / f"{position}.npy")
        for position, (_, one) in enumerate(runners)
        if one.rounds
    }
    reference = vectors.get(REFERENCE)
    for _, one in runners:
        if one.rounds and reference is not None:
            one.cosine = cosines(vectors[one.name], reference)
    lengths = [min(count, encoder.max_tokens) for count in encoder.count_tokens(texts)]
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    figures = round(gflop_of(config, lengths), 1), round(product_speed(config), 1)
    return Contest(name, len(texts), sum(lengths), *figures, [one for _, one in runners])


def gflop_of(config: Mapping[str, int], lengths: Iterable[int]) -> float:
    """Count products and sums, in billions, of a BERT over texts of so many tokens: layers, attention."""
    width, layers = config["hidden_size"], config["num_hidden_layers"]
    weights = 4 * width**2 + 2 * width * config["intermediate_size"]
    return sum(2 * layers * length * (weights + 2 * width * length) for length in lengths) / 1e9


def product_speed(config: Mapping[str, int], seconds: float = 0.5) -> float:
    """Measure the largest product of a layer over 1,024 tokens, by numpy: billions a processor second."""
    left = np.ones((1_024, config["hidden_size"]), np.float32)
    right = np.ones((config["hidden_size"], config["intermediate_size"]), np.float32)
    left @ right
    started, done = time.process_time(), 0
    while (took := time.process_time() - started) < seconds:
        left @ right
        done += 2 * left.size * right.shape[1]
    return done / took / 1e9


def read_texts(folders: Sequence[Path], count: int) -> dict[str, list[str]]:
    """Read at most `count` texts of each BEIR folder, drawn at random; of Python's documentation without one.

    From the documentation there are two sets, whole entries and their first lines. Raises DataError.
    """
    draw = random.Random(0)

    def some(texts: Iterable[str]) -> list[str]:
        found = [text for text in texts if text.strip()]
        return draw.sample(found, count) if len(found) > count else found

    if not folders:
        documents = read_pydocs()[0]
        lines = (document.text.strip().partition("\n")[0] for document in documents)
        return {"pydocs": some(document.contents for document in documents), "pydocs lines": some(lines)}
    return {
        folder.name: some(document_of(record, folder).contents for record in read_corpus(folder))
        for folder in folders
    }


def cosines(found: Vectors, reference: Vectors) -> tuple[float, float]:
    """Give the mean and the least cosine of two `(n, dim)` arrays, row by row."""
    lengths = np.linalg.norm(found, axis=1) * np.linalg.norm(reference, axis=1)
    values = (found * reference).sum(axis=1) / np.maximum(lengths, 1e-12)
    return float(values.mean()), float(values.min())
