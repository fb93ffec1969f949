"""Vectors are taken out of the user's own index."""

from __future__ import annotations

from typing import Any

import pytest

from hybridr import Search
from hybridr.cluster import writing
from hybridr.cluster.default_pipeline import stored_pipeline
from hybridr.cluster.destinations import write_record
from hybridr.cluster.record import MARK_FIELD
from hybridr.cluster.record_parts import Tuned
from hybridr.cluster.writing import Outcome
from hybridr.errors import ClusterError, DataError, NotFound
from hybridr.indexing.reindexing import reindex
from hybridr.indexing.targets import in_place
from hybridr.search.settings import SearchSettings
from hybridr.serving.deploy.deploying import deploy
from hybridr.serving.settings import DeploySettings
from hybridr.status.standing import remove, status
from support.corpus import update
from support.hashing import HashingEncoder
from support.in_place_index import IN_PLACE, VECTOR, filled_index, knn_index, raw


def test_remove_leaves_documents_and_settings_as_they_were(cluster, index_name):
    knn_index(cluster, index_name, 30)
    before, info = raw(cluster, index_name), cluster.index_info(index_name)
    reindex(cluster, index_name, HashingEncoder(), IN_PLACE)
    deploy(cluster, index_name, DeploySettings(), SearchSettings())
    done = remove(cluster, index_name)
    assert stored_pipeline(cluster, f"hybridr-{index_name}") is None
    assert (done["documents"], done["fields"], done["indices"]) == (30, [VECTOR, MARK_FIELD], [])
    assert raw(cluster, index_name) == before
    after = cluster.index_info(index_name)
    assert after.settings == info.settings
    assert after.mappings["_meta"] == {"owner": "somebody"}
    assert after.mappings["properties"].keys() - info.mappings["properties"].keys() == {VECTOR, MARK_FIELD}
    assert status(cluster, index_name).holdings == []
    with pytest.raises(NotFound):
        remove(cluster, index_name)
    with pytest.raises(DataError, match="no vectors"):
        Search(cluster, index_name, HashingEncoder(), "dense")
    assert reindex(cluster, index_name, HashingEncoder(), IN_PLACE).encoded == 30


def test_remove_goes_on_and_keeps_what_clients_write(cluster, index_name, monkeypatch):
    index, original, calls = filled_index(cluster, index_name), writing.write, []

    def failing(*given: Any, **options: Any) -> Outcome:
        if calls:
            raise ClusterError("the line went dead")
        calls.append(1)
        update(cluster, index, "d4", price=77.0)
        return original(*given, **options)

    monkeypatch.setattr(writing, "write", failing)
    monkeypatch.setattr(in_place, "REMOVED_TOGETHER", 10)
    with pytest.raises(ClusterError, match="line"):
        remove(cluster, index)
    with pytest.raises(DataError, match="not complete"):
        Search(cluster, index, HashingEncoder(), "dense")
    monkeypatch.setattr(writing, "write", original)
    assert remove(cluster, index)["documents"] > 0
    found = raw(cluster, index)
    assert found["d4"]["price"] == 77.0
    assert all(VECTOR not in source and MARK_FIELD not in source for source in found.values())


def test_removal_in_place_forgets_what_tune_found(cluster, index_name):
    """What was found for one encoder must not meet the next one."""
    filled_index(cluster, index_name)
    write_record(cluster, index_name, tuning=Tuned(search={"depth": 50}))
    assert Search(cluster, index_name, HashingEncoder()).settings.depth == 50
    remove(cluster, index_name)
    assert cluster.index_info(index_name).mappings["_meta"] == {"owner": "somebody"}
    other = HashingEncoder(salt="another")
    reindex(cluster, index_name, other, IN_PLACE.model_copy(update={"vector_field": "other"}))
    search = Search(cluster, index_name, other)
    assert search.settings.depth == 100
    assert search("text 3")
