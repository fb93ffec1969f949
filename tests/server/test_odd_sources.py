"""Reindex of indices that are not plain: strict mappings, odd fields, write indices, data streams."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from hybridr import ReindexSettings, Search, SearchSettings, load_encoder
from hybridr.cluster import writing
from hybridr.cluster.connection import path_of
from hybridr.cluster.default_pipeline import DEFAULT
from hybridr.cluster.reading import read_documents, read_pages
from hybridr.doctor.inspection import inspect_index
from hybridr.errors import ClusterError, DataError, NotFound
from hybridr.indexing.reindexing import reindex, sync
from hybridr.indexing.rollback import rollback
from hybridr.indexing.verification import verify
from hybridr.records import silent
from hybridr.relevance.corpus import read_index
from hybridr.status.standing import remove, status
from support.corpus import (
    bulk,
    create,
    fill_index,
    having,
    put,
    put_documents,
    reindexed,
    sources,
    text_number,
)
from support.hashing import HashingEncoder

TEXT = ReindexSettings(fields=("text",))


@pytest.mark.attack(44)
def test_strict_mapping_with_dates_objects_and_nested_fields(cluster, index_name):
    properties = {
        "text": {"type": "text"},
        "day": {"type": "date", "format": "dd.MM.yyyy||epoch_second"},
        "maker": {"type": "object", "properties": {"name": {"type": "keyword"}}},
        "parts": {"type": "nested", "properties": {"size": {"type": "integer"}, "note": {"type": "text"}}},
        "raw": {"type": "object", "enabled": False},
    }
    create(cluster, index_name, properties, dynamic="strict")
    document = {
        "text": "anchor basket",
        "day": "24.12.2020",
        "maker": {"name": "A"},
        "raw": {"a": [1, {"b": None}]},
        "parts": [{"size": 3, "note": "red"}, {"size": 4, "note": "blue"}],
    }
    put(cluster, index_name, {"1": document, "2": {"day": 1608768000}})
    done = reindex(cluster, index_name, HashingEncoder(), TEXT)
    assert (done.documents, done.encoded, done.without_text, done.switched) == (2, 1, 1, True)
    assert sources(cluster, done.destination) == sources(cluster, index_name)
    nested = {
        "nested": {
            "path": "parts",
            "query": {"bool": {"filter": [{"term": {"parts.size": 3}}, {"match": {"parts.note": "red"}}]}},
        }
    }
    ranged = {"range": {"day": {"gte": "23.12.2020", "lt": "25.12.2020"}}}
    for query, count in ((nested, 1), (ranged, 2)):
        assert cluster.search(done.destination, {"query": query})["hits"]["total"]["value"] == count
    assert cluster.index_info(done.destination).mappings["dynamic"] == "strict"


def test_nested_text_is_encoded_beside_a_field_that_a_query_sees(cluster, index_name):
    nested = {"type": "nested", "properties": {"note": {"type": "text"}}}
    properties = {"text": {"type": "text"}, "parts": nested}
    cluster.request("PUT", path_of(index_name), {"mappings": {"properties": properties}})
    document = {"text": "candle", "parts": [{"note": "anchor"}, {"note": "basket"}]}
    bulk(cluster, index_name, [{"index": {"_id": "1"}}, document])
    with pytest.raises(DataError, match="inside nested objects"):
        reindex(cluster, index_name, HashingEncoder(), ReindexSettings(fields=("parts.note",)))
    done = reindex(cluster, index_name, HashingEncoder(), ReindexSettings(fields=("text", "parts.note")))
    found = cluster.request("GET", path_of(done.destination, "_doc", "1"))["_source"]["hybridr_vector"]
    expected = HashingEncoder().encode_documents(["candle anchor basket"])[0]
    np.testing.assert_allclose(found, expected, atol=1e-6)
    assert cluster.index_info(done.destination).record.lexical_fields == ("text",)


@pytest.mark.attack(40)
def test_half_a_character_stops_nothing(cluster, index_name, minilm):
    """A lone surrogate, which JSON can hold and no tokenizer reads."""
    fill_index(cluster, index_name, 4)
    bulk(cluster, index_name, [{"index": {"_id": "half"}}, {"text": "a \ud800 harbor and \udc00"}])
    encoder = load_encoder(minilm)
    done = reindex(cluster, index_name, encoder, ReindexSettings(fields=("text",), term_table=False))
    assert (done.encoded, done.rejected, done.switched) == (5, 0, True)
    held = [found.source for found in read_documents(cluster, done.destination) if found.doc_id == "half"]
    assert held[0]["text"] == "a \ud800 harbor and \udc00"
    again = encoder.encode_documents(["a \ufffd harbor and \ufffd"])[0]
    np.testing.assert_allclose(held[0]["hybridr_vector"], again, atol=1e-5)
    bulk(cluster, index_name, [{"index": {"_id": "late"}}, {"text": "\udfff"}])
    put_documents(cluster, index_name, [5])
    assert sync(cluster, index_name, encoder).copied == 2
    assert verify(cluster, index_name, encoder).ok
    assert inspect_index(cluster, index_name, token_counter=encoder).sampled == 7
    assert {one.text for one in read_index(cluster, index_name, ("text",), silent)} >= {"\ufffd"}
    assert status(cluster, index_name).holdings[0].current == 7
    assert "half" in {hit.doc_id for hit in Search(cluster, index_name, encoder)("harbor", 9)}


@pytest.mark.attack(46)
def test_a_lost_pipeline_is_named_before_anything_is_made(cluster, index_name):
    fill_index(cluster, index_name, 4)
    cluster.request("PUT", path_of(index_name, "_settings"), {DEFAULT: "of-nobody"})
    with pytest.raises(
        ClusterError, match=f"pipeline of '{index_name}', of-nobody, does not exist"
    ) as caught:
        reindex(cluster, index_name, HashingEncoder(), TEXT)
    assert (
        caught.value.hint
        == f'PUT /{index_name}/_settings {{"{DEFAULT}": "_none"}}, or create the pipeline again'
    )
    with pytest.raises(ClusterError, match="of-nobody is not defined") as caught:
        list(read_pages(cluster, index_name, page=1))  # more than a page is read in a point in time
    assert "set it to _none" in str(caught.value.hint)
    assert [info.name for info in cluster.indices(f"{index_name}*")] == [index_name]


@pytest.mark.attack(65)
def test_one_broken_record_stops_no_other(cluster, index_name, cli):
    reindexed(cluster, index_name, 3, HashingEncoder(), TEXT)
    for number, record in enumerate(({"role": "vectors", "dim": []}, [], 3, {"role": 3}), 7):
        broken = {"mappings": {"_meta": {"hybridr": record}}}
        cluster.request("PUT", path_of(f"{index_name}-hybridr-{number}"), broken)
    assert [one.index for one in status(cluster, index_name).holdings] == [f"{index_name}-hybridr-1"]
    assert Search(cluster, index_name, HashingEncoder())(text_number(1), 3)[0].doc_id == "d1"
    for verb in ("status", "verify", "remove", "sync", "rollback", "search"):
        text = ["text"] if verb == "search" else []
        said = cli(cluster, verb, f"{index_name}-hybridr-7", *text, code=1)
        assert "hybridr's record in" in said.err
    assert cli(cluster, "doctor --json").json["checks"]
    assert reindex(cluster, index_name, HashingEncoder(), TEXT).skipped == 3
    assert remove(cluster, index_name)["removed"]


def test_a_name_with_a_wildcard_stands_for_no_single_index(cluster, index_name):
    for number in (1, 2):
        fill_index(cluster, f"{index_name}-{number}", 3)
    with pytest.raises(ClusterError, match="several indices"):
        reindex(cluster, f"{index_name}-*", HashingEncoder())
    with pytest.raises(NotFound):
        reindex(cluster, f"{index_name}-nothing-*", HashingEncoder())


def test_a_closed_index_with_vectors_is_named_by_every_verb(cluster, index_name):
    """Before, it was not seen at all: `remove` said that there was nothing, `reindex` met it half-way."""
    reindexed(cluster, index_name, 10)
    made, other = f"{index_name}-hybridr-1", HashingEncoder(salt="other")
    before = cluster.request("GET", f"/{index_name}*", None, {"expand_wildcards": "all"})
    cluster.request("POST", path_of(made, "_close"))
    verbs: list[Callable[[], Any]] = [
        lambda: reindex(cluster, index_name, other, ReindexSettings()),
        lambda: sync(cluster, index_name, HashingEncoder()),
        lambda: Search(cluster, index_name, HashingEncoder()),
        lambda: verify(cluster, index_name, HashingEncoder()),
        lambda: status(cluster, index_name),
        lambda: rollback(cluster, index_name),
        lambda: rollback(cluster, index_name, dry_run=True),
        lambda: remove(cluster, index_name),
        lambda: remove(cluster, index_name, dry_run=True),
    ]
    for verb in verbs:
        with pytest.raises(ClusterError, match=f"index '{made}' is closed") as caught:
            verb()
        assert caught.value.hint == f"open it: POST /{made}/_open"
    cluster.request("POST", path_of(made, "_open"))
    cluster.wait_until_usable(made)
    after = cluster.request("GET", f"/{index_name}*", None, {"expand_wildcards": "all"})
    assert {name: info["mappings"] for name, info in after.items()} == {
        name: info["mappings"] for name, info in before.items()
    }
    assert reindex(cluster, index_name, other).switched
    cluster.request("POST", path_of(made, "_close"))
    assert Search(cluster, index_name, other)("anchor", 3), "it is not asked for hits"
    with pytest.raises(ClusterError, match="is closed"):
        sync(cluster, index_name, other)
    cluster.request("DELETE", path_of(made))


def test_a_blocked_index_of_somebody_else_stops_nothing(cluster, index_name):
    """Whoever asks for all aliases is refused then."""
    other, block = f"{index_name}other", "index.blocks.metadata"
    create(cluster, other)
    with having(cluster, {block: True}, other):
        reindexed(cluster, index_name, 3)
        reindex(cluster, index_name, HashingEncoder(salt="other"))
        remove(cluster, index_name)


def test_an_index_of_somebody_else_keeps_its_name(cluster, index_name):
    fill_index(cluster, index_name, 5)
    fill_index(cluster, f"{index_name}-hybridr-1", 3)
    done = reindex(cluster, index_name, HashingEncoder())
    assert done.destination == f"{index_name}-hybridr-2"
    assert cluster.count(f"{index_name}-hybridr-1") == 3


def test_documents_larger_than_a_bulk_request_go_alone(cluster, index_name, monkeypatch):
    monkeypatch.setattr(writing, "BULK_BYTES", 10_000)
    fill_index(cluster, index_name, 10)
    cluster.request("PUT", path_of(index_name, "_doc", "large"), {"text": "anchor " * 300_000})
    done = reindex(cluster, index_name, HashingEncoder(), ReindexSettings(fields=("text",)))
    assert (done.documents, done.rejected) == (11, 0)
    assert sources(cluster, done.destination) == sources(cluster, index_name)


@pytest.mark.attack(43)
def test_a_document_too_long_to_mark_words_in_stops_no_search(cluster, index_name):
    settings = {"number_of_replicas": 0, "highlight.max_analyzed_offset": 50}
    fill_index(cluster, index_name, 5, settings={"index": settings})
    long = {"text": "anchor basket " * 80_000}
    bulk(cluster, index_name, [{"index": {"_id": "long"}}, long])
    reindex(cluster, index_name, HashingEncoder(), TEXT)
    for given in ({}, {"fusion": "pipeline"}):
        hits = Search(cluster, index_name, HashingEncoder(), settings=SearchSettings(**given))(
            "anchor basket"
        )
        shown = {hit.doc_id: hit.text for hit in hits}
        assert len(shown) == 6
        assert shown["long"].startswith("<em>anchor</em> <em>basket</em>")
        assert max(map(len, shown.values())) < 3_000
