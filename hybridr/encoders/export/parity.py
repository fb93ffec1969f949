"""Is an exported graph the encoder that it was made from? Vectors, states of tokens and nDCG."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import ModelError
from ...evaluation.label_free import Probe, make_probes, ndcg
from ...records import Document
from ..contract import Reading, TokenEncoder, Vectors
from ..folder import OnnxEncoder
from ..machine import instruction_sets, read_cpu
from .model_files import Exportable
from .weights import NumpyBiEncoder

TEXTS = {"torch": 128, "numpy": 32}  # compared at least, by reference: numpy is slow
DOCUMENTS = 128  # at most, and of each
TEXT_TOKENS = 128  # at most: long documents and their queries take 10 s of MiniLM on 2 cores
GENERATED = 16  # at least: they reach to the input limit
FP32_TOLERANCE = 1e-4
STATE_TOLERANCE = 1e-2  # of states at length 1: where a state is short, rounding shows more
INT8_COSINE = 0.9  # the least mean cosine to fp32 that still counts as the same encoder


def measure_parity(
    retriever: Exportable, folder: Path, encoder: dict[str, Any], documents: Sequence[Document | str]
) -> dict[str, Any]:
    """Compare the graphs in `folder`, described by `encoder`, with torch, or with numpy where the weights
    were read without it; give the manifest's `parity` entry. It names the processor's instruction sets, on
    which int8 depends.

    The first 128 `documents` are encoded, 128 tokens of each, with the probes made from them, and generated
    texts of all lengths up to 128 in all (32 with numpy), 16 at least. States of tokens are compared at
    length 1, as those who use them compare them. Raises ModelError when a vector of the fp32 graph is more
    than 1e-4 away in any place or a state more than 1e-2, or the vectors of the int8 graph have a mean cosine
    below 0.9.
    """
    samples = [text if isinstance(text, Document) else Document("", text) for text in documents[:DOCUMENTS]]
    probes, texts = make_probes(samples, seed=0)
    missing = TEXTS[reference_name(retriever)] - len(texts) - len(probes)
    generated = generated_texts(retriever.tokenizer_json, retriever.max_tokens, max(GENERATED, missing))
    forms: dict[str, TokenEncoder] = {
        reference_name(retriever): retriever,
        "fp32": OnnxEncoder(folder, encoder, precision="fp32"),
    }
    if encoder["precision"] == "int8":
        forms["int8"] = OnnxEncoder(folder, encoder, precision="int8")
    read = {name: read_all(form, probes, texts, generated) for name, form in forms.items()}
    vectors = {name: np.stack([reading.vector for reading in form]) for name, form in read.items()}
    return {
        "reference": reference_name(retriever),
        "instructions": instruction_sets(read_cpu()),
        "texts": len(texts) + len(probes) + len(generated),
        **vector_parity(vectors),
        "states": state_parity(read),
        **ranking_parity(vectors, probes, len(texts)),
    }


def reference_name(retriever: Exportable) -> str:
    """Name the arithmetic that the graphs are compared with."""
    return "numpy" if isinstance(retriever, NumpyBiEncoder) else "torch"


def read_all(
    encoder: TokenEncoder, probes: Sequence[Probe], texts: Sequence[str], generated: Sequence[str]
) -> list[Reading]:
    """Read probes, documents and generated texts, in this order."""
    limit = min(TEXT_TOKENS, encoder.max_tokens)
    queries = encoder.read_queries([probe.text for probe in probes])
    return queries + encoder.read_documents(texts, max_tokens=limit) + encoder.read_documents(generated)


def vector_parity(vectors: Mapping[str, Vectors]) -> dict[str, Any]:
    """Compare each form's vectors with the first one's. Raises ModelError when they differ too much."""
    name, reference = next(iter(vectors.items()))
    compared = name, f"{len(reference)} texts"
    record: dict[str, Any] = measure_fp32(reference, vectors["fp32"], compared, FP32_TOLERANCE)
    return record | ({"int8_cosine": measure_int8(reference, vectors["int8"])} if "int8" in vectors else {})


def state_parity(read: Mapping[str, Sequence[Reading]]) -> dict[str, Any]:
    """Compare the states of each form's tokens with the first one's, at length 1; int8 is told, not judged.
    Raises ModelError when fp32 differs too much."""
    states = {name: unit_states(form) for name, form in read.items()}
    name, reference = next(iter(states.items()))
    record: dict[str, Any] = {"tokens": len(reference)}
    compared = name, f"the states of {len(reference)} tokens"
    record |= measure_fp32(reference, states["fp32"], compared, STATE_TOLERANCE)
    return record | ({"int8_cosine": mean_and_least(reference, states["int8"])} if "int8" in states else {})


def unit_states(read: Sequence[Reading]) -> Vectors:
    """Give the states of the tokens of all texts, `(tokens, width)`, each scaled to length 1."""
    states = np.concatenate([reading.states for reading in read])
    result: Vectors = states / np.maximum(np.linalg.norm(states, axis=1, keepdims=True), 1e-12)
    return result


def measure_fp32(
    reference: Vectors, vectors: Vectors, compared: tuple[str, str], tolerance: float
) -> dict[str, float]:
    """Compare the fp32 graph's rows `(n, dim)` with a reference's; `compared` names it and the rows.

    Raises ModelError when they differ too much.
    """
    gap = float(np.abs(reference - vectors).max(initial=0.0))
    if not gap <= tolerance:
        raise ModelError(
            f"ONNX and {compared[0]} differ by {gap:.2g} over {compared[1]}, {tolerance:g} is allowed",
            hint=f"nothing was exported; try other versions of {compared[0]} and onnxruntime",
        )
    return {"max_abs_difference": gap, "tolerance": tolerance}


def measure_int8(reference: Vectors, vectors: Vectors) -> dict[str, float]:
    """Compare int8 vectors with fp32 ones `(n, dim)`. Raises ModelError when they are far apart."""
    cosines = mean_and_least(reference, vectors)
    if not cosines["mean"] >= INT8_COSINE:
        raise ModelError(
            f"int8 keeps a mean cosine of {cosines['mean']:.3f} to fp32, {INT8_COSINE} is needed",
            hint="this model does not bear int8: export with --precision fp32",
        )
    return cosines


def mean_and_least(reference: Vectors, vectors: Vectors) -> dict[str, float]:
    """Give the mean and the least cosine of two arrays' rows."""
    cosines = cosine(reference, vectors)
    return {"mean": float(cosines.mean()), "least": float(cosines.min())}


def cosine(left: Vectors, right: Vectors) -> Vectors:
    """Compare two `(n, dim)` arrays row by row, as cosines `(n,)`."""
    lengths = np.linalg.norm(left, axis=1) * np.linalg.norm(right, axis=1)
    result: Vectors = (left * right).sum(axis=1) / np.maximum(lengths, 1e-12)
    return result


def ranking_parity(result: Mapping[str, Vectors], probes: Sequence[Probe], count: int) -> dict[str, Any]:
    """Give nDCG@10 of each form: every probe looks for its own among the first `count` texts."""
    if not probes:
        reason = "the documents make no queries" if count else "no documents were given, texts are generated"
        return {"ndcg": None, "ndcg_reason": reason}
    queries, texts = slice(0, len(probes)), slice(len(probes), len(probes) + count)
    values = {name: ndcg(probes, form[queries] @ form[texts].T) for name, form in result.items()}
    return {"ndcg": {"cutoff": 10, "documents": count, "probes": len(probes), **values}}


def generated_texts(tokenizer: str, limit: int, count: int) -> list[str]:
    """Make texts of random words of the vocabulary, from one word to beyond the limit of tokens."""
    entries = json.loads(tokenizer)["model"]["vocab"]  # words, or pairs of word and score
    words = (entry if isinstance(entry, str) else entry[0] for entry in entries)
    vocabulary = [word for word in words if word.isalpha()]
    random = np.random.default_rng(0)
    lengths = np.geomspace(1, limit * 1.2, max(count, 0)).astype(int)
    return [" ".join(random.choice(vocabulary, size)) for size in lengths]
