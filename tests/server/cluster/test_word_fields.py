"""Texts whose words an application searches elsewhere, on real nodes of both products."""

from __future__ import annotations

from typing import Any

import pytest

from hybridr import ReindexSettings, Search
from hybridr.cluster.connection import Cluster
from hybridr.cluster.destinations import resolve
from hybridr.doctor.inspection import inspect_index
from hybridr.errors import DataError, HybridrError
from hybridr.indexing.reindexing import plan, reindex
from hybridr.indexing.verification import verify
from hybridr.search.settings import SearchSettings
from support.books import make
from support.corpus import create, put
from support.hashing import HashingEncoder

pytestmark = [pytest.mark.node, pytest.mark.elastic]
ENCODER = HashingEncoder()
TEXT = {"type": "text"}
WORDS = "pump valve seal oil steam hall bearing filter motor shaft".split()


def text(number: int) -> str:
    return " ".join(WORDS[(number * 7 + place) % 10] for place in range(5)) + f" of machine {number}"


def hidden(*targets: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "index": False, **({"copy_to": list(targets)} if targets else {}), **more}


def filled(cluster: Cluster, name: str, properties: dict[str, Any], documents: Any = None) -> str:
    if documents is None:
        fields = [field for field in properties if field in ("title", "body", "name", "mo")]
        documents = [
            {field: f"{field} {number if field == 'title' else text(number)}" for field in fields}
            for number in range(20)
        ]
    return make(cluster, name, documents, properties=properties)


KINDS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "several": (
        {
            "title": hidden("titles", "all"),
            "body": hidden("all"),
            "titles": TEXT,
            "all": TEXT,
            "words": {"type": "alias", "path": "all"},
        },
        ("all",),
    ),
    "below": ({"body": hidden(fields={"words": TEXT})}, ("body.words",)),
    "keyword": ({"name": {"type": "keyword", "fields": {"text": TEXT}}}, ("name.text",)),
    "stored": ({"title": TEXT, "body": hidden("all", store=True), "all": TEXT}, ("title", "all")),
    "kinds of OpenSearch": (
        {"body": {"type": "search_as_you_type"}, "mo": {"type": "match_only_text"}},
        ("body", "mo"),
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_words_are_searched_where_the_application_can(cluster, index_name, kind):
    properties, searched = KINDS[kind]
    filled(cluster, index_name, properties)
    seen = inspect_index(cluster, index_name)
    assert seen.lexical_fields == searched
    assert {field.name for field in seen.fields if field.searched} == set(searched)
    settings = ReindexSettings(term_table=False)
    dry = plan(cluster, index_name, ENCODER, settings)
    assert (dry.record.fields, dry.record.lexical_fields) == (seen.text_fields, searched)
    assert reindex(cluster, index_name, ENCODER, settings).documents == 20
    for again in (None, ReindexSettings(term_table=False, vectors="byte")):  # another generation
        if again:
            reindex(cluster, index_name, ENCODER, again)
        record = resolve(cluster, index_name).record
        assert (record.fields, record.lexical_fields) == (seen.text_fields, searched)
        for mode in ("lexical", "hybrid"):
            hits = Search(cluster, index_name, ENCODER, mode=mode)("seal machine", 5)
            assert [bool(hit.text) for hit in hits] == [True] * 5
        assert verify(cluster, index_name, ENCODER).ok


HOPELESS: dict[str, tuple[dict[str, Any], Any, tuple[str, ...]]] = {
    "nowhere": ({"body": hidden()}, None, ("body",)),
    "disabled object": (
        {"raw": {"type": "object", "enabled": False}},
        [{"raw": {"text": text(number)}} for number in range(5)],
        ("raw.text",),
    ),
    "whole values": (
        {"body": {"type": "keyword"}},
        [{"body": f"{text(number)} " * 5} for number in range(5)],
        ("body",),
    ),
}


@pytest.mark.parametrize(("kind", "in_place"), [*((kind, False) for kind in HOPELESS), ("nowhere", True)])
def test_what_no_query_finds_is_refused_before_the_first_write(cluster, index_name, kind, in_place):
    properties, documents, fields = HOPELESS[kind]
    index = {"number_of_replicas": 0, **({"knn": True} if in_place else {})}
    create(cluster, index_name, properties, index, dynamic="false")
    sources = documents or [{"body": text(number)} for number in range(5)]
    put(cluster, index_name, {str(number): source for number, source in enumerate(sources)})
    before = cluster.index_info(index_name)
    settings = ReindexSettings(fields=fields, in_place=in_place)
    for attempt in (plan, reindex):
        with pytest.raises(HybridrError, match="words cannot be searched in") as caught:
            attempt(cluster, index_name, ENCODER, settings)
        assert "lexical_fields" in str(caught.value.hint)
    assert [info.name for info in cluster.indices(f"{index_name}*")] == [index_name]
    assert cluster.index_info(index_name).mappings == before.mappings
    seen = inspect_index(cluster, index_name, fields=fields)
    assert any("lexical_fields" in line for line in seen.advice) == (not seen.lexical_fields)


def test_the_setting_helps_where_the_mapping_does_not_tell(product, name):
    # An application that joins its texts itself: no `copy_to` leads to the field that it searches.
    documents = [{"body": text(number), "joined": text(number)} for number in range(20)]
    filled(product, name, {"body": hidden(), "joined": TEXT}, documents)
    with pytest.raises(DataError, match="words cannot be searched in 'body'"):
        reindex(product, name, ENCODER, ReindexSettings(fields=("body",)))
    settings = ReindexSettings(fields=("body",), lexical_fields=("joined^2",), term_table=False)
    done = reindex(product, name, ENCODER, settings)
    assert "words are searched in joined" in done.notes
    assert Search(product, name, ENCODER, mode="lexical")("seal", 3)
    # A later run without the settings searches the same texts and words.
    later = ReindexSettings(vectors="byte", term_table=False)
    reindex(product, name, ENCODER, later)
    record = resolve(product, name).record
    assert (record.fields, record.fields_named, record.lexical_fields) == (("body",), True, ("joined",))
    words = SearchSettings(lexical_fields=("joined",))
    assert Search(product, name, ENCODER, mode="lexical", settings=words)("seal", 3)
