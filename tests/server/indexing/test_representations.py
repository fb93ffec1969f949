"""A further representation in a file of its own: filled, verified, kept up, told of and taken away."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hybridr import ReindexSettings
from hybridr.cluster.connection import Cluster, path_of
from hybridr.cluster.destinations import resolve
from hybridr.cluster.token_field import stored_bytes
from hybridr.doctor.forecasting import estimated_plan
from hybridr.errors import DataError, SettingsError
from hybridr.indexing import representations
from hybridr.indexing.recipe import TextRecipe
from hybridr.indexing.reindexing import reindex, sync
from hybridr.indexing.rollback import rollback
from hybridr.indexing.stages.transfer import export_text, plan_import
from hybridr.indexing.stages.vectors import encode_texts
from hybridr.status.standing import remove, status
from support.corpus import put, sources, update
from support.hashing import HashingEncoder
from support.in_place_index import knn_index, problems, raw
from support.members import one_more
from support.term_weights import FIELD, TERM_WEIGHTS

pytestmark = [pytest.mark.node, pytest.mark.usefixtures("further")]
LONG = " ".join(f"w{number}" for number in range(600))


@pytest.fixture
def further(tmp_path: Path) -> Iterator[None]:
    with one_more(representations, "throwaway", TERM_WEIGHTS, tmp_path):
        yield


@pytest.fixture
def source(cluster: Cluster, index_name: str) -> str:
    knn_index(cluster, index_name, 20)
    put(cluster, index_name, {"one": {"text": "anchor"}, "empty": {"text": ""}, "long": {"text": LONG}})
    return index_name


def wanted(in_place: bool = False, **more: Any) -> ReindexSettings:
    return ReindexSettings(representations=("throwaway",), in_place=in_place, fields=("text",), **more)


def assert_weights_fit(cluster: Cluster, name: str) -> None:
    """Every document has the weights of its present text, or none without text."""
    info = resolve(cluster, name)
    recipe = TextRecipe.of(info.record, HashingEncoder())
    for doc_id, found in raw(cluster, info.name).items():
        (said,) = recipe.read([found["text"]])
        assert found.get(FIELD) == recipe.values(said).get(FIELD), doc_id


def test_it_is_written_with_the_others_in_place_and_asked_by_the_engine(cluster, source):
    before, encoder = sources(cluster, source), HashingEncoder()
    settings = wanted(in_place=True, token_bits=True, term_table=False)
    done = reindex(cluster, source, encoder, settings)
    assert (done.encoded, done.without_text) == (22, 1)
    assert_weights_fit(cluster, source)
    assert len(raw(cluster, done.destination)["long"][FIELD]) == 600, "weights reach the end of a document"
    assert len(stored_bytes(cluster, done.destination, ["long"])["long"]) == 8 * 600
    assert problems(cluster, source) == {}
    assert [name for name in before if name not in sources(cluster, done.destination)] == []
    query = {"query": {"rank_feature": {"field": f"{FIELD}.w599"}}}
    assert [hit["_id"] for hit in cluster.search(done.destination, query)["hits"]["hits"]] == ["long"]
    again = reindex(cluster, source, encoder, settings)
    assert (again.encoded, again.skipped, again.destination) == (0, 23, done.destination)


def test_plan_status_rollback_and_removal_know_it(cluster, source):
    before = raw(cluster, source)
    todo = estimated_plan(cluster, source, HashingEncoder(), wanted())
    assert todo.requests[0]["body"]["mappings"]["properties"][FIELD] == {"type": "rank_features"}
    assert todo.to_json()["token_bytes"] > 0
    assert todo.proposal.remarks == ["term weights: about 0.0 MB a copy"]
    destination = reindex(cluster, source, HashingEncoder(), wanted()).destination
    plain = reindex(cluster, source, HashingEncoder(), ReindexSettings(fields=("text",), alias=f"{source}-2"))
    assert plain.destination != destination, "an index with it is another one"
    assert [held.representations for held in status(cluster, source).holdings] == [("term weights",), ()]
    update(cluster, destination, "d9", text="written where the weights are")
    sync(cluster, destination, HashingEncoder())
    rollback(cluster, source, copy_back=True)
    assert not any(FIELD in found for found in raw(cluster, source).values())
    remove(cluster, source, discard=True)
    assert raw(cluster, source).keys() == before.keys()


def test_refusals(cluster, source, tmp_path):
    with pytest.raises(SettingsError, match="term weights reach the end of every document"):
        reindex(cluster, source, HashingEncoder(), wanted(passages=True))
    export_text(cluster, source, tmp_path / "stages", ReindexSettings(fields=("text",)))
    with pytest.raises(SettingsError, match="term weights are not made in stages"):
        encode_texts(tmp_path / "stages", HashingEncoder(), wanted())
    encode_texts(tmp_path / "stages", HashingEncoder(), ReindexSettings())
    with pytest.raises(SettingsError, match="it has no representations"):
        plan_import(cluster, source, tmp_path / "stages", HashingEncoder(), wanted())
    cluster.request("PUT", path_of(source, "_mapping"), {"properties": {FIELD: {"type": "keyword"}}})
    for in_place in (False, True):
        with pytest.raises(DataError, match=f"already has a field '{FIELD}'"):
            reindex(cluster, source, HashingEncoder(), wanted(in_place))
