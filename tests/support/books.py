"""An index of books: objects, nested comments, numbers, vectors."""

from __future__ import annotations

import json

from hybridr.cluster.connection import Cluster, path_of

PROPERTIES = {
    "headline": {"type": "text", "fields": {"raw": {"type": "keyword"}}},
    "book": {"properties": {"body": {"type": "text"}, "isbn": {"type": "keyword"}}},
    "comments": {"type": "nested", "properties": {"words": {"type": "text"}}},
    "year": {"type": "integer"},
    "vector": {"type": "knn_vector", "dimension": 2},
}


def make(cluster: Cluster, name: str, documents: list[dict], **mappings) -> str:
    settings = {"number_of_shards": 2, "number_of_replicas": 0}
    cluster.request("PUT", path_of(name), {"settings": settings, "mappings": mappings})
    lines = [
        json.dumps(one) for i, source in enumerate(documents) for one in ({"index": {"_id": str(i)}}, source)
    ]
    if lines:
        answer = cluster.request("POST", path_of(name, "_bulk"), "\n".join(lines) + "\n", {"refresh": "true"})
        assert not answer["errors"]
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
