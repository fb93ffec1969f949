"""A user's own index that gets vectors in place, and what a client sees of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from hybridr import ReindexSettings
from hybridr.cluster.connection import Cluster, path_of
from hybridr.cluster.reading import read_documents
from hybridr.cluster.record import MARK_FIELD
from hybridr.indexing.reindexing import SyncResult, reindex, sync
from hybridr.indexing.verification import verify
from support.corpus import delete, fill_index, put, put_documents, text_number, update
from support.hashing import HashingEncoder

IN_PLACE = ReindexSettings(in_place=True, fields=("text",))
VECTOR = "hybridr_vector"


def empty_index(cluster: Cluster, name: str, settings: dict[str, Any], mappings: dict[str, Any]) -> None:
    index = {"knn": True, "number_of_replicas": 0, **settings}
    cluster.request("PUT", path_of(name), {"settings": index, "mappings": mappings})


def knn_index(cluster: Cluster, name: str, count: int, **settings: Any) -> None:
    """An index of the user's with `index.knn`, strict mapping, and settings that must stay."""
    properties = {"text": {"type": "text"}, "price": {"type": "float"}, "tags": {"type": "keyword"}}
    index = {"knn": True, "number_of_replicas": 0, "number_of_shards": 2, "refresh_interval": "17s"}
    fill_index(
        cluster,
        name,
        count,
        settings={**index, **settings},
        mappings={"dynamic": "strict", "properties": properties, "_meta": {"owner": "somebody"}},
    )


def filled_index(cluster: Cluster, name: str) -> str:
    """An index of 40 documents over 2 shards with vectors in place."""
    knn_index(cluster, name, 40)
    reindex(cluster, name, HashingEncoder(), IN_PLACE)
    return name


def raw(cluster: Cluster, index: str) -> dict[str, dict[str, Any]]:
    cluster.refresh(index)
    return {found.doc_id: found.source for found in read_documents(cluster, index)}


def assert_vectors_fit(cluster: Cluster, index: str) -> None:
    """Every document has the vector of its present text, or none without text; a mark each."""
    for doc_id, source in raw(cluster, index).items():
        assert MARK_FIELD in source, doc_id
        assert bool(source.get("text", "").strip()) == (VECTOR in source), doc_id
        if VECTOR in source:
            expected = HashingEncoder().encode_queries([source["text"]])[0]
            np.testing.assert_allclose(source[VECTOR], expected, atol=1e-5, err_msg=doc_id)


def ok(cluster: Cluster, index: str) -> bool:
    return verify(cluster, index, HashingEncoder()).ok


def problems(cluster: Cluster, name: str) -> dict[str, list[str]]:
    """What a verification finds, with the documents that differ."""
    found = verify(cluster, name, HashingEncoder(), sample=100)
    return {finding.name: sorted(finding.differing) for finding in found.findings if not finding.ok}


def check_a_life(
    cluster: Cluster,
    source: str,
    settings: ReindexSettings,
    counts: tuple[int, int],
    fits: Callable[[], object],
    emptied: str,
) -> str:
    """Reindex, go on, and sync what both sides wrote: all documents fit each time; give the destination."""
    encoder = HashingEncoder()
    done = reindex(cluster, source, encoder, settings)
    assert (done.encoded, done.without_text) == counts
    fits()
    assert problems(cluster, source) == {}
    again = reindex(cluster, source, encoder, settings)
    assert (again.encoded, again.skipped, again.destination) == (0, sum(counts), done.destination)
    put_documents(cluster, source, [3, 50], suffix=" by a client")
    update(cluster, source, emptied, text="")
    delete(cluster, source, "d7")
    update(cluster, done.destination, "d9", text="written where the others are")
    sync(cluster, source, encoder)
    fits()
    assert problems(cluster, source) == {}, "what a client wrote there was taken up"
    return done.destination


def did(done: SyncResult) -> tuple[int, int, int, int]:
    return done.copied, done.deleted, done.renewed, done.waiting


def refusing_index(cluster: Cluster, index_name: str) -> None:
    """An index whose document `bad` was taken before the mapping grew too strict for it."""
    properties = {"text": {"type": "text"}, "open": {"type": "object", "dynamic": True}}
    empty_index(cluster, index_name, {}, {"dynamic": False, "properties": properties})
    put(cluster, index_name, {"bad": {"text": "a bad one", "late": "not a number"}})
    put(cluster, index_name, {f"d{number}": {"text": text_number(number)} for number in range(5)})
    cluster.request("PUT", path_of(index_name, "_mapping"), {"properties": {"late": {"type": "long"}}})
