"""Compares an exported graph with the encoder that it was made from: vectors, token states and nDCG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import ModelError
from ...evaluation.label_free import Probe, make_probes, ndcg
from ...records import Document
from ..contract import TokenEncoder, Vectors
from ..machine import instruction_sets, read_cpu
from ..opening import OnnxEncoder, cosines_of
from ..tokens import random_texts
from .model_files import Exportable
from .weights import NumpyBiEncoder

TEXTS = {"torch": 128, "numpy": 32}  # compared at least, and documents at most, by reference: numpy is slow
TEXT_TOKENS = 128  # of each document at most: long documents and their queries take 10 s of MiniLM on 2 cores
GENERATED = 16  # at least: they reach to the input limit
FP32_TOLERANCE = 1e-4
STATE_TOLERANCE = 1e-2  # of states at length 1: where a state is short, rounding shows more
INT8_COSINE = 0.9  # the least mean cosine to fp32 that still counts as the same encoder


def measure_parity(
    retriever: Exportable, folder: Path, encoder: dict[str, Any], documents: Sequence[Document | str]
) -> dict[str, Any]:
    """Compare the graphs in `folder`, described by `encoder`, with torch (or numpy); return the manifest's
    `parity` entry.

    The entry names the processor's instruction sets, on which int8 depends. Compared are the first 128
    `documents` (32 with numpy), 128 tokens of each, the probes made from them, and 16 generated texts, or as
    many as make that number in all. States of tokens are compared at length 1. Raises ModelError if a vector
    of the fp32 graph differs by more than 1e-4 in any place or a state by more than 1e-2, or if the int8
    vectors have a mean cosine below 0.9.
    """
    reference = "numpy" if isinstance(retriever, NumpyBiEncoder) else "torch"
    chosen = documents[: TEXTS[reference]]
    samples = [text if isinstance(text, Document) else Document("", text) for text in chosen]
    probes, texts = make_probes(samples, seed=0)
    missing = TEXTS[reference] - len(texts) - len(probes)
    generated = generated_texts(retriever.tokenizer_json, retriever.max_tokens, max(GENERATED, missing))
    forms: dict[str, TokenEncoder] = {
        reference: retriever,
        "fp32": OnnxEncoder(folder, encoder, precision="fp32"),
    }
    if encoder["precision"] == "int8":
        forms["int8"] = OnnxEncoder(folder, encoder, precision="int8")
    vectors: dict[str, Vectors] = {}
    states: dict[str, Vectors] = {}
    for name, form in forms.items():
        readings = form.read_queries([probe.text for probe in probes])
        readings += form.read_documents(texts, max_tokens=min(TEXT_TOKENS, form.max_tokens))
        readings += form.read_documents(generated)
        vectors[name] = np.stack([reading.vector for reading in readings])
        read = np.concatenate([reading.states for reading in readings])
        states[name] = read / np.maximum(np.linalg.norm(read, axis=1, keepdims=True), 1e-12)
    number, tokens = len(vectors[reference]), len(states[reference])
    record: dict[str, Any] = {
        "reference": reference,
        "instructions": instruction_sets(read_cpu()),
        "texts": number,
        **measure_fp32(vectors[reference], vectors["fp32"], (reference, f"{number} texts"), FP32_TOLERANCE),
    }
    of_states: dict[str, Any] = {"tokens": tokens} | measure_fp32(
        states[reference], states["fp32"], (reference, f"the states of {tokens} tokens"), STATE_TOLERANCE
    )
    if "int8" in forms:
        for part, rows in ((record, vectors), (of_states, states)):
            cosines = cosines_of(rows[reference], rows["int8"])
            part["int8_cosine"] = {"mean": float(cosines.mean()), "least": float(cosines.min())}
        if not (mean := record["int8_cosine"]["mean"]) >= INT8_COSINE:
            raise ModelError(
                f"int8 keeps a mean cosine of {mean:.3f} to fp32, {INT8_COSINE} is needed",
                hint="this model does not bear int8: export with --precision fp32",
            )
    record["states"] = of_states
    return record | ranking_parity(vectors, probes, len(texts))


def ranking_parity(vectors: Mapping[str, Vectors], probes: Sequence[Probe], count: int) -> dict[str, Any]:
    """Return nDCG@10 of each form of the encoder: every probe searches its document among the first `count`
    texts.
    """
    if not probes:
        reason = "the documents make no queries" if count else "no documents were given, texts are generated"
        return {"ndcg": None, "ndcg_reason": reason}
    queries, texts = slice(0, len(probes)), slice(len(probes), len(probes) + count)
    values = {name: ndcg(probes, rows[queries] @ rows[texts].T) for name, rows in vectors.items()}
    return {"ndcg": {"cutoff": 10, "documents": count, "probes": len(probes), **values}}


def measure_fp32(
    reference: Vectors, vectors: Vectors, compared: tuple[str, str], tolerance: float
) -> dict[str, float]:
    """Return the largest difference between the fp32 graph's rows `(n, dim)` and the reference's.

    `compared` names the reference and the rows for the message. Raises ModelError if the difference exceeds
    the tolerance.
    """
    gap = float(np.abs(reference - vectors).max(initial=0.0))
    if not gap <= tolerance:
        raise ModelError(
            f"ONNX and {compared[0]} differ by {gap:.2g} over {compared[1]}, {tolerance:g} is allowed",
            hint=f"nothing was exported; try other versions of {compared[0]} and onnxruntime",
        )
    return {"max_abs_difference": gap, "tolerance": tolerance}


def generated_texts(tokenizer: str, limit: int, count: int) -> list[str]:
    """Return texts of random words of the vocabulary, from one word to beyond the token limit."""
    return random_texts(tokenizer, np.geomspace(1, limit * 1.2, max(count, 0)).astype(int).tolist())
