"""What reindex tells and refuses before anything is made."""

from __future__ import annotations

from typing import Any

import pytest

from hybridr import ReindexSettings
from hybridr.cluster.connection import Cluster, path_of
from hybridr.errors import ClusterError, HybridrError, ModelError, NotFound
from hybridr.indexing.reindexing import plan, reindex
from support.corpus import add_alias, fill_index
from support.hashing import HashingEncoder


def test_dry_run_shows_the_requests_and_sends_none(cluster, index_name, cli, tiny):
    fill_index(cluster, index_name, 5)
    before = sorted(info.name for info in cluster.indices("*"))
    arguments = ["reindex", index_name, "--encoder", str(tiny), "--dry-run", "--json"]
    shown = cli.typed([*arguments, "--url", cluster.url]).json
    assert [request["method"] for request in shown["requests"]] == ["PUT", "POST", "PUT", "POST"]
    assert shown["requests"][0]["body"]["mappings"]["properties"]["hybridr_vector"]["dimension"] == 32
    assert sorted(info.name for info in cluster.indices("*")) == before
    cluster.request("PUT", shown["requests"][0]["path"], shown["requests"][0]["body"])


def refused(cluster: Cluster, name: str, **settings: Any) -> HybridrError:
    before = sorted(info.name for info in cluster.indices("*"))
    with pytest.raises(HybridrError) as caught:
        reindex(cluster, name, settings.pop("encoder", HashingEncoder()), ReindexSettings(**settings))
    assert sorted(info.name for info in cluster.indices("*")) == before, "something was created all the same"
    return caught.value


def test_refusals_before_anything_is_sent(cluster, index_name):
    assert isinstance(refused(cluster, f"{index_name}-missing"), NotFound)
    error = refused(cluster, index_name + "-missing")
    assert "no index or alias" in error.message
    cluster.request("PUT", path_of(f"{index_name}-empty"), {"settings": {"number_of_replicas": 0}})
    assert "is empty" in refused(cluster, f"{index_name}-empty").message
    body = {"mappings": {"_source": {"enabled": False}}}
    fill_index(cluster, f"{index_name}-nosource", 2, **body)
    assert "_source is disabled" in refused(cluster, f"{index_name}-nosource").message
    fill_index(cluster, index_name, 2)
    faiss = refused(cluster, index_name, engine="faiss")
    assert "no native library" in faiss.message
    assert "--engine lucene" in str(faiss.hint)
    assert "already" in refused(cluster, index_name, vector_field="price").message
    assert "is an index, not an alias" in refused(cluster, index_name, alias=f"{index_name}-empty").message
    assert isinstance(refused(cluster, index_name, encoder=HashingEncoder(dim=20_000)), ModelError)
    assert "missing" in refused(cluster, index_name, fields=("missing",)).message


def test_alias_over_two_indices_is_refused(cluster, index_name):
    for part in "ab":
        fill_index(cluster, f"{index_name}-{part}", 2)
        add_alias(cluster, f"{index_name}-{part}", f"{index_name}-both")
    both, other = f"{index_name}-both", f"{index_name}-x"
    add_alias(cluster, f"{index_name}-b", other)
    assert "several indices" in refused(cluster, both).message
    assert "several indices" in refused(cluster, f"{index_name}-a", alias=both).message
    assert "was not made from" in refused(cluster, f"{index_name}-a", alias=other).message


def test_what_cannot_be_an_alias_is_refused_before_the_fill(cluster, index_name):
    fill_index(cluster, index_name, 2)
    for alias in ("two words", "a,b", "_x", "-x", "..", "a*", "a#b", "a:b", 'a"b', "a\\b"):
        with pytest.raises(ClusterError, match="nvalid alias name"):
            add_alias(cluster, index_name, alias)
        assert "cannot be an alias" in refused(cluster, index_name, alias=alias).message


def test_plan_estimates_the_disk(cluster, index_name):
    fill_index(cluster, index_name, 10)
    size = plan(cluster, index_name, HashingEncoder(dim=384), ReindexSettings()).vector_bytes
    assert size == 10 * (384 * 4 + 128 + 384 * 9), "floats, graph, and their text that is kept for recovery"


def test_an_alias_that_stays_on_an_earlier_index_is_named(cluster, index_name):
    """A second reindex with other settings, without the application's alias."""
    fill_index(cluster, index_name, 5)
    shop, encoder = f"{index_name}-shop", HashingEncoder()
    reindex(cluster, index_name, encoder, ReindexSettings(alias=shop))
    other = ReindexSettings(vectors="byte")
    said = f"alias '{shop}' stays on '{index_name}-hybridr-1': the same command with --alias {shop} moves it"
    assert said in plan(cluster, index_name, encoder, other).to_json()["notes"]
    assert said in reindex(cluster, index_name, encoder, other).notes
    again = ReindexSettings(vectors="byte", alias=shop)
    assert all("stays on" not in note for note in plan(cluster, index_name, encoder, again).proposal.notes)
