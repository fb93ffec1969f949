"""Fitting a query map to a live index."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hybridr import Search, connect, reindex
from hybridr.cluster.connection import Cluster, path_of
from hybridr.encoding.query_map import MappedEncoder
from hybridr.errors import DataError, FingerprintMismatch
from hybridr.node.state import NodeState
from hybridr.records import Query
from hybridr.reindexing.settings import ReindexSettings
from hybridr.search.calibration import STATEMENTS
from hybridr.tuning.map_fitting import fit_query_map
from hybridr.tuning.settings import MapSettings
from hybridr.vocabulary.terms import Analysis
from support.corpus import WORDS, fill_index, put_documents, text_number
from support.hashing import HashingEncoder

pytestmark = pytest.mark.node
SMALL = MapSettings(queries=120, depth=10, at_random=5, steps=40, batch_size=16)


@pytest.fixture(scope="module")
def reindexed(cluster: Cluster) -> Any:
    fill_index(cluster, "t-mapped", 200)
    encoder = HashingEncoder(dim=24)
    reindex(cluster, "t-mapped", encoder)
    yield "t-mapped", encoder
    for info in cluster.indices("t-mapped*"):
        cluster.request("DELETE", path_of(info.name))


def test_a_map_is_fitted_without_a_write(cluster: Cluster, reindexed: Any) -> None:
    index, encoder = reindexed
    encoder.encoded.clear()
    before = cluster.request("GET", "/t-mapped*/_stats/indexing")["_all"]["total"]["indexing"]["index_total"]
    stages: dict[str, list[int | None]] = {}
    query_map = fit_query_map(
        cluster,
        index,
        encoder,
        SMALL,
        progress=lambda stage, done, total=None, note="": stages.setdefault(stage, []).extend([done, total]),
    )
    after = cluster.request("GET", "/t-mapped*/_stats/indexing")["_all"]["total"]["indexing"]["index_total"]
    assert before == after
    assert set(encoder.encoded) <= set(STATEMENTS), "no document of the index"
    assert {"encode queries", "candidates", "vectors", "fit"} <= stages.keys()
    inputs = query_map.origin["inputs"]
    assert inputs["queries"] == {"sentence": 60, "keywords": 60}  # no titles there
    assert inputs["divergence"]["after"] < inputs["divergence"]["before"]
    assert inputs["index"] == "t-mapped-hybridr-1"
    assert query_map.encoder == encoder.fingerprint
    assert query_map.matrix.shape == (24, 24)
    again = fit_query_map(cluster, index, encoder, SMALL)
    assert again.fingerprint == query_map.fingerprint


def test_search_takes_an_encoder_with_a_map(cluster: Cluster, reindexed: Any) -> None:
    index, encoder = reindexed
    query_map = fit_query_map(cluster, index, encoder, SMALL)
    queries = [Query(str(number), text_number(number)) for number in range(5)]
    plain = Search(cluster, index, encoder, "dense").run(queries, 10)
    unchanged = Search(cluster, index, MappedEncoder(encoder, query_map.at(0)), "dense").run(queries, 10)
    mapped = Search(cluster, index, MappedEncoder(encoder, query_map.at(1)), "dense").run(queries, 10)
    assert unchanged == plain
    assert mapped != plain


def test_bytes_and_passages_can_be_fitted_too(cluster: Cluster, index_name: str) -> None:
    fill_index(cluster, index_name, 1)
    put_documents(cluster, index_name, range(120), suffix=f" {' '.join(WORDS)}")
    encoder = HashingEncoder(dim=24)
    reindex(cluster, index_name, encoder, ReindexSettings(passages=True, max_tokens=16, passage_overlap=2))
    found = fit_query_map(cluster, index_name, encoder, SMALL).origin["inputs"]["divergence"]
    assert found["after"] < found["before"]
    other = f"{index_name}-b"
    fill_index(cluster, other, 120)
    reindex(cluster, other, encoder, ReindexSettings(vectors="byte"))
    found = fit_query_map(cluster, other, encoder, SMALL).origin["inputs"]["divergence"]
    assert found["after"] < found["before"]


def test_what_cannot_be_fitted_is_refused(cluster: Cluster, reindexed: Any, index_name: str) -> None:
    index, encoder = reindexed
    with pytest.raises(FingerprintMismatch):
        fit_query_map(cluster, index, HashingEncoder(dim=24, salt="other"), SMALL)
    fill_index(cluster, index_name, 30)
    with pytest.raises(DataError, match="has no vectors"):
        fit_query_map(cluster, index_name, encoder, SMALL)
    reindex(cluster, index_name, encoder)
    with pytest.raises(DataError, match="30 documents with text; 100 are needed"):
        fit_query_map(cluster, index_name, encoder, SMALL)


@pytest.mark.secure
def test_the_old_factor_of_bm25_is_in_the_weights(secure_node: NodeState, cluster: Cluster) -> None:
    """The same documents and queries get the same share of BM25 on both versions."""
    shares = []
    for each in (connect(secure_node.url), cluster):
        fill_index(each, "t-factor", 60)
        texts = [text_number(number) for number in range(5)]
        read = Analysis(each, each.index_info("t-factor"), ["text"]).of(texts)
        roots = np.sqrt([one.idf_sum for one in read])
        runs = Search(each, "t-factor", mode="lexical").run([Query(text, text) for text in texts], 1)
        shares.append([max(runs[text].values()) / root for text, root in zip(texts, roots, strict=True)])
        each.request("DELETE", "/t-factor")
    assert shares[0] == pytest.approx(shares[1], rel=1e-3)
