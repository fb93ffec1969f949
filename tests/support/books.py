"""An index of books: objects, nested comments, numbers, vectors."""

from __future__ import annotations

from hybridr.cluster.connection import Cluster
from support.corpus import create, put

PROPERTIES = {
    "headline": {"type": "text", "fields": {"raw": {"type": "keyword"}}},
    "book": {"properties": {"body": {"type": "text"}, "isbn": {"type": "keyword"}}},
    "comments": {"type": "nested", "properties": {"words": {"type": "text"}}},
    "year": {"type": "integer"},
    "vector": {"type": "knn_vector", "dimension": 2},
}


def make(cluster: Cluster, name: str, documents: list[dict], **mappings) -> str:
    create(cluster, name, settings={"number_of_shards": 2, "number_of_replicas": 0}, **mappings)
    if documents:
        put(cluster, name, {str(number): source for number, source in enumerate(documents)})
    return name


def document(number: int) -> dict:
    return {
        "headline": f"The harbour of town {number}",
        "book": {
            "body": f"It was the morning of day {number} and the boats were in the harbour for repair.",
            "isbn": str(number),
        },
        "comments": [{"words": f"what a fine tale this was, reader {number}"}, {"words": number}],
        "year": 1900 + number,
        "vector": [1, number],
    }
