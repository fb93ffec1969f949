"""The record of an index: damaged ones and those of another version are refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from hybridr.cluster.record import IndexInfo, Record
from hybridr.cluster.record_parts import VERSION, Deployment, Load, Tuned
from hybridr.errors import DataError
from hybridr.records import Windows

WRITTEN: dict[str, Any] = {
    "role": "vectors",
    "source": "docs",
    "source_uuid": "u1",
    "job": "j1",
    "state": "complete",
    "alias": "docs-hybridr",
    "previous": "docs",
    "encoder": "e1",
    "aliases": {"docs-hybridr": "made"},
    "dim": 384,
    "similarity": "cosine",
    "vector_field": "hybridr_vector",
    "fields": ["title", "text"],
    "lexical_fields": ["contents"],
    "max_tokens": None,
    "original": {"refresh_interval": None},
    "engine": "lucene",
    "vectors": "float",
    "compression": None,
    "passages": {"tokens": 128, "overlap": 16, "most": 64},
    "precision": "fp32",
    "backend": "onnx",
    "rejected": 0,
    "refused": [],
    "synced": {"0": 12, "1": 7},
    "history": [{"at": "2026-01-01T00:00:00+00:00", "event": "filled"}],
    "deployment": {"way": "client", "pipeline": "hybridr-docs", "job": "d1"},
    "tuning": {"search": {"depth": 50}, "pipeline": None},
    "version": VERSION,
}


def index(found: Any, **others: Any) -> IndexInfo:
    return IndexInfo("docs-hybridr-1", {}, {"_meta": {**others, "hybridr": found}}, {})


def test_a_record_reads_and_is_written_back_whole() -> None:
    record = index(WRITTEN).record
    assert (record.passages, record.synced) == (Windows(tokens=128, overlap=16, most=64), {0: 12, 1: 7})
    assert record.deployment == Deployment(way="client", pipeline="hybridr-docs", job="d1")
    assert (record.tuning.search, record.to_json()) == ({"depth": 50}, WRITTEN)


def test_a_foreign_index_has_an_empty_record() -> None:
    assert IndexInfo("docs", {}, {}, {}).record == Record()
    for meta in ({}, {"owner": "somebody"}, "a text", None, 3, []):
        record = IndexInfo("docs", {}, {"_meta": meta}, {}).record
        assert (record, record.to_json()) == (Record(), {})


def test_changes_are_checked_and_what_is_not_named_stays() -> None:
    record = index(WRITTEN).record
    changed = record.changed(state="filling", synced=None)
    assert (changed.state, changed.synced, changed.encoder) == ("filling", None, "e1")
    assert changed.to_json().keys() == record.to_json().keys()
    with pytest.raises(DataError, match="has no field 'colour'"):
        record.changed(colour="red")
    with pytest.raises(DataError, match="wrong 'state'"):
        record.changed(state="somehow")


def test_what_others_keep_in_meta_stays() -> None:
    info = index(WRITTEN, owner="somebody")
    assert info.meta_with(Record()) == {"owner": "somebody"}
    written = info.meta_with(info.record.changed(state="removing"))
    assert written == {"owner": "somebody", "hybridr": {**WRITTEN, "state": "removing"}}


def test_a_bare_record_holds_what_load_wrote_and_nothing_else() -> None:
    load = Load(job="l1", state="complete", rejected=2)
    tuning = Tuned(search={"dense_weight": 0.3})
    loaded = index(WRITTEN).record.changed(load=load, text_fields=("text",), language="en", tuning=tuning)
    assert loaded.load_only() == Record(
        role="source", lexical_fields=("contents",), text_fields=("text",), language="en", load=load
    )
    assert index(WRITTEN).record.load_only() == Record()


ODD: list[Any] = [None, 3, -1, "x", "\ud800", [], [None], {}, {"a": {"b": 1}}, True, 1e300, [["x"]]]
ODD += [{"at": 3}, [{"at": 3}], [{"at": "today", "event": None}]]


@pytest.mark.attack(65)
@pytest.mark.parametrize("name", Record.model_fields)
def test_whatever_stands_in_a_record_it_reads_or_is_refused(name: str) -> None:
    refused = [value for value in ODD if not reads({**WRITTEN, name: value})]
    assert {"a": {"b": 1}} in refused or name in ("original", "aliases", "tuning")
    assert not any(reads(value) for value in ODD if not isinstance(value, dict))


def reads(found: Any) -> bool:
    """Whether a record reads; if not, it is refused by name."""
    try:
        record = index(found).record
    except DataError as error:
        return "hybridr's record in 'docs-hybridr-1'" not in error.message
    return all(isinstance(event["at"], str) for event in record.history)
