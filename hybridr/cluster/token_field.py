"""The fields of token vectors and token bits: stored values, the query that scores bits, late interaction.

Token vectors are doc values that the client reads and compares. 50 documents of 150 vectors take some
milliseconds. The k-NN plugin's `lateInteractionScore` reads the JSON of `_source` and takes over 100 ms.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from itertools import compress
from string import Template
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .connection import Cluster
from .reading import hits_by_id
from .record import BITS_FIELD, IndexInfo

TOKENS_FIELD, TOKENS_REPRESENTATION = "hybridr_token_vectors", "token_vectors"
BLOCK_VECTORS = 32  # token vectors that are multiplied at a time
BITS_MAPPING: dict[str, Any] = {"type": "binary", "doc_values": True}
SOURCE_BYTES = 4 / 3  # stored bytes per byte: base64 in `_source`, or in its copy for recovery
BYTES_OF_LONG = 8
# A script fails after 1,000,000 loop iterations, counted per function.
SCRIPT = Template("""
long[] unpacked(byte[] bytes, int start, int size) {
  long[] values = new long[size]; int at = start;
  for (int i = 0; i < size; i++) {
    values[i] = $long;
    at += 8;
  }
  return values;
}
int nearestDistance(long[] tokens, List query, int at, int width) {
  $declarations
  int nearest = width;
  for (int i = 0; i < tokens.length; i += $longs) {
    int distance = $distance;
    if (distance < nearest) { nearest = distance; }
  }
  return nearest;
}
BytesRef stored = doc['$field'].get(0);
long[] tokens = unpacked(stored.bytes, stored.offset, stored.length / 8);
List weights = params.weights;
List query = params.query;
int width = params.width;
double sum = 0.0;
for (int i = 0; i < weights.size(); i++) {
  double similarity = 1.0 - 2.0 * nearestDistance(tokens, query, $longs * i, width) / width;
  sum += ((Number) weights.get(i)).doubleValue() * similarity;
}
return params.factor * Math.max(0.0, sum);
""")


def binary_value(field: str, values: NDArray[Any]) -> dict[str, str]:
    """Return the field of a document that holds token bits or vectors `(tokens, …)`, as base64."""
    return {field: base64.b64encode(values.tobytes()).decode()}


def bits_query(
    query: NDArray[np.uint8], weights: NDArray[np.float32], width: int, factor: float
) -> dict[str, Any]:
    """Return the script query that scores documents by late interaction of their token bits with a query's.

    `query` is `(tokens, bytes)`, `weights` `(tokens,)`. The score is `factor` x the weighted sum, at least 0,
    of 1 - 2 x hamming / width between each query token and its nearest token of the document. Documents
    without bits are not found. The script's text depends only on the width, so a server compiles it once.
    """
    longs = query.shape[1] // BYTES_OF_LONG
    shifted_bytes = [f"((bytes[at + {i}] & 255L) << {56 - 8 * i})" for i in range(BYTES_OF_LONG)]
    declarations = [f"long q{i} = ((Number) query.get(at + {i})).longValue();" for i in range(longs)]
    distances = [f"Long.bitCount(q{i} ^ tokens[i + {i}])" for i in range(longs)]
    source = SCRIPT.substitute(  # loops over the longs of a token are unrolled for speed
        field=BITS_FIELD,
        longs=longs,
        long=" | ".join(shifted_bytes),
        declarations=" ".join(declarations),
        distance=" + ".join(distances),
    )
    params = {"weights": weights.tolist(), "width": width, "factor": factor}
    params |= {"query": query.reshape(-1).view(">i8").tolist()}
    script = {"lang": "painless", "source": source, "params": params}
    return {"script_score": {"query": {"exists": {"field": BITS_FIELD}}, "script": script}}


def stored_bytes(
    cluster: Cluster, index: str | IndexInfo, doc_ids: Sequence[str], field: str = BITS_FIELD
) -> dict[str, bytes]:
    """Return id -> binary doc value of a field, for documents that have one. Refresh the index first."""
    hits = hits_by_id(cluster, index, doc_ids, {"_source": False, "docvalue_fields": [field]})
    values = {hit["_id"]: hit["fields"][field][0] for hit in hits if "fields" in hit}
    return {doc_id: base64.b64decode(value + "==") for doc_id, value in values.items()}  # sent unpadded


def token_vectors_in(stored: bytes, dim: int) -> NDArray[np.float32]:
    """Return the token vectors `(tokens, dim)` in a stored value; `(0, dim)` if its length does not fit."""
    rows = np.frombuffer(stored if len(stored) % dim == 0 else b"", np.int8).reshape(-1, dim)
    return rows.astype(np.float32)


def max_sims(query: NDArray[np.float32], documents: Sequence[bytes]) -> NDArray[np.float32]:
    """Return late-interaction scores `(n,)`: per document the sum over query tokens of the largest cosine.

    `query` is `(tokens, dim)`. Documents without vectors get NaN.
    """
    dim = query.shape[1]
    counts = np.array([len(stored) // dim if len(stored) % dim == 0 else 0 for stored in documents])
    sims = np.full(len(documents), np.nan, dtype=np.float32)
    if counts.any():
        has_vectors = counts > 0
        vectors = token_vectors_in(b"".join(compress(documents, has_vectors)), dim)
        lengths = np.sqrt(np.einsum("ij,ij->i", vectors, vectors))
        # BLAS multiplies small blocks in this thread. Its own threads busy-wait next to those of the encoder
        # and take five times as long.
        blocks = -(-len(vectors) // BLOCK_VECTORS)
        padded = np.zeros((blocks * BLOCK_VECTORS, vectors.shape[1]), dtype=np.float32)
        padded[: len(vectors)] = vectors
        products = padded.reshape(blocks, BLOCK_VECTORS, -1) @ query.T  # (blocks, BLOCK_VECTORS, m)
        products = products.reshape(len(padded), -1)[: len(vectors)]
        cosines = products / np.maximum(lengths, 1e-12)[:, None]
        starts = np.cumsum(counts[has_vectors]) - counts[has_vectors]
        sims[has_vectors] = np.maximum.reduceat(cosines, starts, axis=0).sum(axis=1)
    return sims
