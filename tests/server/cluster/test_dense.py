"""Smaller vectors on a real node: kept as chosen, found as before, told by the dry run, refused in words."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from hybridr import ReindexSettings, Search
from hybridr.cluster.connection import Cluster, path_of
from hybridr.errors import ClusterError
from hybridr.indexing.reindexing import ReindexResult, reindex, sync
from hybridr.indexing.verification import verify
from hybridr.records import Query
from hybridr.search.checks import Mode
from support.corpus import drop_indices, fill_index, put_documents, reindexed, text_number
from support.hashing import HashingEncoder

SOURCE, DOCUMENTS = "t-forms", 400
QUERIES = [Query(f"q{number}", text_number(number * 7)) for number in range(20)]
MODES: tuple[Mode, ...] = ("lexical", "dense", "hybrid")
SMALL = ("byte", "sq", "on_disk")
FORMS = ("float", *SMALL)
TOLERANCE = {"byte": 0.005, "sq": 0.01, "on_disk": 0.005}  # of a score in [0, 1]


def encoder() -> HashingEncoder:
    return HashingEncoder(dim=64)


def vector_of(cluster: Cluster, index: str, doc_id: str) -> list[Any]:
    found = cluster.request("GET", path_of(index, "_doc", doc_id))
    return list(found["_source"]["hybridr_vector"])


def overlap(one: dict[str, float], other: dict[str, float]) -> float:
    return len(one.keys() & other.keys()) / len(other)


@pytest.fixture(scope="module")
def made(cluster: Cluster) -> Iterator[dict[str, ReindexResult]]:
    """Give what came of one index in floats and in each form."""
    fill_index(cluster, SOURCE, DOCUMENTS)
    yield {form: reindex(cluster, SOURCE, encoder(), ReindexSettings(vectors=form)) for form in FORMS}
    drop_indices(cluster, f"{SOURCE}*,.hybridr-*-{SOURCE}*")


@pytest.mark.parametrize("form", SMALL)
def test_small_vectors_find_what_floats_find(cluster, made, form):
    done, floats = made[form], made["float"].destination
    assert (done.encoded, done.rejected, done.switched) == (DOCUMENTS, 0, True)
    assert done.destination != floats, "another form is another job"
    assert verify(cluster, done.destination, encoder(), seed=1).ok
    for mode in MODES:
        small, large = (
            Search(cluster, index, encoder(), mode).run(QUERIES, 10) for index in (done.destination, floats)
        )
        shares = [overlap(small[query.query_id], large[query.query_id]) for query in QUERIES]
        assert np.mean(shares) > 0.9, mode
        assert Search(cluster, done.destination, encoder(), mode)(text_number(5), 3)[0].doc_id == "d5"
    exact, found = (
        Search(cluster, made[one].destination, encoder(), "dense").run(QUERIES, 10) for one in ("float", form)
    )
    pairs = [
        (score, found[query][doc])
        for query, scores in exact.items()
        for doc, score in scores.items()
        if doc in found[query]
    ]
    assert len(pairs) > 150
    assert max(abs(one - other) for one, other in pairs) < TOLERANCE[form]


def test_a_changed_document_keeps_the_form_and_a_changed_vector_is_found(cluster, index_name):
    done = reindexed(cluster, index_name, 20, encoder(), ReindexSettings(vectors="byte"))
    put_documents(cluster, index_name, [3], suffix=" changed")
    cluster.request(
        "PUT", path_of(done.destination, "_doc", "new"), {"text": "a plain writer"}, {"refresh": "true"}
    )
    assert sync(cluster, index_name, encoder()).copied == 1
    for doc_id, text in (("d3", text_number(3) + " changed"), ("new", "a plain writer")):
        kept = vector_of(cluster, done.destination, doc_id)
        assert all(value == int(value) for value in kept)
        assert max(map(abs, kept)) == 127
        exact = encoder().encode_documents([text])[0]
        assert np.dot(kept, exact) / np.linalg.norm(kept) > 0.999

    # A changed byte vector is found.
    other = vector_of(cluster, done.destination, "d4")
    body = {"doc": {"hybridr_vector": [int(value) for value in other]}}
    cluster.request("POST", path_of(done.destination, "_update", "d3"), body, {"refresh": "true"})
    assert not verify(cluster, done.destination, encoder()).ok


def test_a_document_without_direction_is_refused(cluster, index_name):
    done = reindexed(cluster, index_name, 5, HashingEncoder(refused=("n1",)), ReindexSettings(vectors="byte"))
    assert (done.rejected, done.documents, done.switched) == (1, 4, False)


def test_the_dry_run_tells_what_each_form_costs(cluster, index_name, minilm, cli):
    fill_index(cluster, index_name, 5)
    command = ["reindex", index_name, "--encoder", str(minilm), "--url", cluster.url]
    costs = cli.typed([*command, "--vectors", "byte", "--dry-run", "--json"]).json["costs"]
    named = {(cost["vectors"], cost["compression"]): cost for cost in costs}
    assert list(named) == [("byte", None), ("float", None), ("sq", None), ("on_disk", "4x")], "none of faiss"
    assert [cost["chosen"] for cost in costs] == [True, False, False, False]
    assert named["byte", None]["memory_bytes"] == round(5 * 1.1 * (384 + 128))
    assert named["float", None]["bytes_per_vector"] == 1536
    shown = cli.typed([*command, "--vectors", "byte", "--dry-run"]).out
    assert "the estimate of OpenSearch's documentation" in shown
    assert "* lucene byte " in shown
    assert not cluster.indices(f"{index_name}-hybridr-*")


def test_bytes_of_an_inner_product_encoder_are_refused(cluster, index_name):
    fill_index(cluster, index_name, 3)
    dots = encoder()
    dots.similarity = "ip"
    with pytest.raises(ClusterError, match="directions, not lengths"):
        reindex(cluster, index_name, dots, ReindexSettings(vectors="byte"))
    done = reindex(cluster, index_name, dots, ReindexSettings(vectors="sq"))
    assert Search(cluster, done.destination, dots, "dense")(text_number(1), 1)[0].doc_id == "d1"
