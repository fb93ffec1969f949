"""Opens an encoder folder, on request with another backend than ONNX Runtime, or in narrower arithmetic.

In bf16 a backend encodes once in a child process before it is loaded, and the answer is remembered: it can
die of a processor that promises what it lacks (machine.py).
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..errors import DownloadError, HybridrError, MissingExtra, ModelError, first_line
from ..files.foreign import text_within
from ..files.manifest import fingerprint
from ..files.remembered import changing, known_in
from .contract import Arithmetic, Backend, Encoder, Vectors
from .engines import PACKAGES, require_backend
from .folder import AGAIN, OnnxEncoder, encoder_record, verify_encoder
from .machine import WITHOUT_AMX, multiplies_bytes, read_cpu

FILE = "backends.json"
TRIAL_S = 300
LENGTHS = (8, 16, 32, 64, 128, 250) * 4  # words of the texts that are encoded
LEAST_COSINE = 0.95  # to fp32: below it the processor computes something else than the graph says
NARROW: dict[str, Arithmetic] = {"onnx": "int8", "openvino": "bf16", "torch": "bf16"}
LEAST_GAIN, NEAR = 1.2, 0.99  # of speed, and the cosine that is kept
SHORT_S = 300  # an index that fp32 fills in less keeps it: little is gained there, and rankings move a little
EVERYWHERE = "put the same encoder folder at the same path on every machine"
PROGRAM = "import sys; from hybridr.encoders.opening import run_trial; run_trial(*sys.argv[1:])"


def load_encoder(
    folder: Path | str,
    *,
    precision: Arithmetic | None = None,
    backend: Backend | None = None,
    threads: int | None = None,
) -> OnnxEncoder:
    """Open an encoder folder; with ONNX Runtime, and without torch, unless another `backend` is asked for.

    `precision` is that of documents (queries are fp32); None takes the one that the folder was exported for.
    `threads` None takes the physical cores. The graph and the tokenizer are compared with the sha256 in the
    manifest. Raises ModelError when the folder is missing, damaged or not an encoder, MissingExtra when the
    backend is not installed.

    >>> encoder = hybridr.load_encoder("docs-encoder")
    >>> encoder.encode_queries(["side effects of statins"]).shape
    (1, 384)
    """
    folder = Path(folder)
    record = verify_encoder(folder, precision)
    chosen, arithmetic = str(backend or "onnx"), precision or record["precision"]
    require_backend(chosen, arithmetic)
    if chosen != "onnx" and arithmetic != "fp32":
        require_working(folder, arithmetic, chosen)
    try:
        return OnnxEncoder(folder, record, precision=precision, backend=chosen, threads=threads)
    except HybridrError:
        raise
    except Exception as error:  # backends and tokenizers raise bare Exceptions
        raise ModelError(f"the encoder {folder} cannot be opened: {first_line(error)}", hint=AGAIN) from error


def suited(
    encoder: OnnxEncoder, texts: Sequence[str], vectors: int, *, max_tokens: int | None = None
) -> OnnxEncoder:
    """Give an fp32 encoder in the narrower arithmetic of its backend, if that many `vectors` repay it.

    In fp32 they must take more than five minutes here; it must be faster, and the vector of each text keep a
    cosine of .99. `chosen` says what was measured.
    """
    precision, texts = NARROW[encoder.backend], [text for text in texts if text]
    if precision == "int8" and not multiplies_bytes(read_cpu()):
        encoder.chosen = "fp32: this processor gains nothing by int8"
        return encoder
    if not texts:
        return encoder
    reference, seconds = timed(encoder, texts, max_tokens)
    at_once = 1 if encoder.offers.takes_many else encoder.threads
    if seconds / len(texts) * vectors / at_once < SHORT_S:
        encoder.chosen = f"fp32: {vectors:,} vectors take less than {SHORT_S // 60} minutes in it here"
        return encoder
    try:
        options: Any = {"precision": precision, "backend": encoder.backend, "threads": encoder.threads}
        variant = load_encoder(encoder.folder, **options)
    except (ModelError, MissingExtra) as error:
        encoder.chosen = f"fp32: {precision} does not work here, {error.message}"
        return encoder
    rounded, narrow = timed(variant, texts, max_tokens)
    speed, cosine = seconds / max(1e-9, narrow), least_cosine(reference, rounded)
    best = variant if speed >= LEAST_GAIN and cosine >= NEAR else encoder
    best.chosen = (
        f"{best.precision}: {precision} is {speed:.1f} times as fast as fp32 here, "
        f"cosine {cosine:.4f} at least over {len(texts)} documents"
    )
    return best


def timed(encoder: OnnxEncoder, texts: Sequence[str], max_tokens: int | None) -> tuple[Vectors, float]:
    """Encode documents; give vectors `(n, dim)` and seconds: a processor's own, or a GPU's by the clock."""
    clock = time.perf_counter if encoder.offers.takes_many else time.process_time
    encoder.encode_documents(texts[:1], max_tokens=max_tokens)  # the first call also makes things ready
    started = clock()
    vectors = encoder.encode_documents(texts, max_tokens=max_tokens)
    return vectors, clock() - started


def least_cosine(left: Vectors, right: Vectors) -> float:
    """Give the least cosine of vectors `(n, dim)` with others, row by row."""
    lengths = np.linalg.norm(left, axis=1) * np.linalg.norm(right, axis=1)
    return float(((left * right).sum(axis=1) / np.maximum(lengths, 1e-12)).min())


class Shipped(NamedTuple):
    """An encoder as it goes to another process, which opens the same folder; see `shipped`."""

    folder: Path
    precision: str
    backend: str
    threads: int
    fingerprint: str

    def open(self, at_once: int) -> OnnxEncoder:
        """Open it for `at_once` batches at once, with the very batches of the process that it is from.

        Raises ModelError when the folder is not there or holds another encoder, MissingExtra.
        """
        try:
            record = verify_encoder(self.folder, self.precision)
        except ModelError as error:
            raise ModelError(error.message, hint=EVERYWHERE) from None
        if record["fingerprint"] != self.fingerprint:
            raise ModelError(
                f"{self.folder} holds encoder {record['fingerprint'][:12]}, not {self.fingerprint[:12]}",
                hint=EVERYWHERE,
            )
        require_backend(self.backend, self.precision)
        chosen: dict[str, Any] = {"precision": self.precision, "backend": self.backend}
        return OnnxEncoder(self.folder, record, **chosen, threads=self.threads, at_once=at_once)


def shipped(encoder: Encoder) -> Shipped | Encoder:
    """Say what another process needs to open an encoder; one that has no folder travels itself."""
    if not isinstance(encoder, OnnxEncoder):
        return encoder
    folder = encoder.folder.absolute()
    return Shipped(folder, encoder.precision, encoder.backend, encoder.threads, encoder.fingerprint)


def unshipped(encoder: Shipped | Encoder, at_once: int) -> Encoder:
    """Open what was shipped, for `at_once` batches at once. Raises what `Shipped.open` raises."""
    return encoder.open(at_once) if isinstance(encoder, Shipped) else encoder


def require_working(folder: Path, precision: str, backend: str) -> None:
    """Raise ModelError when a backend is known to fail on this machine, or does when it is tried now.

    One that is not installed is somebody else's error.
    """
    if find_spec(PACKAGES[backend]) is None:
        return
    answers, key = known_in(FILE), answer_key(folder, precision, backend)
    if key not in answers:
        answers[key] = trouble_with(folder, precision, backend)
        with suppress(DownloadError), changing(FILE) as entries:  # else it is tried again next time
            entries[key] = answers[key]
    if reason := answers[key]:
        raise ModelError(
            f"{precision} of the backend {backend} does not work on this machine: {reason}",
            hint=f"--precision fp32, or --backend onnx; where AMX is broken: export {'='.join(WITHOUT_AMX)}",
        )


def trouble_with(folder: Path, precision: str, backend: str, *, program: str = PROGRAM) -> str:
    """Let a child process encode with one backend, and say what is wrong with it; empty where nothing is.

    Whatever becomes of the child, this process goes on.
    """
    command = [sys.executable, "-c", program, str(folder), precision, backend]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=TRIAL_S)
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)
    if done.returncode < 0:
        return f"died of {signal.Signals(-done.returncode).name}"
    try:
        cosine = float(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        said = done.stderr.strip().splitlines()
        return said[-1] if said else f"ended with {done.returncode}"
    return "" if cosine >= LEAST_COSINE else f"its vectors have a cosine of {cosine:.3f} to fp32"


def run_trial(folder: str, precision: str, backend: str) -> None:
    """Encode in this process and write the least cosine to fp32 to stdout; what the child does."""
    record = encoder_record(Path(folder))
    texts = sample_texts(Path(folder))
    reference = OnnxEncoder(Path(folder), record, precision="fp32").encode_documents(texts)
    encoder = OnnxEncoder(Path(folder), record, precision=precision, backend=backend)
    sys.stdout.write(f"{least_cosine(encoder.encode_documents(texts), reference)}\n")


def sample_texts(folder: Path) -> list[str]:
    """Make texts of random words of the vocabulary."""
    model = json.loads(text_within(folder / "tokenizer.json"))["model"]
    entries = (entry if isinstance(entry, str) else entry[0] for entry in model["vocab"])
    words = [word for word in entries if word.isalpha()]
    random = np.random.default_rng(0)
    return [" ".join(random.choice(words, size)) for size in LENGTHS]


def answer_key(folder: Path, precision: str, backend: str) -> str:
    """Name what an answer depends on."""
    cpu = read_cpu()
    packages = {name: version_of(package) for name, package in PACKAGES.items()}
    limits = (
        os.environ.get("ONEDNN_MAX_CPU_ISA"),
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
    )
    encoder = encoder_record(folder)["fingerprint"]
    return fingerprint([cpu.model, sorted(cpu.flags), packages, limits, encoder, precision, backend])


def version_of(package: str) -> str | None:
    """Give the version of an installed package."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
