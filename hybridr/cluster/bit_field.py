"""The field of token bits: how an index keeps them, and the clause that scores documents by them."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from string import Template
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .connection import Cluster
from .reading import hits_by_id
from .record import BITS_FIELD, IndexInfo

BITS_MAPPING: dict[str, Any] = {"type": "binary", "doc_values": True}
SOURCE_BYTES = 4 / 3  # of base64 in `_source`, and in the copy for recovery where `_source` leaves it out
BYTES_OF_LONG = 8
# A script ends in an error after 1,000,000 turns of loops, which it counts for each function apart.
SCRIPT = Template("""
long[] unpacked(byte[] bytes, int start, int size) {
  long[] found = new long[size]; int at = start;
  for (int i = 0; i < size; i++) {
    found[i] = $long;
    at += 8;
  }
  return found;
}
int nearest(long[] tokens, List query, int at, int width) {
  $asked
  int least = width;
  for (int i = 0; i < tokens.length; i += $longs) {
    int apart = $apart;
    if (apart < least) { least = apart; }
  }
  return least;
}
BytesRef kept = doc['$field'].get(0);
long[] tokens = unpacked(kept.bytes, kept.offset, kept.length / 8);
List weights = params.weights;
List query = params.query;
int width = params.width;
double sum = 0.0;
for (int i = 0; i < weights.size(); i++) {
  double near = 1.0 - 2.0 * nearest(tokens, query, $longs * i, width) / width;
  sum += ((Number) weights.get(i)).doubleValue() * near;
}
return params.factor * Math.max(0.0, sum);
""")


def bits_value(bits: NDArray[np.uint8]) -> dict[str, str]:
    """Give the field the bits `(tokens, bytes)` of a document; a text without tokens has an empty value."""
    return {BITS_FIELD: base64.b64encode(bits.tobytes()).decode()}


def bits_query(
    query: NDArray[np.uint8], weights: NDArray[np.float32], width: int, factor: float
) -> dict[str, Any]:
    """Score documents by late interaction with a query's tokens, times a factor; those without bits by none.

    `query` is `(tokens, bytes)`, `weights` `(tokens,)`. The score is `factor` x `late_interaction` of
    `encoders/bits.py`. The script's text depends on the width alone, so that a server compiles it once.
    """
    longs = query.reshape(-1).view(">i8").tolist()
    params = {"query": longs, "weights": weights.tolist(), "width": width, "factor": factor}
    script = {"lang": "painless", "source": bits_script(query.shape[1] // BYTES_OF_LONG), "params": params}
    return {"script_score": {"query": {"exists": {"field": BITS_FIELD}}, "script": script}}


def bits_script(longs: int) -> str:
    """Write the script for tokens of so many longs; its loops over them are written out for speed."""
    shifted = [f"((bytes[at + {i}] & 255L) << {56 - 8 * i})" for i in range(BYTES_OF_LONG)]
    reads = [f"long q{i} = ((Number) query.get(at + {i})).longValue();" for i in range(longs)]
    apart = [f"Long.bitCount(q{i} ^ tokens[i + {i}])" for i in range(longs)]
    return SCRIPT.substitute(
        field=BITS_FIELD,
        longs=longs,
        long=" | ".join(shifted),
        asked=" ".join(reads),
        apart=" + ".join(apart),
    )


def held_bytes(
    cluster: Cluster, index: str | IndexInfo, doc_ids: Sequence[str], field: str = BITS_FIELD
) -> dict[str, bytes]:
    """Read the doc values of those of the documents that have some; the index must be refreshed."""
    hits = hits_by_id(cluster, index, doc_ids, {"_source": False, "docvalue_fields": [field]})
    values = {hit["_id"]: hit["fields"][field][0] for hit in hits if "fields" in hit}
    return {doc_id: base64.b64decode(value + "==") for doc_id, value in values.items()}  # sent unpadded
