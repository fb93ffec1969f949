"""`hybridr verify --recall` on a real node: a thin graph is found out, a sound one is not."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from hybridr import ReindexSettings
from hybridr.cluster.connection import Cluster
from hybridr.doctor.recall import DEFAULT_WIDTH, Walk, measure_recall
from hybridr.errors import ClusterError, DataError, SettingsError
from hybridr.indexing.reindexing import reindex
from hybridr.search import checks
from support.corpus import drop_indices, fill_index, having, reindexed, text_number
from support.hashing import HashingEncoder

INDEX, COUNT = "t-recall", 1500  # of fewer ones Lucene compares all
THIN = ReindexSettings(m=2, ef_construction=2, term_table=False)


def encoder() -> HashingEncoder:
    return HashingEncoder(dim=32)


@pytest.fixture(scope="module")
def thin(cluster: Cluster) -> Iterator[str]:
    reindexed(cluster, INDEX, COUNT, encoder(), THIN)
    yield INDEX
    drop_indices(cluster, f"{INDEX}*")


def test_a_thin_graph_is_found_out(cluster, thin, tmp_path, monkeypatch, cli):
    monkeypatch.setattr(checks, "encoder_for", lambda *_, **__: encoder())
    file = tmp_path / "queries.txt"
    file.write_text("\n".join(text_number(number) for number in range(0, 200, 10)) + "\n")
    asked = ["verify", thin, "--recall", "--sample", "12", "--queries", str(file), "--url", cluster.url]
    found = json.loads(cli.typed([*asked, "--json"], 1).out.splitlines()[-1])
    assert found["ok"] is False
    usual = [one for one in found["shares"] if (one["walk"], one["k"]) == (found["usual"], 10)]
    assert [(one["asked"], one["vectors"]) for one in usual] == [("documents", 12), ("queries", 20)]
    assert all(one["low"] <= one["mean"] <= one["high"] < 0.95 for one in usual)
    assert found["advice"]
    cli(cluster, f"verify {thin} --queries {file}", code=2)


def test_a_sound_graph_finds_all(cluster, index_name):
    reindexed(cluster, index_name, 120, encoder(), ReindexSettings(term_table=False))
    found = measure_recall(cluster, index_name, encoder(), sample=10)
    assert found.ok
    assert found.advice == ""
    assert {(one.asked, one.k, one.mean) for one in found.shares if one.walk == Walk(DEFAULT_WIDTH).name} == {
        (asked, k, 1.0) for asked in ("documents", "queries") for k in (10, 100)
    }


def test_what_cannot_be_measured_is_refused(cluster, thin, index_name):
    fill_index(cluster, index_name, 5)
    with pytest.raises(DataError, match="has no complete vectors"):
        measure_recall(cluster, index_name, encoder())
    reindex(cluster, index_name, encoder(), ReindexSettings(term_table=False, passages=True))
    with pytest.raises(SettingsError, match="this index has passages"):
        measure_recall(cluster, index_name, encoder())
    with (
        having(cluster, {"search.allow_expensive_queries": False}),
        pytest.raises(ClusterError, match="exact search is a script"),
    ):
        measure_recall(cluster, thin, encoder())
