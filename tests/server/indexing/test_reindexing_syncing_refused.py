"""What the engine refused in a round of sync: behind until it is in, told, tried again."""

from __future__ import annotations

from typing import Any

import pytest

from hybridr import ReindexSettings
from hybridr.cluster import writing
from hybridr.cluster.connection import Cluster, path_of
from hybridr.cluster.writing import refused_ids, rejects_of
from hybridr.indexing.reindexing import prepare, reindex, sync
from hybridr.indexing.rollback import rollback
from hybridr.indexing.targets import beside
from hybridr.indexing.verification import verify
from hybridr.status.leftovers import rollback as drop_index
from hybridr.status.standing import IndexStatus, status
from support.commands import before_call
from support.corpus import bulk, create, delete, fill_index, put_documents, sources, text_number
from support.hashing import HashingEncoder
from support.in_place_index import IN_PLACE, knn_index


def held(cluster: Cluster, name: str) -> IndexStatus:
    (found,) = status(cluster, name).holdings
    return found


def lag(cluster: Cluster, name: str) -> tuple[int, int, int]:
    found = held(cluster, name).lag
    return found.inserts, found.updates, found.refused


def ok(cluster: Cluster, name: str, encoder: HashingEncoder | None = None) -> bool:
    return verify(cluster, name, encoder or HashingEncoder()).ok


def test_refused_documents_are_behind_until_they_are_in(cluster, index_name, alias):
    """On this machine, and on another, which has no file of them."""
    put_documents(cluster, index_name, [3, 70], suffix=" refused")
    assert (done := sync(cluster, index_name, HashingEncoder(refused=("refused",)))).rejected == 2
    for elsewhere in (False, True):
        if elsewhere:
            rejects_of(cluster.index_info(done.destination)).file.unlink()
        assert lag(cluster, index_name) == (1, 1, 2)
        assert (held(cluster, index_name).current, held(cluster, index_name).documents) == (39, 40)
        assert not ok(cluster, index_name)
        again = sync(cluster, index_name, HashingEncoder(refused=("refused",)))
        assert (again.rejected, again.copied) == (2, 2)
        assert len(rejects_of(cluster.index_info(done.destination)).ids()) == 2
    assert sync(cluster, index_name, HashingEncoder()).rejected == 0
    assert lag(cluster, index_name) == (0, 0, 0)
    assert ok(cluster, index_name)
    assert sources(cluster, alias) == sources(cluster, index_name)
    assert not rejects_of(cluster.index_info(done.destination)).file.exists()
    assert cluster.index_info(done.destination).record.refused == ()


def test_what_the_source_mends_or_deletes_is_no_longer_behind(cluster, index_name, alias):
    put_documents(cluster, index_name, [3, 70, 71], suffix=" refused")
    sync(cluster, index_name, HashingEncoder(refused=("refused",)))
    put_documents(cluster, index_name, [3])
    delete(cluster, index_name, "d70")
    assert lag(cluster, index_name)[2] == 2
    assert sync(cluster, index_name, HashingEncoder(refused=("refused",))).rejected == 1
    assert cluster.index_info(alias).record.refused == ("d71",)


def test_refused_by_a_round_is_not_taken_for_deleted_by_clients(cluster, index_name, alias):
    put_documents(cluster, index_name, [70], suffix=" refused")
    done = sync(cluster, index_name, HashingEncoder(refused=("refused",)))
    rejects_of(cluster.index_info(done.destination)).file.unlink()  # as on another machine
    delete(cluster, alias, "d5")
    back = rollback(cluster, index_name, copy_back=True)["returned"]
    assert (back["deleted"], back["deletes_known"]) == (1, True)
    assert "d70" in sources(cluster, index_name)


def test_more_than_a_record_names_are_read_again(cluster, index_name, alias, monkeypatch):
    monkeypatch.setattr(writing, "MAX_REFUSED", 3)
    put_documents(cluster, index_name, range(60, 66), suffix=" refused")
    before = cluster.index_info(alias).record.synced
    done = sync(cluster, index_name, HashingEncoder(refused=("refused",)))
    rejects_of(cluster.index_info(done.destination)).file.unlink()
    record = cluster.index_info(alias).record
    assert (record.rejected, len(record.refused), record.synced) == (6, 3, before)
    assert lag(cluster, index_name) == (6, 0, 3)
    assert sync(cluster, index_name, HashingEncoder()).rejected == 0
    assert cluster.index_info(alias).record.synced != before
    assert ok(cluster, index_name)


def test_accepted_documents_may_be_missing_until_they_change(cluster, index_name):
    fill_index(cluster, index_name, 10)
    put_documents(cluster, index_name, [3, 4], suffix=" refused")
    done = reindex(
        cluster, index_name, HashingEncoder(refused=("refused",)), ReindexSettings(accept_rejects=True)
    )
    rejects_of(cluster.index_info(done.destination)).file.unlink()
    assert (done.rejected, done.switched, ok(cluster, index_name)) == (2, True, True)
    assert lag(cluster, index_name) == (2, 0, 2)
    assert sync(cluster, index_name, HashingEncoder(refused=("refused",))).rejected == 2
    assert ok(cluster, index_name)
    put_documents(cluster, index_name, [3], suffix=" again refused")
    assert sync(cluster, index_name, HashingEncoder(refused=("refused",))).rejected == 2
    assert not ok(cluster, index_name)
    record = cluster.index_info(done.destination).record
    assert (record.refused, record.accepted) == (("d3", "d4"), ("d4",))
    assert sync(cluster, index_name, HashingEncoder()).rejected == 0
    assert cluster.index_info(done.destination).record.accepted == ()
    assert ok(cluster, index_name)


def test_another_index_of_the_same_name_has_refused_nothing(cluster, index_name):
    fill_index(cluster, index_name, 10)
    put_documents(cluster, index_name, [3], suffix=" refused")
    refusing = HashingEncoder(refused=("refused",))
    done = reindex(cluster, index_name, refusing)
    before = rejects_of(cluster.index_info(done.destination))
    cluster.request("DELETE", path_of(done.destination))
    assert prepare(cluster, index_name, refusing, ReindexSettings()).destination == done.destination
    assert refused_ids(cluster.index_info(done.destination)) == []
    assert before.ids() == ["d3"]
    assert reindex(cluster, index_name, refusing, ReindexSettings(accept_rejects=True)).switched
    file = rejects_of(cluster.index_info(done.destination)).file
    assert file.exists()
    assert drop_index(cluster, index_name, drop=True)["dropped"]
    assert (file.exists(), before.file.exists()) == (False, True)


def test_in_place_too(cluster, index_name):
    knn_index(cluster, index_name, 10)
    reindex(cluster, index_name, HashingEncoder(), IN_PLACE)
    put_documents(cluster, index_name, [3, 70], suffix=" refused")
    for _ in range(2):
        assert sync(cluster, index_name, HashingEncoder(refused=("refused",))).rejected == 2
        rejects_of(cluster.index_info(index_name)).file.unlink()
        assert (held(cluster, index_name).current, held(cluster, index_name).documents) == (9, 11)
        assert not ok(cluster, index_name)
    assert sync(cluster, index_name, HashingEncoder()).renewed == 2
    assert held(cluster, index_name).current == 11
    assert ok(cluster, index_name)


# --- the mapping of the source grows

STRICT = {"dynamic": "strict", "properties": {"title": {"type": "text"}}}


def shop(cluster: Cluster, index: str, mappings: dict[str, Any]) -> None:
    """Make an index of three documents, and an index with their vectors."""
    create(cluster, index, **mappings)
    for number in range(3):
        put(cluster, index, number, title=text_number(number))
    reindex(cluster, index, HashingEncoder())


def put(cluster: Cluster, index: str, number: int, **source: Any) -> None:
    bulk(cluster, index, [{"index": {"_id": str(number)}}, source])


def grow(cluster: Cluster, index: str, **properties: Any) -> None:
    cluster.request("PUT", path_of(index, "_mapping"), {"properties": properties})


def mapped(cluster: Cluster, index: str) -> dict[str, Any]:
    return dict(cluster.index_info(index).mappings["properties"])


@pytest.mark.parametrize("dynamic", ["strict", True])
def test_additions_to_the_mapping_are_carried_over(cluster, index_name, dynamic):
    shop(cluster, index_name, STRICT | {"dynamic": dynamic})
    sort = {"type": "keyword", "normalizer": "lowercase"}
    price = {"properties": {"net": {"type": "scaled_float", "scaling_factor": 100}}}
    grow(cluster, index_name, badge={"type": "keyword"}, price=price)
    grow(cluster, index_name, title={"type": "text", "fields": {"sort": sort}})
    put(cluster, index_name, 4, title="blue hat", badge="2024-01-01", price={"net": 3.5})
    put(cluster, index_name, 1, title="green scarf", badge="new")
    done = sync(cluster, index_name, HashingEncoder())
    assert (done.copied, done.rejected, done.unlike) == (2, 0, ())
    found = mapped(cluster, done.destination)
    wanted = mapped(cluster, index_name)
    assert {name: found[name] for name in wanted} == wanted
    assert ok(cluster, index_name)
    by_badge = {"query": {"term": {"badge": "2024-01-01"}}}
    cluster.refresh(done.destination)
    assert [hit["_id"] for hit in cluster.search(done.destination, by_badge)["hits"]["hits"]] == ["4"]
    assert sources(cluster, done.destination) == sources(cluster, index_name)


def test_an_interrupted_reindex_carries_them_over_too(cluster, index_name):
    shop(cluster, index_name, STRICT)
    grow(cluster, index_name, badge={"type": "keyword"})
    put(cluster, index_name, 4, title="blue hat", badge="new")
    done = reindex(cluster, index_name, HashingEncoder())
    assert (done.rejected, done.switched, done.destination) == (0, True, f"{index_name}-hybridr-1")


def test_a_field_that_is_added_while_the_index_is_verified(cluster, index_name, monkeypatch):
    """A mapping that grows at any moment stops no reindex, and arrives before the alias moves."""

    def grown() -> None:
        grow(cluster, index_name, badge={"type": "keyword"})
        put(cluster, index_name, 4, title="blue hat", badge="new")

    before_call(monkeypatch, beside, "require_verified", grown)
    shop(cluster, index_name, STRICT)
    assert mapped(cluster, f"{index_name}-hybridr")["badge"] == {"type": "keyword"}
    assert ok(cluster, index_name)


def test_how_a_field_is_asked_is_carried_over(cluster, index_name):
    shop(cluster, index_name, STRICT)
    grow(cluster, index_name, title={"type": "text", "search_analyzer": "english", "analyzer": "default"})
    cluster.request("PUT", path_of(index_name, "_mapping"), {"dynamic": False})
    done = sync(cluster, index_name, HashingEncoder())
    assert done.unlike == ()
    assert mapped(cluster, done.destination)["title"] == mapped(cluster, index_name)["title"]
    assert cluster.index_info(done.destination).mappings["dynamic"] == "false"


def test_what_cannot_be_changed_is_told_and_a_reindex_makes_another_index(cluster, index_name, cli):
    """Clients of the copy made `badge` a text there before the source had it."""
    shop(cluster, index_name, {"properties": {"title": {"type": "text"}}})
    first = f"{index_name}-hybridr-1"
    put(cluster, first, 9, title="red shoe", badge="old")
    grow(cluster, index_name, badge={"type": "integer"}, colour={"type": "keyword"})
    put(cluster, index_name, 4, title="blue hat", badge=7, colour="blue")
    done = sync(cluster, index_name, HashingEncoder())
    assert done.unlike == ("badge",)
    assert mapped(cluster, first)["colour"] == {"type": "keyword"}
    assert held(cluster, index_name).unlike == ("badge",)
    problems = verify(cluster, index_name, HashingEncoder()).problems()
    assert any("mapping" in line and "badge" in line for line in problems)
    assert f"badge: mapped otherwise than in {index_name}" in cli(cluster, f"status {index_name}").out
    delete(cluster, first, "9")
    again = reindex(cluster, index_name, HashingEncoder())
    assert (again.destination, again.switched) == (f"{index_name}-hybridr-2", True)
    assert mapped(cluster, again.destination)["badge"] == {"type": "integer"}
    assert sync(cluster, index_name, HashingEncoder()).unlike == ()


def test_other_analysis_is_told(cluster, index_name):
    shop(cluster, index_name, STRICT)
    analysis = {"analysis": {"analyzer": {"mine": {"type": "standard", "stopwords": ["the"]}}}}
    cluster.request("POST", path_of(index_name, "_close"))
    cluster.request("PUT", path_of(index_name, "_settings"), analysis)
    cluster.request("POST", path_of(index_name, "_open"))
    cluster.wait_until_usable(index_name)
    grow(cluster, index_name, body={"type": "text", "analyzer": "mine"}, size={"type": "keyword"})
    put(cluster, index_name, 4, title="blue hat", size="L")
    done = sync(cluster, index_name, HashingEncoder())
    assert (done.copied, done.rejected, done.unlike) == (1, 0, ("body", "index.analysis"))
    again = reindex(cluster, index_name, HashingEncoder())
    assert again.destination == f"{index_name}-hybridr-2"
    assert sync(cluster, index_name, HashingEncoder()).unlike == ()
