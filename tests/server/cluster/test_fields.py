"""The choice of text fields on a real node."""

from __future__ import annotations

import pytest

from hybridr import ReindexSettings
from hybridr.cluster.connection import Cluster
from hybridr.cluster.destinations import resolve
from hybridr.cluster.fields import choose_text_fields
from hybridr.doctor.inspection import inspect_index
from hybridr.errors import ClusterError, DataError
from hybridr.indexing.reindexing import plan, reindex, sync
from hybridr.indexing.rollback import rollback
from hybridr.indexing.stages.transfer import export_text
from hybridr.records import silent
from hybridr.relevance.corpus import read_index
from hybridr.status.standing import remove
from support.books import make
from support.corpus import create, put
from support.hashing import HashingEncoder


def test_fields_are_chosen_by_name_or_contents(cluster, books):
    assert choose_text_fields(cluster, cluster.index_info(books)) == (
        "headline",
        "book.body",
        "comments.words",
    )
    assert choose_text_fields(cluster, cluster.index_info(books), ("book.body",)) == ("book.body",)
    with pytest.raises(DataError, match="has no field 'nothing'"):
        choose_text_fields(cluster, cluster.index_info(books), ("nothing",))


def test_a_field_that_is_not_mapped_can_be_named(cluster, index_name):
    documents = [{"title": "a b c", "hidden": {"text": "words in the dark"}}]
    make(cluster, index_name, documents, dynamic="false", properties={"title": {"type": "text"}})
    assert choose_text_fields(cluster, cluster.index_info(index_name), ("hidden.text",)) == ("hidden.text",)
    assert inspect_index(cluster, index_name, fields=("hidden.text",)).lengths.median == 4


ENCODER, QUICK = HashingEncoder(), ReindexSettings(term_table=False)
TEXT = {"type": "text"}


def two_fields(cluster: Cluster, name: str) -> str:
    """`body` is what a choice takes; `note` is shorter, and only named fields are of it."""
    documents = [
        {
            "body": f"engine boat captain noise bridge number {number} and the harbour of town {number}",
            "note": f"remark {number} of the crew",
        }
        for number in range(30)
    ]
    return make(cluster, name, documents, properties={"body": TEXT, "note": TEXT})


def test_inspect_and_reindex_choose_by_the_same_documents(cluster, index_name):
    # `remark` is in few documents: whether it is worth a place depends on which of them are looked at.
    documents = [
        {"body": f"boat {number} lies in the harbour", "remark": "long story " * 12 + str(number)}
        if number % 97 == 0
        else {"body": f"boat {number} lies in the harbour"}
        for number in range(1, 1301)
    ]
    make(cluster, index_name, documents, properties={"body": TEXT, "remark": TEXT})
    info = cluster.index_info(index_name)
    fields = inspect_index(cluster, index_name).text_fields
    assert choose_text_fields(cluster, info) == fields
    assert plan(cluster, index_name, ENCODER, QUICK).record.fields == fields


def test_fields_that_were_named_once_are_taken_again_everywhere(cluster, index_name, tmp_path):
    two_fields(cluster, index_name)
    assert inspect_index(cluster, index_name).text_fields == ("body", "note")
    named = QUICK.model_copy(update={"fields": ("note",)})
    reindex(cluster, index_name, ENCODER, named)
    for name in (index_name, f"{index_name}-hybridr", f"{index_name}-hybridr-1"):
        seen = inspect_index(cluster, name)
        assert seen.text_fields == ("note",)
        reasons = {field.name: field.why for field in seen.fields}
        assert reasons["note"] == f"as in the vectors of '{index_name}-hybridr-1', named then"
        assert choose_text_fields(cluster, cluster.index_info(name)) == ("note",)
    texts = {one.contents for one in read_index(cluster, index_name, (), silent)}
    assert "remark 3 of the crew" in texts
    assert export_text(cluster, index_name, tmp_path / "stage").fields == ("note",)
    again = plan(cluster, index_name, ENCODER, QUICK)
    assert (again.exists, again.record.fields, again.proposal.notes) == (True, ("note",), [])
    other = QUICK.model_copy(update={"vectors": "byte"})
    reindex(cluster, index_name, ENCODER, other)
    second = resolve(cluster, index_name)
    assert second.name == f"{index_name}-hybridr-2"
    assert (second.record.fields, second.record.fields_named) == (("note",), True)
    assert sync(cluster, index_name, ENCODER).copied == 0
    rollback(cluster, index_name)
    rollback(cluster, index_name)
    assert plan(cluster, index_name, ENCODER, QUICK).record.fields == ("note",)
    remove(cluster, index_name)
    assert inspect_index(cluster, index_name).text_fields == ("body", "note")


def test_a_change_of_fields_is_said_in_the_dry_run_and_in_the_run(cluster, index_name, cli, tiny):
    two_fields(cluster, index_name)
    common = ["--encoder", str(tiny), "--no-term-table", "--url", cluster.url]
    line = "other fields than now: note (now body, note)"

    def said(*options: str) -> str:
        return cli.typed(["reindex", index_name, *options, *common]).out

    assert "other fields" not in said()
    assert line in said("--fields", "note", "--dry-run")
    assert line in said("--fields", "note")
    assert "other fields" not in said("--dry-run")
    assert "text from note" in said("--dry-run")
    assert "other fields than now: body, note (now note)" in said("--fields", "body,note", "--dry-run")


def test_in_place_the_fields_are_taken_again_and_a_change_is_refused_by_name(cluster, index_name):
    create(cluster, index_name, {"body": TEXT, "note": TEXT}, {"index.knn": True})
    texts = {
        str(n): {"body": f"engine boat captain noise {n}", "note": f"remark {n} of the crew"}
        for n in range(5)
    }
    put(cluster, index_name, texts)
    within = QUICK.model_copy(update={"in_place": True})
    named = within.model_copy(update={"fields": ("note",)})
    reindex(cluster, index_name, ENCODER, named)
    assert inspect_index(cluster, index_name).text_fields == ("note",)
    assert reindex(cluster, index_name, ENCODER, within).skipped == 5
    with pytest.raises(ClusterError, match=r"other fields than now: body \(now note\)"):
        reindex(cluster, index_name, ENCODER, within.model_copy(update={"fields": ("body",)}))
    remove(cluster, index_name)
    assert inspect_index(cluster, index_name).text_fields == ("body", "note")
