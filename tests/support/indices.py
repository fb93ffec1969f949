"""Indices as a cluster would describe them."""

from __future__ import annotations

from typing import Any

from hybridr.cluster.record import IndexInfo
from hybridr.cluster.record_parts import VERSION

RECORD: dict[str, Any] = {
    **{"role": "vectors", "source": "docs", "source_uuid": "1", "job": "j", "state": "complete"},
    **{"encoder": "f", "dim": 32, "similarity": "cosine", "vector_field": "v", "fields": ["text"]},
    "version": VERSION,
}


def index_with_vectors(**record: Any) -> IndexInfo:
    """Describe a complete index with vectors, whose record has these fields too."""
    return IndexInfo("docs-hybridr", {"index.uuid": "2"}, {"_meta": {"hybridr": RECORD | record}}, {})
