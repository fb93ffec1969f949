"""An owner's final pipeline runs once on all that clients write, and never on what hybridr writes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from hybridr import ReindexSettings
from hybridr.cluster.connection import Cluster, path_of
from hybridr.errors import ClusterError, HybridrError, NotFound
from hybridr.indexing import final_pipelines
from hybridr.indexing.reindexing import plan, reindex, sync
from hybridr.status.leftovers import rollback
from hybridr.status.standing import remove, status
from support.corpus import fill_index, put_documents, sources, update
from support.hashing import HashingEncoder

COUNTING = {"script": {"source": "ctx.runs = ctx.containsKey('runs') ? ctx.runs + 1 : 1"}}
OTHER = ReindexSettings(m=8)  # which makes another index


def pipelines(cluster: Cluster, name: str) -> set[str]:
    with suppress(NotFound):
        return set(cluster.request("GET", path_of("_ingest", "pipeline", f"*{name}*")))
    return set()


def final(cluster: Cluster, index: str) -> str | None:
    return cluster.index_info(index).settings.get("index.final_pipeline")


def put_final(cluster: Cluster, index: str, pipeline: str | None) -> None:
    cluster.request("PUT", path_of(index, "_settings"), {"index": {"final_pipeline": pipeline}})


def counting(cluster: Cluster, name: str) -> str:
    """Store a pipeline that counts how often it ran on a document."""
    cluster.request("PUT", path_of("_ingest", "pipeline", name), {"processors": [COUNTING]})
    return name


def runs(cluster: Cluster, index: str) -> dict[str, int]:
    """Give how often the pipeline ran on each document on which it ran."""
    return {doc_id: held["runs"] for doc_id, held in sources(cluster, index).items() if "runs" in held}


@pytest.fixture
def source(cluster: Cluster, index_name: str) -> Iterator[str]:
    """Give an index with 12 documents, on which its final pipeline did not run yet."""
    fill_index(cluster, index_name, 12)
    put_final(cluster, index_name, counting(cluster, f"{index_name}-owners"))
    yield index_name
    for info in cluster.indices(f"{index_name}*"):
        put_final(cluster, info.name, None)
        cluster.request("DELETE", path_of(info.name))
    for pipeline in pipelines(cluster, index_name):
        cluster.request("DELETE", path_of("_ingest", "pipeline", pipeline))


def test_it_runs_on_clients_writes_during_a_round_and_on_no_copy(cluster, source, sent):
    done = reindex(cluster, source, HashingEncoder())
    alias, wrapper = str(done.alias), f"hybridr-{done.destination}-final"
    assert final(cluster, alias) == wrapper
    assert runs(cluster, alias) == {}
    written = iter(range(20, 40))

    def write(_: object) -> None:
        put_documents(cluster, alias, [next(written)])
        assert final(cluster, alias) == wrapper

    put_documents(cluster, source, [3, 15], suffix=" by the source")
    put_documents(cluster, alias, [4, 16], suffix=" by a client")
    update(cluster, alias, "d5", price=9.0)
    before = runs(cluster, alias)
    assert before == {"d4": 1, "d16": 1, "d5": 1}
    sent.clear()
    assert sync(cluster, source, HashingEncoder(before=write)).copied == 2
    assert not [path for method, path in sent if method == "PUT" and path.endswith("_settings")]
    added = {f"d{number}": 1 for number in range(20, next(written))}
    assert len(added) >= 2, "as it copied, and as it gave clients' documents their vector"
    assert runs(cluster, alias) == before | added | {"d3": 1, "d15": 1}, "the source's own ran there"
    for _ in range(2):
        sync(cluster, source, HashingEncoder())
    assert runs(cluster, alias) == before | added | {"d3": 1, "d15": 1}

    # The same command again, which takes the same index.
    put_documents(cluster, source, [6], suffix=" by the source")
    sent.clear()
    again = reindex(cluster, source, HashingEncoder(before=write))
    assert again.destination == done.destination
    assert not [path for method, path in sent if method == "PUT" and path.endswith("_settings")]
    assert runs(cluster, alias)["d6"] == 1
    assert set(runs(cluster, alias).values()) == {1}


def test_a_second_index_carries_what_clients_wrote_as_it_is(cluster, source):
    first = reindex(cluster, source, HashingEncoder())
    alias = str(first.alias)
    put_documents(cluster, alias, [4, 16], suffix=" by a client")
    written = iter(range(20, 40))
    second = reindex(
        cluster,
        source,
        HashingEncoder(before=lambda _: put_documents(cluster, alias, [next(written)])),
        OTHER,
    )
    assert second.destination != first.destination
    assert final(cluster, alias) == f"hybridr-{second.destination}-final"
    sync(cluster, source, HashingEncoder())
    there = runs(cluster, alias)
    assert {"d4", "d16", "d20"} <= there.keys()
    assert set(there.values()) == {1}
    assert pipelines(cluster, source) == {
        f"{source}-owners",
        *(f"hybridr-{done.destination}-final" for done in (first, second)),
    }

    # What goes back to the source and to the older index is not touched there, but by the source's own.
    put_documents(cluster, alias, [17], suffix=" by a client")
    put_final(cluster, source, None)
    done = rollback(cluster, source, copy_back=True, drop=True)
    assert (done["to"], done["dropped"]) == (first.destination, True)
    assert [request["path"] for request in done["requests"]] == [
        f"/_ingest/pipeline/hybridr-{second.destination}-final"
    ]
    assert runs(cluster, source)["d17"] == runs(cluster, alias)["d17"] == 1
    sync(cluster, source, HashingEncoder())
    assert set(runs(cluster, alias).values()) == {1}
    put_documents(cluster, alias, [18])
    assert runs(cluster, alias)["d18"] == 1
    assert pipelines(cluster, source) == {f"{source}-owners", f"hybridr-{first.destination}-final"}

    removed = remove(cluster, source, copy_back=True)
    assert [request["path"] for request in removed["requests"]] == [
        f"/_ingest/pipeline/hybridr-{first.destination}-final"
    ]
    assert pipelines(cluster, source) == {f"{source}-owners"}
    assert set(runs(cluster, source).values()) == {1}


def test_the_plan_shows_it_and_a_killed_run_leaves_nothing(cluster, source, monkeypatch):
    todo = plan(cluster, source, HashingEncoder(), ReindexSettings())
    first, wrapper = todo.requests[0], f"hybridr-{source}-hybridr-1-final"
    assert first["path"] == f"/_ingest/pipeline/{wrapper}"
    assert first["body"]["processors"][0]["pipeline"]["name"] == f"{source}-owners"
    assert todo.details["after"]["final_pipeline"] == wrapper
    assert wrapper not in pipelines(cluster, source)

    request = Cluster.request

    def failing(self: Cluster, method: str, path: str, *rest: Any, **named: Any) -> Any:
        if method == "PUT" and path == path_of(f"{source}-hybridr-1"):
            raise ClusterError("no such right")
        return request(self, method, path, *rest, **named)

    # Killed after the pipeline was stored, before the index was made.
    with monkeypatch.context() as patch:
        patch.setattr(Cluster, "request", failing)
        patch.setattr(final_pipelines, "delete_requests", lambda *_: [])
        with pytest.raises(ClusterError, match="no such right"):
            reindex(cluster, source, HashingEncoder())
    assert wrapper in pipelines(cluster, source)
    assert [request["path"] for request in remove(cluster, source)["requests"]] == [
        f"/_ingest/pipeline/{wrapper}"
    ]
    assert wrapper not in pipelines(cluster, source)

    # Refused by the cluster, not killed: what was stored goes at once.
    with monkeypatch.context() as patch:
        patch.setattr(Cluster, "request", failing)
        with pytest.raises(ClusterError, match="no such right"):
            reindex(cluster, source, HashingEncoder())
    assert wrapper not in pipelines(cluster, source)

    # Killed during the fill, and in a round: the same command goes on, and clients run the pipeline.
    def fail(_: object) -> None:
        raise HybridrError("killed")

    with pytest.raises(HybridrError, match="killed"):
        reindex(cluster, source, HashingEncoder(before=fail))
    alias = str(reindex(cluster, source, HashingEncoder()).alias)
    assert runs(cluster, alias) == {}
    put_documents(cluster, source, [3], suffix=" later")
    with pytest.raises(HybridrError, match="killed"):
        sync(cluster, source, HashingEncoder(before=fail))
    assert final(cluster, alias) == wrapper
    put_documents(cluster, alias, [20])
    assert runs(cluster, alias) == {"d20": 1}


def test_a_pipeline_that_its_owner_sets_later_is_kept(cluster, source, cli):
    done = reindex(cluster, source, HashingEncoder())
    alias, wrapper = str(done.alias), f"hybridr-{done.destination}-final"
    assert status(cluster, source).final_pipelines == {}
    assert "final pipeline" not in cli(cluster, f"status {source}").out
    own = counting(cluster, f"{source}-own")
    put_final(cluster, alias, own)
    put_documents(cluster, alias, [20])
    put_documents(cluster, source, [3], suffix=" later")
    sync(cluster, source, HashingEncoder())
    assert final(cluster, alias) == wrapper
    calls = cluster.request("GET", path_of("_ingest", "pipeline", wrapper))[wrapper]["processors"]
    assert calls[0]["pipeline"]["name"] == own
    put_documents(cluster, alias, [21])
    sync(cluster, source, HashingEncoder())
    assert runs(cluster, alias) == {"d3": 1, "d20": 1, "d21": 1}
    (line,) = status(cluster, source).final_pipelines.values()
    assert f"the final pipeline {own}, in '{source}' {source}-owners" in line
    assert f"{done.destination}: what clients write there runs" in cli(cluster, f"status {source}").out

    remarks = plan(cluster, source, HashingEncoder(), OTHER).remarks
    assert [remark for remark in remarks if remark.endswith(": index.final_pipeline")] == remarks[:1], remarks

    # By the same command as by a round.
    later = counting(cluster, f"{source}-later")
    put_final(cluster, alias, later)
    requests = plan(cluster, source, HashingEncoder(), ReindexSettings()).requests
    assert [request["path"] for request in requests[:2]] == [
        f"/_ingest/pipeline/{wrapper}",
        f"/{done.destination}/_settings",
    ]
    put_documents(cluster, source, [4], suffix=" later")
    reindex(cluster, source, HashingEncoder())
    assert final(cluster, alias) == wrapper
    assert runs(cluster, alias)["d4"] == 1

    # A wrapper that is gone is stored again; one that its owner took off stays off.
    cluster.request("DELETE", path_of("_ingest", "pipeline", wrapper))
    put_documents(cluster, source, [5], suffix=" later")
    assert sync(cluster, source, HashingEncoder()).rejected == 0
    put_documents(cluster, alias, [22])
    assert runs(cluster, alias)["d22"] == 1
    put_final(cluster, alias, None)
    sync(cluster, source, HashingEncoder())
    assert final(cluster, alias) is None
    remove(cluster, source, discard=True)
    assert pipelines(cluster, source) == {f"{source}-owners", own, later}


@pytest.mark.elastic
def test_a_node_without_conditions_refuses_before_anything_is_made(elastic, index_name):
    """The core of Elasticsearch has neither processors nor scripts."""
    elastic.request("PUT", path_of("_ingest", "pipeline", f"{index_name}-empty"), {"processors": []})
    settings = {"number_of_replicas": 0, "index.final_pipeline": f"{index_name}-empty"}
    fill_index(elastic, index_name, 3, settings=settings)
    encoder = HashingEncoder()
    with pytest.raises(ClusterError) as refused:
        reindex(elastic, index_name, encoder)
    assert "ingest-common and lang-painless" in str(refused.value.hint)
    assert not encoder.encoded
    assert not elastic.indices(f"{index_name}-hybridr-*")
    elastic.request("DELETE", path_of(index_name))
    elastic.request("DELETE", path_of("_ingest", "pipeline", f"{index_name}-empty"))


def test_a_pipeline_of_its_name_that_is_somebody_elses_is_left_alone(cluster, source):
    wrapper = counting(cluster, f"hybridr-{source}-hybridr-1-final")
    with pytest.raises(ClusterError, match="that is not hybridr's"):
        reindex(cluster, source, HashingEncoder())
    assert not cluster.indices(f"{source}-hybridr-*")
    put_final(cluster, source, None)
    done = reindex(cluster, source, HashingEncoder())
    put_final(cluster, done.destination, wrapper)
    with pytest.raises(ClusterError, match="that is not hybridr's"):
        sync(cluster, source, HashingEncoder())
    remove(cluster, source, discard=True)
    assert wrapper in pipelines(cluster, source)
