"""Dialects: what Elasticsearch is told where the library speaks as to OpenSearch, and what is understood."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import numpy as np
import orjson
import pytest

from hybridr import connect
from hybridr.cluster.dialects import ApiRequest, Version, identify_product
from hybridr.cluster.dialects.elastic import Elastic
from hybridr.cluster.dialects.plain import Native
from hybridr.cluster.field_values import WITHOUT_VECTORS, require_whole_source
from hybridr.cluster.record import IndexInfo
from hybridr.cluster.retrievers.dense import DenseRetriever, vector_mapping
from hybridr.cluster.retrievers.lexical import highlight
from hybridr.cluster.settings import VectorSettings
from hybridr.errors import ClusterError, DataError, NotFound
from support.recorder import recording

ELASTIC = Elastic((8, 15, 0))
VECTOR = np.array([0.6, 0.8], dtype=np.float32)
HNSW = {"type": "hnsw", "m": 16, "ef_construction": 100}
UNINDEXED = {"type": "dense_vector", "dims": 2, "index": False}
NODES = {"cluster_name": "c", "nodes": {"n": {"version": "8.15.0"}}}


def told(body: Any, path: str = "/docs/_search", method: str = "POST") -> Any:
    return ELASTIC.translated_request(ApiRequest(method, path, body, None)).body


def leg(**settings: Any) -> DenseRetriever:
    return DenseRetriever(VectorSettings(**settings), 2, "cosine")


@pytest.mark.parametrize(
    ("settings", "wanted"),
    [
        ({}, {"index_options": HNSW}),
        ({"vectors": "byte"}, {"element_type": "byte", "index_options": HNSW}),
        (
            {"vectors": "sq", "m": 8},
            {"index_options": {**HNSW, "type": "int8_hnsw", "m": 8, "confidence_interval": 1.0}},
        ),
    ],
)
def test_a_mapping_of_vectors_goes_there_and_back(settings: dict[str, Any], wanted: dict[str, Any]) -> None:
    field = vector_mapping(2, "cosine", VectorSettings(**settings), (3, 2, 0))
    mappings = {"properties": {"hybridr_vector": field}, "_meta": {"knn": "stays"}}
    body = {"settings": {"index": {"knn": True, "number_of_shards": 2}}, "mappings": mappings}
    sent = told(body, "/docs", "PUT")
    assert sent["settings"] == {"index": {"number_of_shards": 2}}
    field = sent["mappings"]["properties"]["hybridr_vector"]
    assert field == {"type": "dense_vector", "dims": 2, "index": True, "similarity": "cosine", **wanted}
    answer = {"docs": {"settings": {"index.uuid": "u"}, "mappings": sent["mappings"]}}
    heard = ELASTIC.translated_answer(ApiRequest("GET", "/docs", None, None), answer)["docs"]
    assert (heard["mappings"], heard["settings"]["index.knn"]) == (mappings, "true")


@pytest.mark.parametrize(
    "mapping",
    [
        UNINDEXED,
        {**UNINDEXED, "index": True, "similarity": "l2_norm"},
        {**UNINDEXED, "index": True, "similarity": "cosine", "index_options": {"type": "flat"}},
        {"type": "text"},
    ],
)
def test_what_others_mapped_stays_as_it_is(mapping: dict[str, Any]) -> None:
    answer = {"docs": {"mappings": {"properties": {"knn": mapping}}}}
    heard = ELASTIC.translated_answer(ApiRequest("GET", "/docs", None, None), answer)
    assert heard["docs"]["mappings"] == answer["docs"]["mappings"]
    assert told(answer["docs"], "/docs", "PUT") == answer["docs"]


def test_a_query_of_vectors_looks_as_widely() -> None:
    query = leg().query(VECTOR, 10, filter={"ids": {"values": ["1"]}}, explain=True, boost=2.0)
    assert told({"query": query})["query"]["knn"] == {
        "field": "hybridr_vector",
        "query_vector": pytest.approx([0.6, 0.8]),
        "k": 10,
        "num_candidates": 20,
        "filter": {"ids": {"values": ["1"]}},
        "_name": "dense",
        "boost": 2.0,
    }
    assert "k" not in Elastic((8, 12, 0)).translated(query)["knn"]


def test_exact_scores_among_ids_look_at_all_of_them() -> None:
    ids = [str(number) for number in range(30)]
    [asked] = told({"query": leg().scoring_query(VECTOR, ids)})["query"].values()
    found = orjson.dumps(asked)
    assert b'"num_candidates":60' in found
    assert b'"k":30' in found


def test_a_script_compares_the_field() -> None:
    scored = told({"query": leg().scoring_clause(VECTOR)})["query"]["script_score"]["script"]["source"]
    assert "cosineSimilarity(params.vector, 'hybridr_vector')" in scored
    other = DenseRetriever(VectorSettings(), 2, "ip").scoring_clause(VECTOR)
    assert "dotProduct(params.vector, 'hybridr_vector')" in str(told({"query": other}))


def test_views_parameters_and_lines_have_their_own_names() -> None:
    view = ApiRequest(
        "POST", "/docs/_search/point_in_time", None, {"keep_alive": "1m", "search_pipeline": "_none"}
    )
    assert ELASTIC.translated_request(view) == ApiRequest("POST", "/docs/_pit", None, {"keep_alive": "1m"})
    assert ELASTIC.translated_answer(view, {"id": "x"})["pit_id"] == "x"
    closed = ELASTIC.translated_request(
        ApiRequest("DELETE", "/_search/point_in_time", {"pit_id": ["x"]}, None)
    )
    assert closed == ApiRequest("DELETE", "/_pit", {"id": "x"}, None)
    mapping = ApiRequest("PUT", "/docs/_mapping", {}, {"cluster_manager_timeout": "1s"})
    assert ELASTIC.translated_request(mapping).params == {"master_timeout": "1s"}
    lines = b'{}\n{"search_pipeline":"_none","query":{"match_all":{}}}\n'
    assert told(lines, "/docs/_msearch") == b'{}\n{"query":{"match_all":{}}}\n'


def test_documents_are_sent_as_they_are() -> None:
    document = {"knn": True, "source": "cosineSimilarity(params.v, doc['x'])"}
    assert told(document, "/docs/_doc/1", "PUT") == document
    assert told(b'{"index":{}}\n{"knn":true}\n', "/docs/_bulk") == b'{"index":{}}\n{"knn":true}\n'


def test_what_it_lacks_is_refused_in_its_name() -> None:
    with pytest.raises(NotFound, match="Elasticsearch has no /_plugins/_ml/models"):
        told(None, "/_plugins/_ml/models?x=1", "GET")
    with pytest.raises(ClusterError, match="no query `hybrid`"):
        told({"query": {"hybrid": {"queries": []}}})
    field = vector_mapping(2, "cosine", VectorSettings(vectors="on_disk"), (3, 2, 0))
    with pytest.raises(ClusterError, match="cannot store vectors in this form"):
        told({"mappings": {"properties": {"v": field}}}, "/docs", "PUT")
    assert "does not work on Elasticsearch yet" in str(ELASTIC.lacking["deploy"])
    assert "deploy" not in Native().lacking
    with pytest.raises(ClusterError, match="--semantic does not work on Elasticsearch yet"):
        ELASTIC.require(None, "semantic")


def refusing() -> Any:
    raise ClusterError("no GET /", status=405)


def nodes_at(path: str) -> Any:
    assert path == "/_nodes/_local/none"
    return NODES


def test_who_answers_is_found_out() -> None:
    ours = {"version": {"distribution": "opensearch", "number": "2.19.1"}}
    whole = {"version": {"number": "8.17.2"}, "tagline": "You Know, for Search"}
    for answer, dialect in ((ours, Native), (whole, Elastic)):
        info, spoken = identify_product(lambda answer=answer: answer, nodes_at, "http://x")
        assert (info, type(spoken)) == (answer, dialect)
    info, spoken = identify_product(refusing, nodes_at, "http://x")
    assert (info["version"]["number"], type(spoken)) == ("8.15.0", Elastic)


def test_too_old_a_release_and_another_product_are_told() -> None:
    old = {"version": {"number": "8.11.4"}, "tagline": "You Know, for Search"}
    with pytest.raises(ClusterError, match=r"Elasticsearch 8\.11\.4 .* needs 8\.12 or newer"):
        identify_product(lambda: old, nodes_at, "http://x")
    with pytest.raises(ClusterError, match="it is not OpenSearch"):
        identify_product(refusing, lambda path: refusing(), "http://x")


def test_the_words_of_a_hit_are_marked_as_far_as_an_index_allows() -> None:
    class Described:
        settings: dict[str, str] = {}

    marked = highlight(Described(), ["text"], "wing")  # type: ignore[arg-type]
    assert told({"highlight": marked})["highlight"]["max_analyzed_offset"] == 100_000


@pytest.mark.parametrize(("version", "added"), [((9, 1, 0), {}), ((9, 2, 0), {WITHOUT_VECTORS: False})])
def test_a_new_index_gives_its_vectors_back(version: Version, added: dict[str, bool]) -> None:
    asked = ApiRequest("PUT", "/docs", {"settings": {"number_of_shards": 2}, "mappings": {}}, None)
    assert Elastic(version).translated_request(asked).body["settings"] == {"number_of_shards": 2, **added}
    mapping = ApiRequest("PUT", "/docs/_mapping", {"properties": {}}, None)
    assert Elastic(version).translated_request(mapping).body == {"properties": {}}


VECTORS = {"properties": {"own": {"type": "dense_vector", "dims": 2, "index": False}}}


@pytest.mark.parametrize(
    ("mappings", "settings", "said"),
    [
        ({"_source": {"mode": "synthetic"}}, {}, "synthetic _source"),
        ({}, {"index.mapping.source.mode": "synthetic"}, "synthetic _source"),
        ({}, {"index.mode": "logsdb"}, "synthetic _source"),
        ({}, {"index.mode": "time_series"}, "synthetic _source"),
        ({}, {"index.mode": "logsdb", "index.mapping.source.mode": "stored"}, None),
        ({}, {"index.mode": "lookup"}, None),
        (VECTORS, {WITHOUT_VECTORS: "true"}, "gives no vectors back"),
        (VECTORS, {}, None),
        ({}, {WITHOUT_VECTORS: "true"}, None),
    ],
)
def test_documents_that_do_not_come_back_as_they_went_are_not_copied(mappings, settings, said):
    info = IndexInfo("docs", settings, mappings, {})
    with pytest.raises(DataError, match=said) if said else nullcontext():
        require_whole_source(info)


def test_a_cluster_that_is_neither() -> None:
    with recording() as stranger:
        stranger.answers = [(200, b'{"version":{"number":"1.0","distribution":"other"}}')]
        with pytest.raises(ClusterError, match="another product"):
            connect(stranger.url)
