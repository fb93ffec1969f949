"""The estimate of a dry run on a real node: what it reads of an index, and that it writes nothing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from hybridr.cluster.connection import Cluster, path_of
from hybridr.doctor import forecasting
from hybridr.doctor.forecasting import PROBED_QUERIES, START_S, estimated_plan
from hybridr.encoders.opening import load_encoder
from hybridr.errors import AccessDenied, DataError
from hybridr.indexing.reindexing import reindex
from hybridr.indexing.settings import ReindexSettings
from hybridr.indexing.terms import storage
from hybridr.relevance.answering import calibrate, unanswerable_queries
from hybridr.status.standing import remove
from support.corpus import bulk, drop_indices, fill_index, put
from support.hashing import HashingEncoder

TABLE_S = 0.05
INDEX = "t-forecast"


@pytest.fixture(scope="module")
def texts(cluster: Cluster) -> Iterator[Cluster]:
    """A cluster with an index of 60 documents and one of none that has text."""
    fill_index(cluster, INDEX, 60)
    cluster.request(
        "PUT", path_of(f"{INDEX}-empty"), {"mappings": {"properties": {"text": {"type": "text"}}}}
    )
    cluster.request("POST", path_of(f"{INDEX}-empty", "_doc"), {"text": "", "price": 1}, {"refresh": "true"})
    yield cluster
    drop_indices(cluster, f"{INDEX}*")


def test_a_run_that_goes_on_takes_what_the_index_lacks(cluster, index_name, monkeypatch):
    monkeypatch.setattr(forecasting, "encoding_speed", lambda *_: 10.0)
    monkeypatch.setattr(forecasting, "table_s_per_document", lambda *_: TABLE_S)
    monkeypatch.setattr(forecasting, "calibration_s", lambda *_: 7.0)
    monkeypatch.setattr(storage, "MIN_TERMS", 1)
    fill_index(cluster, index_name, 60)
    told = ReindexSettings(term_table=False)

    def seconds(settings: ReindexSettings) -> float:
        found = estimated_plan(cluster, index_name, HashingEncoder(), settings).seconds
        assert found is not None
        return found

    fresh = seconds(told)
    assert fresh == pytest.approx(START_S + 6 + 6 + 6 + 7, rel=0.01), (
        "sixty are encoded, and again to verify and to calibrate"
    )
    assert seconds(ReindexSettings()) == pytest.approx(fresh + 60 * TABLE_S, abs=2e-3), "it listens"
    assert seconds(ReindexSettings(term_table=False, max_docs_per_second=1)) == pytest.approx(
        START_S + 60 + 6 + 6 + 7, rel=0.01
    ), "documents, those that are verified, and the calibration"
    source = index_name
    info = cluster.index_info(reindex(cluster, source, HashingEncoder(), told).destination)
    written = [{"delete": {"_id": f"d{number}"}} for number in range(30)]
    bulk(cluster, info.name, written)
    half = fresh - 3
    assert seconds(told) == pytest.approx(half, rel=0.1)
    again = seconds(ReindexSettings())
    assert again == pytest.approx(half + 60 * TABLE_S + 6, rel=0.1), "the table needs a pass of its own"
    monkeypatch.setattr(forecasting, "MAX_TOKENS", 30)  # a text counts as one where none are counted
    few = seconds(ReindexSettings())
    assert few == pytest.approx(half + 30 * TABLE_S + 3, rel=0.1), "which ends after so many tokens"
    reindex(cluster, source, HashingEncoder())
    deleted = 3  # seconds of those that a client deleted there, which stay deleted
    assert seconds(ReindexSettings()) < START_S + 6 + 6 + 7 + deleted + 0.1, "the table is there"


def test_an_index_without_text_is_refused(texts):
    with pytest.raises(DataError, match="text"):
        estimated_plan(texts, f"{INDEX}-empty", HashingEncoder(), ReindexSettings())


def test_what_follows_the_encoding_is_measured_on_the_index(texts, minilm):
    """The stages of the estimate are those of the run by name, and nothing is left behind."""
    before = texts.index_info(INDEX)
    todo = estimated_plan(texts, INDEX, load_encoder(minilm), ReindexSettings())
    assert todo.seconds == pytest.approx(sum(todo.stages.values()), abs=0.01)
    assert todo.stages["term table"] > 0
    assert todo.stages["calibrate"] > 0
    assert todo.to_json()["stages"] == todo.stages
    assert texts.index_info(INDEX) == before
    assert texts.request("GET", "/_search/point_in_time/_all")["pits"] == []
    seen: set[str] = set()
    encoder = load_encoder(minilm)
    done = reindex(texts, INDEX, encoder, progress=lambda stage, *_: seen.add(stage))
    calibrate(texts, done.destination, encoder, progress=lambda stage, *_: seen.add(stage))
    remove(texts, INDEX)
    assert todo.stages.keys() - {"start and switch"} <= seen


def test_the_probe_of_a_calibration_fits_into_the_clauses_that_a_cluster_takes(cluster, index_name):
    """Each word of a query has twenty near words, and each of those is asked in each field."""
    fields = [f"part{number}" for number in range(8)]
    mappings = {"properties": {name: {"type": "text"} for name in fields}}
    cluster.request("PUT", path_of(index_name), {"mappings": mappings})
    put(
        cluster,
        index_name,
        {
            str(number): dict.fromkeys(fields, query)
            for number, query in enumerate(unanswerable_queries(PROBED_QUERIES))
        },
    )
    todo = estimated_plan(cluster, index_name, HashingEncoder(), ReindexSettings(fields=tuple(fields)))
    assert todo.stages["calibrate"] > 0


def test_what_may_not_be_asked_is_left_out_of_the_estimate(monkeypatch):
    def refused() -> float:
        raise AccessDenied("no")

    assert forecasting.seconds_or_zero(refused) == 0.0
