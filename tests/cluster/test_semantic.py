"""Semantic fields as text.

Mappings and documents are written after the products' documentation and source code: neural-search
(`SemanticMappingTransformer` and its test resources), Elasticsearch 8.15 and 9 (`semantic_text`).
"""

from __future__ import annotations

from typing import Any

import pytest

from hybridr.cluster.field_values import text_of
from hybridr.cluster.fields import text_field_candidates
from hybridr.cluster.reading import hit_options, source_document
from hybridr.cluster.record import IndexInfo, parse_index_info
from hybridr.cluster.semantic import (
    embedded_texts,
    embedding_model_id,
    fields_with_models,
    plain_mappings,
    plain_source,
    stored_form,
    with_semantic_fields,
)
from hybridr.cluster.word_fields import is_indexed_text, unsearchable_reason, word_fields

MODEL_PART = {"properties": {name: {"type": "text", "index": False} for name in ("id", "name", "type")}}
VECTOR = {"type": "knn_vector", "dimension": 768, "method": {"name": "hnsw", "space_type": "l2"}}
CHUNKS = {"type": "nested", "properties": {"text": {"type": "text"}, "embedding": VECTOR}}
INFERENCE = {
    "inference_id": "elser",
    "model_settings": {"task_type": "sparse_embedding"},
    "chunks": [{"text": "these are not", "embeddings": {"these": 1.2}}],
}


def described(properties: dict[str, Any]) -> IndexInfo:
    return parse_index_info("docs", {"settings": {"index.uuid": "u"}, "mappings": {"properties": properties}})


@pytest.fixture
def opensearch() -> IndexInfo:
    body = {"type": "semantic", "model_id": "dense", "raw_field_type": "text", "chunking": True}
    body |= {"analyzer": "english", "fields": {"raw": {"type": "keyword"}}}
    key = {"type": "semantic", "model_id": "sparse", "raw_field_type": "keyword"}
    key |= {"sparse_encoding_config": {"prune_type": "max_ratio", "prune_ratio": 0.1}}
    information = {"properties": {"chunks": CHUNKS, "model": MODEL_PART}}
    return described(
        {
            "inner": {"properties": {"body": body, "body_semantic_info": information}},
            "key": {**key, "semantic_info_field_name": "kept"},
            "kept": {"properties": {"embedding": {"type": "rank_features"}, "model": MODEL_PART}},
            "bare": {"type": "semantic", "model_id": "dense"},
            "other_semantic_info": {"type": "text"},
        }
    )


@pytest.fixture
def elasticsearch() -> IndexInfo:
    meaning = {"type": "semantic_text", "inference_id": "e5"}
    usual = {"type": "semantic_text", "meta": {"owner": "us"}, "fields": {"raw": {"type": "keyword"}}}
    return described(
        {
            "body": {"type": "semantic_text", "inference_id": "elser", "index_options": {"dense_vector": {}}},
            "title": {"type": "text", "copy_to": ["body"], "fields": {"meaning": meaning}},
            "usual": usual,
        }
    )


def test_a_field_of_opensearch_is_its_raw_type(opensearch: IndexInfo) -> None:
    assert opensearch.mappings["properties"] == {
        "inner": {
            "properties": {
                "body": {"type": "text", "analyzer": "english", "fields": {"raw": {"type": "keyword"}}}
            }
        },
        "key": {"type": "keyword"},
        "bare": {"type": "text"},
        "other_semantic_info": {"type": "text"},
    }
    assert fields_with_models(opensearch.semantic) == (
        "bare (semantic of model dense), inner.body (semantic of model dense), key (semantic of model sparse)"
    )
    assert text_field_candidates(opensearch) == ["bare", "inner.body", "other_semantic_info"]
    assert is_indexed_text(opensearch, "inner.body")


def test_embeddings_of_opensearch_are_not_read(opensearch: IndexInfo) -> None:
    stored = ["inner.body_semantic_info", "kept", "bare_semantic_info"]
    assert hit_options(None, opensearch)["_source"] == {"includes": [], "excludes": stored}
    body_only = {"includes": ["inner.body"], "excludes": stored}
    assert hit_options(["inner.body"], opensearch)["_source"] == body_only
    assert hit_options((), opensearch)["_source"] is False


def test_a_document_with_embeddings_is_its_texts(opensearch: IndexInfo) -> None:
    embedded = {"chunks": [{"text": "a", "embedding": [1.0]}], "model": {"id": "dense"}}
    inner = {"body": "a", "body_semantic_info": embedded, "other_semantic_info": "theirs"}
    source = {"inner": [inner, {"body": None}], "key": "b", "kept": embedded, "other": {"kept": 1}}
    plain = [{"body": "a", "other_semantic_info": "theirs"}, {"body": None}]
    assert plain_source(source, opensearch.semantic) == {"inner": plain, "key": "b", "other": {"kept": 1}}


def test_a_field_of_elasticsearch_is_text(elasticsearch: IndexInfo) -> None:
    assert elasticsearch.mappings["properties"] == {
        "body": {"type": "text"},
        "title": {"type": "text", "copy_to": ["body"], "fields": {"meaning": {"type": "text"}}},
        "usual": {"type": "text", "meta": {"owner": "us"}, "fields": {"raw": {"type": "keyword"}}},
    }
    models = {name: made.model for name, made in elasticsearch.semantic.items()}
    assert models == {"body": "elser", "title.meaning": "e5", "usual": ".elser-2-elasticsearch"}
    assert elasticsearch.types["title.meaning"] == "text"


def test_elasticsearch_indexes_no_words_of_it(elasticsearch: IndexInfo) -> None:
    assert unsearchable_reason(elasticsearch, "body") == "'body' is not indexed"
    assert word_fields(elasticsearch, ("title", "body")) == ("title",)


@pytest.mark.parametrize(
    ("stored", "text"),
    [
        ({"text": "these are not the droids", "inference": INFERENCE}, "these are not the droids"),
        ({"text": ["these", "are not"], "inference": INFERENCE}, ["these", "are not"]),
        ("these are not the droids", "these are not the droids"),  # since 8.18
        (["these", None, "are not"], ["these", None, "are not"]),
        (None, None),
    ],
)
def test_the_text_of_a_document_is_read_never_its_inference(elasticsearch, stored, text):
    hit = {"_id": "1", "_version": 1, "_seq_no": 0, "_primary_term": 1}
    source = {"title": "droids", "body": stored, "other": {"text": "x", "inference": 1}, "usual": "y"}
    document = source_document({**hit, "_source": source}, elasticsearch)
    assert document.source == source | {"body": text}
    assert "inference" not in text_of(document.source, ("body",))


def test_text_that_was_only_copied_leaves_nothing_behind(elasticsearch: IndexInfo) -> None:
    source = {"title": "droids", "body": {"inference": INFERENCE}}
    assert plain_source(source, elasticsearch.semantic) == {"title": "droids"}


def test_objects_lists_and_dotted_names_are_reached() -> None:
    properties = {"parts": {"properties": {"note": {"type": "semantic_text", "inference_id": "e"}}}}
    note = {"text": "n", "inference": INFERENCE}
    semantic = described(properties).semantic
    assert plain_source({"parts": [{"note": note}, {"x": 1}]}, semantic) == {
        "parts": [{"note": "n"}, {"x": 1}]
    }
    assert plain_source({"parts.note": note}, semantic) == {"parts.note": "n"}


def test_other_mappings_stay_as_they_are() -> None:
    mappings = {"dynamic": "strict", "properties": {"text": {"type": "text"}, "o": {"type": "object"}}}
    assert plain_mappings(mappings) == (mappings, {})
    assert plain_mappings({}) == ({}, {})


def test_names_with_dots_become_objects_where_opensearch_embeds(elasticsearch: IndexInfo) -> None:
    semantic = described({"note": {"type": "semantic", "model_id": "m"}}).semantic
    source = {"a.b": 1, "a": {"c": 2, "d.e": [{"f.g": 3}]}, "x.y": 1, "x": {"y": 2}, ".odd": 4, "z": None}
    assert stored_form(source, semantic) == {
        "a": {"b": 1, "c": 2, "d": {"e": [{"f": {"g": 3}}]}},
        "x": {"y": [1, 2]},
        ".odd": 4,
        "z": None,
    }
    assert stored_form(source, {}) == stored_form(source, elasticsearch.semantic) == source


def test_a_mapping_gets_another_model_and_is_read_again() -> None:
    note = {"type": "semantic", "model_id": "old", "chunking": True, "semantic_info_field_name": "made"}
    inside = {"note": note | {"analyzer": "english"}, "size": {"type": "long"}}
    before = described({"part": {"properties": inside}})
    assert before.semantic["part.note"].options == {"chunking": True, "semantic_info_field_name": "made"}
    parameters = {"part.note": {"model_id": "new"} | dict(before.semantic["part.note"].options)}
    mapped = with_semantic_fields(before.mappings["properties"], parameters)
    expected = note | {"model_id": "new", "raw_field_type": "text", "analyzer": "english"}
    assert mapped["part"]["properties"]["note"] == expected
    after = described(mapped)
    assert (after.semantic["part.note"].model, after.mappings) == ("new", before.mappings)


def test_texts_are_told_with_what_their_model_left() -> None:
    [(name, semantic)] = described(
        {"part": {"properties": {"note": {"type": "semantic", "model_id": "m"}}}}
    ).semantic.items()
    stored = {"model": {"id": "m"}, "embedding": [1.0]}
    source = {"part": [{"note": "a", "note_semantic_info": stored}, {"note": "b"}, {"note": " "}, {"x": 1}]}
    texts = list(embedded_texts(source, name, semantic))
    assert texts == [("a", stored), ("b", {})]
    assert [embedding_model_id(held) for _, held in texts] == ["m", None]
    assert embedding_model_id({"model": {"id": "m"}, "chunks": []}) is None
