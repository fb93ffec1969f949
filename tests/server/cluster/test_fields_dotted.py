"""Names with dots, which the cluster takes for objects, or, with `subobjects: false`, for names."""

from __future__ import annotations

from typing import Any

import pytest

from hybridr import ReindexSettings, Search
from hybridr.cluster.connection import Cluster
from hybridr.cluster.field_values import text_of
from hybridr.indexing.reindexing import reindex, sync
from hybridr.indexing.verification import verify
from hybridr.serving.deploy.ingesting import JOIN_SCRIPT
from support.corpus import create, drop_indices, put, sources, text_number
from support.hashing import HashingEncoder

pytestmark = [pytest.mark.node, pytest.mark.elastic]
FIELD = ReindexSettings(fields=("a.b.c",))
FORMS: dict[str, dict[str, Any]] = {
    "objects": {"a": {"b": {"c": text_number(1)}}},
    "name": {"a.b.c": text_number(2)},
    "name first": {"a.b": {"c": text_number(3)}},
    "name last": {"a": {"b.c": text_number(4)}},
    "both": {"a.b": {"c": text_number(5)}, "a": {"b.c": text_number(6)}},
    "lists": {"a": [{"b": [{"c": [text_number(7)]}]}]},
}


def test_every_form_of_a_text_gets_a_vector(product: Cluster, name: str) -> None:
    """Before, a text below a name with a dot counted as none: words found it, vectors never."""
    create(product, name, {"a": {"properties": {"b": {"properties": {"c": {"type": "text"}}}}}})
    put(product, name, FORMS)
    done = reindex(product, name, HashingEncoder(), FIELD)
    assert (done.encoded, done.without_text) == (len(FORMS), 0)
    assert sources(product, done.destination) == FORMS
    hits = Search(product, name, HashingEncoder(), mode="dense")(text_number(3), 1)
    assert [hit.doc_id for hit in hits] == ["name first"]
    assert verify(product, name, HashingEncoder()).ok


def test_the_ingest_pipeline_joins_the_same_texts(cluster: Cluster) -> None:
    script = {"lang": "painless", "source": JOIN_SCRIPT, "params": {"fields": ["a.b.c"], "text": "joined"}}
    pipeline = {"processors": [{"script": script}]}
    documents = [{"_source": source} for source in FORMS.values()]
    answer = cluster.request("POST", "/_ingest/pipeline/_simulate", {"pipeline": pipeline, "docs": documents})
    joined = [one["doc"]["_source"]["joined"] for one in answer["docs"]]
    assert joined == [text_of(source, ["a.b.c"]) for source in FORMS.values()]


def test_names_with_dots_are_no_objects_where_the_index_says_so(elastic: Cluster) -> None:
    """Before, each dot counted as a field, and such an index was refused: `total_fields.limit`."""
    name = "t-dots"
    fields = {f"a.b.f{number}": {"type": "keyword"} for number in range(400)}
    fields |= {"a": {"type": "keyword"}, "a.text": {"type": "text"}}
    create(elastic, name, fields, subobjects=False)
    put(elastic, name, {f"d{n}": {"a.text": text_number(n), "a": "x", "a.b.f1": "y"} for n in range(6)})
    done = reindex(elastic, name, HashingEncoder(), ReindexSettings(fields=("a.text",)))
    assert (done.encoded, sources(elastic, done.destination)) == (6, sources(elastic, name))
    put(elastic, name, {"d6": {"a.text": text_number(6)}})
    assert sync(elastic, name, HashingEncoder()).copied == 1
    assert verify(elastic, name, HashingEncoder()).ok
    drop_indices(elastic, f"{name}*")
