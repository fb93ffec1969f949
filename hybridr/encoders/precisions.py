"""Chooses the precision of documents: fp32, or a faster one that stays near it on this machine."""

from __future__ import annotations

import time
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

from ..errors import MissingExtra, ModelError
from ..files.remembered import known_encoder_folder
from .contract import Arithmetic, Backend, Vectors
from .engines import PACKAGES, PRECISIONS
from .machine import has_byte_products, read_cpu
from .opening import OnnxEncoder, cosines_of, load_encoder
from .registry import KnownEncoder

MIN_SPEED_UP, MIN_COSINE = 1.2, 0.99  # of a faster precision, against fp32
TIMED_TEXTS = [f"{number}{' a text of some words' * 25}" for number in range(32)]  # of 128 tokens each
SHORT_FILL_S = 300  # an index that fp32 fills faster stays in fp32: the gain is small, and rankings change


def with_faster_precision(
    encoder: OnnxEncoder,
    texts: Sequence[str],
    vectors: int,
    *,
    max_tokens: int | None = None,
    any_backend: bool = False,
) -> OnnxEncoder:
    """Return an fp32 encoder, or the same one in a faster precision (int8 or bf16) if that pays.

    It pays if all three are true: in fp32, `vectors` vectors take more than five minutes here; the other
    precision is 1.2 times as fast on `texts`; each of their vectors has a cosine of .99 or more to that of
    fp32. The fastest is taken, of the encoder's backend, with `any_backend` also of OpenVINO where it is
    installed. The returned encoder's `precision_reason` says why.
    """
    texts, variants = [text for text in texts if text], faster_variants(encoder.backend, any_backend)
    if not variants:
        encoder.precision_reason = "fp32: int8 is not faster on this processor"
        return encoder
    if not texts:
        return encoder
    reference, seconds = time_encoding(encoder, texts, max_tokens)
    if seconds / len(texts) * vectors / batches_at_once(encoder) < SHORT_FILL_S:
        encoder.precision_reason = (
            f"fp32: {vectors:,} vectors take less than {SHORT_FILL_S // 60} minutes in it"
        )
        return encoder
    best, best_name, best_speed, measured = encoder, "fp32", MIN_SPEED_UP, []
    for backend, precision in variants:
        name = precision if backend == encoder.backend else f"{precision} by {backend}"
        options: Any = {"precision": precision, "backend": backend, "threads": encoder.threads}
        try:
            variant = load_encoder(encoder.folder, **options)
        except (ModelError, MissingExtra) as error:
            measured.append(f"{name} does not work here, {error.message}")
            continue
        rounded, variant_seconds = time_encoding(variant, texts, max_tokens)
        speed, cosine = seconds / max(1e-9, variant_seconds), float(cosines_of(reference, rounded).min())
        measured.append(
            f"{name} is {speed:.1f} times as fast as fp32 here, "
            f"cosine {cosine:.4f} at least over {len(texts)} documents"
        )
        if speed >= best_speed and cosine >= MIN_COSINE:
            best, best_name, best_speed = variant, name, speed
    best.precision_reason = f"{best_name}: {'; '.join(measured)}"
    return best


def faster_variants(backend: str, any_backend: bool) -> list[tuple[str, str]]:
    """Return backends and precisions that may be faster than fp32 of a backend on this machine."""
    backends = [backend]
    if any_backend and backend == "onnx" and find_spec(PACKAGES["openvino"]):
        backends.append("openvino")
    slow = {"fp32"} if has_byte_products(read_cpu()) else {"fp32", "int8"}
    return [(name, precision) for name in backends for precision in PRECISIONS[name] if precision not in slow]


def usable_arithmetic(
    precision: Arithmetic | None, backend: Backend | None
) -> tuple[Arithmetic | None, Backend | None]:
    """Return the precision and backend that encoded an index, or fp32 by ONNX Runtime if this machine lacks
    that backend: vectors of all precisions are searched together.
    """
    is_missing = backend is not None and find_spec(PACKAGES[backend]) is None
    return ("fp32", "onnx") if is_missing else (precision, backend)


def batches_at_once(encoder: OnnxEncoder) -> int:
    """Return how many batches an encoder computes at the same time: one on a GPU, else one on each thread."""
    return 1 if encoder.offers.takes_many else encoder.threads


def time_encoding(
    encoder: OnnxEncoder, texts: Sequence[str], max_tokens: int | None
) -> tuple[Vectors, float]:
    """Return the vectors `(n, dim)` of documents and the seconds taken: CPU time, on a GPU elapsed time."""
    clock = time.perf_counter if encoder.offers.takes_many else time.process_time
    encoder.encode_documents(texts[:1], max_tokens=max_tokens)  # the first call also initialises the backend
    started = clock()
    vectors = encoder.encode_documents(texts, max_tokens=max_tokens)
    return vectors, clock() - started


def documents_per_second(entry: KnownEncoder) -> float | None:
    """Return how many documents of 128 tokens this machine, when idle, encodes per second in fp32; None if no
    index on this machine used the encoder.
    """
    folder = known_encoder_folder(entry.package.fingerprint) if entry.package else None
    if folder is None:
        return None
    encoder = load_encoder(folder, precision="fp32")
    _, seconds = time_encoding(encoder, TIMED_TEXTS, None)
    return len(TIMED_TEXTS) / max(1e-9, seconds) * batches_at_once(encoder)
