"""Clicks that UBI keeps in a real cluster: read whole, and only documents that the index shows are judged."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from hybridr.cluster.connection import Cluster, path_of
from hybridr.errors import ClusterError, NotFound
from hybridr.relevance.clicks import ubi
from hybridr.relevance.clicks.clicks import GONE, Clicks, read_clicks
from support.click_logs import people
from support.corpus import add_alias, bulk, create, drop_indices, put, text_number

INDEX, PART = "t-clicked", "t-clicked-part"
TEXTS = [f"query {number}" for number in range(20)]
SHOWN = [f"d{number}" for number in range(10)]
GOOD = {text: {f"d{number % 3}", f"d{3 + number % 3}"} for number, text in enumerate(TEXTS)}


@pytest.fixture(scope="module")
def log() -> list[dict[str, Any]]:
    return [record for text in TEXTS for record in people(text, SHOWN, sorted(GOOD[text]), 40)]


@pytest.fixture(scope="module")
def index(cluster: Cluster, log: list[dict[str, Any]]) -> Iterator[str]:
    """Documents, all but one of those that were shown, with the number by which a shop knows them."""
    create(cluster, INDEX, {"sku": {"type": "keyword"}, "text": {"type": "text"}})
    add_alias(cluster, INDEX, PART, filter={"term": {"sku": "sku-d1"}})
    named = {one: {"sku": f"sku-{one}", "text": text_number(n)} for n, one in enumerate(SHOWN[:-1])}
    put(cluster, INDEX, named)
    for name, is_event in ((ubi.QUERIES, False), (ubi.EVENTS, True)):
        records = [one for one in log if ("action_name" in one) == is_event]
        bulk(cluster, name, [line for record in records for line in ({"index": {}}, record)])
    yield INDEX
    drop_indices(cluster, f"{INDEX}*,{ubi.QUERIES},{ubi.EVENTS}")


def right(clicks: Clicks) -> int:
    """Count the queries of which exactly the relevant documents were found."""
    found = {text: {doc for doc, grade in clicks.qrels[one].items() if grade} for one, text in clicks.queries}
    return sum(found.get(text) == good for text, good in GOOD.items())


def test_all_pages_are_read_and_what_is_gone_is_not_judged(cluster, index, log, monkeypatch):
    monkeypatch.setattr(ubi, "PAGE_OF_EVENTS", 50)
    found = read_clicks(cluster, index)
    searches = sum("action_name" not in record for record in log)
    assert (found.report.searches, found.report.clicks) == (searches, len(log) - searches)
    assert right(found) >= 17
    assert found.report.left_out[GONE] == len(TEXTS)


def test_a_data_stream_of_clicks_is_read_like_an_index(cluster, index, log, monkeypatch):
    """`serve --ubi` writes into one whose time is `timestamp`; `clicks` and `experiment` refused it."""
    before = read_clicks(cluster, index).report
    names = {False: "t-clicked-searches", True: "t-clicked-events"}
    stream = {"timestamp_field": {"name": "timestamp"}}
    template = {"index_patterns": list(names.values()), "data_stream": stream}
    cluster.request("PUT", "/_index_template/t-clicked", template)
    try:
        for part in (log[: len(log) // 2], log[len(log) // 2 :]):
            for is_event, name in names.items():
                records = [record for record in part if ("action_name" in record) == is_event]
                bulk(cluster, name, [line for record in records for line in ({"create": {}}, record)])
                cluster.request("POST", path_of(name, "_rollover"))
        monkeypatch.setattr(ubi, "FIELDS", dict(zip(names.values(), ubi.FIELDS.values(), strict=True)))
        monkeypatch.setattr(ubi, "QUERIES", names[False])
        monkeypatch.setattr(ubi, "EVENTS", names[True])
        found = read_clicks(cluster, index)
        assert (found.report.searches, found.report.clicks) == (before.searches, before.clicks)
        assert right(found) >= 17
    finally:
        for name in names.values():
            cluster.request("DELETE", path_of("_data_stream", name))
        cluster.request("DELETE", "/_index_template/t-clicked")


@pytest.mark.parametrize("time", ["@timestamp", "timestamp", "when"])
def test_records_are_written_into_a_data_stream_with_its_own_time_field(
    cluster, index_name, monkeypatch, time
):
    """The cluster refused every record without its time field, which only /metrics told; a stream that a
    template announces and nobody made refused them too.
    """
    monkeypatch.setattr(ubi, "FIELDS", {index_name: ["timestamp"]})
    monkeypatch.setattr(ubi, "load_asset", lambda *_: {})
    stream = {"index_patterns": [index_name], "data_stream": {"timestamp_field": {"name": time}}}
    cluster.request("PUT", path_of("_index_template", index_name), stream)
    counts = Counter()

    def opened():
        return ubi.UbiWriter(cluster, INDEX, lambda _, outcome, records: counts.update({outcome: records}))

    try:
        with pytest.raises(ClusterError, match="data streams only"):
            opened()
        cluster.request("PUT", path_of("_data_stream", index_name))
        keeper = opened()
        assert keeper.keep(index_name, [{"query_id": "q"}, {"timestamp": "2026-11-02T00:00:00Z"}])
        keeper.end()
        assert counts == {"written": 2, "refused": 0}
        cluster.refresh(index_name)
        assert cluster.count(index_name, {"term": {time: "2026-11-02"}}) == 1
    finally:
        cluster.request("DELETE", path_of("_data_stream", index_name))
        cluster.request("DELETE", path_of("_index_template", index_name))


def test_an_alias_that_shows_a_part_judges_that_part(cluster, index):
    found = read_clicks(cluster, PART)
    assert {doc for grades in found.qrels.values() for doc in grades} == {"d1"}


def test_documents_are_found_by_the_field_that_an_application_names(cluster, index, log, tmp_path):
    file = tmp_path / "log.jsonl"
    named = [as_shop_writes(record) for record in log]
    file.write_text("\n".join(map(json.dumps, named)) + "\nno JSON\n")
    found = read_clicks(cluster, index, file)
    assert found.qrels == read_clicks(cluster, index).qrels
    assert found.report.left_out["lines that are no searches or events"] == 1


def test_a_name_of_many_documents_hides_no_other(cluster, index_name, monkeypatch):
    """Before, a request gave four documents a name at most, and the names beyond were taken for gone."""
    monkeypatch.setattr(ubi, "NAMED_TOGETHER", 4)
    names = ["a"] * 30 + ["b", "c", "d", "e"]
    mappings = {"properties": {"sku": {"type": "keyword"}}}
    cluster.request("PUT", path_of(index_name), {"mappings": mappings})
    bulk(cluster, index_name, [line for sku in names for line in ({"index": {}}, {"sku": sku})])
    ids = ubi.fetch_ids_by_name(cluster, cluster.index_info(index_name), names, Counter(["sku"]))
    assert sorted(ids) == ["a", "b", "c", "d", "e"]


@pytest.mark.parametrize(
    ("kind", "odd"),
    [
        ("long", ["abc", "9" * 20, "1.5"]),
        ("integer", [str(2**31)]),
        ("short", ["70000", ""]),
        ("unsigned_long", ["-1"]),
    ],
)
def test_a_name_that_a_field_of_numbers_refuses_hides_no_other(cluster, index_name, kind, odd):
    """One such name in a log made the cluster refuse the look-up of all."""
    cluster.request("PUT", path_of(index_name), {"mappings": {"properties": {"sku": {"type": kind}}}})
    bulk(cluster, index_name, [{"index": {"_id": "d1"}}, {"sku": 7}])
    ids = ubi.fetch_ids_by_name(cluster, cluster.index_info(index_name), ["7", *odd], Counter(["sku"]))
    assert ids == {"7": "d1"}


def as_shop_writes(record: dict[str, Any]) -> dict[str, Any]:
    """Name documents by their `sku`, in a field that the mapping has."""
    if "action_name" not in record:
        return {
            **record,
            "query_response_hit_ids": [f"sku-{one}" for one in record["query_response_hit_ids"]],
        }
    document = record["event_attributes"]["object"]["object_id"]
    about = {"object": {"object_id": f"sku-{document}", "object_id_field": "sku"}}
    return {**record, "event_attributes": about}


def test_a_cluster_without_clicks_says_how_they_begin(cluster, index, monkeypatch):
    monkeypatch.setattr(ubi, "FIELDS", {"t-no-such-index": []})
    with pytest.raises(NotFound, match="collects no clicks"):
        read_clicks(cluster, index)
