"""`hybridr plan` on a real node: what it reads of an index, and that it writes nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import hybridr_cli
from hybridr.cluster.connection import Cluster, path_of
from hybridr.encoding.opening import load_encoder
from hybridr.errors import AccessDenied, ClusterError, DataError
from hybridr.forecasting import forecasting
from hybridr.forecasting.forecasting import forecast, preview
from hybridr.forecasting.probes import PROBED_QUERIES
from hybridr.forecasting.settings import ForecastSettings
from hybridr.forecasting.times import START_S
from hybridr.reindexing.reindexing import reindex
from hybridr.reindexing.settings import ReindexSettings
from hybridr.standing.standing import remove
from hybridr.tuning.answering import calibrate
from hybridr.tuning.foreign_queries import foreign_queries
from hybridr.vocabulary import term_table
from support.corpus import bulk, fill_index
from support.hashing import HashingEncoder

TABLE_S = 0.05
pytestmark = pytest.mark.node
INDEX = "t-plan"


@pytest.fixture(scope="module")
def texts(cluster: Cluster) -> Iterator[Cluster]:
    """A cluster with an index of 60 documents and one of none that has text."""
    fill_index(cluster, INDEX, 60)
    cluster.request(
        "PUT", path_of(f"{INDEX}-empty"), {"mappings": {"properties": {"text": {"type": "text"}}}}
    )
    cluster.request("POST", path_of(f"{INDEX}-empty", "_doc"), {"text": "", "price": 1}, {"refresh": "true"})
    yield cluster
    for info in cluster.indices(f"{INDEX}*"):
        cluster.request("DELETE", path_of(info.name))


def test_the_index_is_read_and_stays_as_it_is(texts: Cluster) -> None:
    before = texts.index_info(INDEX)
    found = forecast(texts, INDEX, HashingEncoder(), ReindexSettings(), ForecastSettings())
    stats = texts.request("GET", path_of(INDEX, "_stats", "store"))["_all"]["primaries"]["store"]
    assert found.quantity.documents == found.quantity.vectors == 60
    assert found.quantity.text_bytes == pytest.approx(stats["size_in_bytes"] / 60)
    assert (found.housing.nodes, found.housing.copies) == (1, 1)
    assert found.housing.processors >= 1
    assert found.measured
    assert found.workforce.beside
    assert found.workforce.documents_per_second > 0
    assert found.duration.total >= max(found.duration.encoding, found.duration.writing)
    assert (found.price, found.price_per_million) == (None, None)
    assert texts.index_info(INDEX) == before
    assert texts.request("GET", "/_search/point_in_time/_all")["pits"] == []


def test_plan_dry_run_and_a_run_that_goes_on_are_told_by_one_estimator(
    cluster: Cluster, index_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forecasting, "documents_a_second", lambda *_: 10.0)
    monkeypatch.setattr(forecasting, "table_document_s", lambda *_: TABLE_S)
    monkeypatch.setattr(forecasting, "calibration_s", lambda *_: 7.0)
    monkeypatch.setattr(term_table, "LEAST_TERMS", 1)
    fill_index(cluster, index_name, 60)
    told = ReindexSettings(term_table=False)
    planned = forecast(cluster, index_name, HashingEncoder(), told, ForecastSettings()).duration
    assert planned.encoding == 6.0

    def seconds(settings: ReindexSettings) -> float:
        found = preview(cluster, index_name, HashingEncoder(), settings).seconds
        assert found is not None
        return found

    fresh = seconds(told)
    assert fresh == pytest.approx(planned.total, rel=1e-3)
    assert seconds(ReindexSettings()) == pytest.approx(fresh + 60 * TABLE_S, abs=2e-3), "it listens"
    assert seconds(ReindexSettings(term_table=False, max_docs_per_second=1)) == pytest.approx(
        START_S + 60 + 6 + 7, rel=0.01
    ), "documents, those that are verified, and the calibration"
    source = index_name
    info = cluster.index_info(reindex(cluster, source, HashingEncoder(), told).destination)
    written = [{"delete": {"_id": f"d{number}"}} for number in range(30)]
    bulk(cluster, info.name, written)
    half = fresh - 3
    assert seconds(told) == pytest.approx(half, rel=0.1)
    again = seconds(ReindexSettings())
    assert again == pytest.approx(half + 60 * TABLE_S + 6, rel=0.1), "the table needs a pass of its own"
    monkeypatch.setattr(forecasting, "encoded_tokens", lambda *_: 20.0)
    monkeypatch.setattr(forecasting, "MOST_TOKENS", 600)
    few = seconds(ReindexSettings())
    assert few == pytest.approx(half + 30 * TABLE_S + 3, rel=0.1), "which ends after so many tokens"
    reindex(cluster, source, HashingEncoder())
    deleted = 3  # seconds of those that a client deleted there, which stay deleted
    assert seconds(ReindexSettings()) < START_S + 6 + 7 + deleted + 0.1, "the table is there"


def test_what_is_told_is_not_measured(
    texts: Cluster, minilm_encoder_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [
        "plan",
        INDEX,
        "--url",
        texts.url,
        "--encoder",
        str(minilm_encoder_folder),
        "--vectors",
        "byte",
    ]
    command += ["--documents", "3600000", "--documents-per-second", "100", "--workers", "10", "--gpu"]
    command += ["--price-per-hour", "2", "--nodes", "3", "--replicas", "1", "--max-tokens", "16"]
    assert hybridr_cli.main([*command, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["quantity"]["documents"] == 3_600_000
    assert found["volume"]["vectors"] == 3_600_000 * 384
    assert found["duration"]["encoding"] == 3600
    assert (found["housing"]["nodes"], found["housing"]["copies"]) == (3, 2)
    assert (found["measured"], found["workforce"]["beside"]) == (False, False)
    assert 3 < found["tokens"] <= 16
    took = found["duration"]
    hours = 10 * (took["total"] - took["verifying"]) / 3600 + took["verifying"] / 3600
    assert found["price"] == pytest.approx(hours * 2)
    assert found["price_per_million"] == pytest.approx(found["price"] / 3.6)
    assert hybridr_cli.main([*command, "--quiet"]) == 0
    said = capsys.readouterr().out
    assert "3,600,000 vectors of 384 dimensions, --engine lucene --vectors byte" in said
    assert "10, each 100.0 documents a second, as told" in said
    assert "docs/scale.md" in said


def test_an_index_without_text_is_refused(texts: Cluster) -> None:
    with pytest.raises(DataError, match="text"):
        forecast(texts, f"{INDEX}-empty", HashingEncoder(), ReindexSettings(), ForecastSettings())


def test_an_alias_that_shows_a_part_is_refused(texts: Cluster) -> None:
    shown = {"index": INDEX, "alias": f"{INDEX}-part", "filter": {"term": {"tags": "t1"}}}
    texts.request("POST", "/_aliases", {"actions": [{"add": shown}]})
    with pytest.raises(ClusterError, match="is an alias with a filter"):
        forecast(texts, f"{INDEX}-part", HashingEncoder(), ReindexSettings(), ForecastSettings())


def test_what_follows_the_encoding_is_measured_on_the_index(
    texts: Cluster, minilm_encoder_folder: Path
) -> None:
    """The stages of the estimate are those of the run by name, and nothing is left behind."""
    before = texts.index_info(INDEX)
    todo = preview(texts, INDEX, load_encoder(minilm_encoder_folder), ReindexSettings())
    assert todo.seconds == pytest.approx(sum(todo.stages.values()), abs=0.01)
    assert todo.stages["term table"] > 0
    assert todo.stages["calibrate"] > 0
    assert todo.to_json()["stages"] == todo.stages
    assert texts.index_info(INDEX) == before
    seen: set[str] = set()
    encoder = load_encoder(minilm_encoder_folder)
    done = reindex(texts, INDEX, encoder, progress=lambda stage, *_: seen.add(stage))
    calibrate(texts, done.destination, encoder, progress=lambda stage, *_: seen.add(stage))
    remove(texts, INDEX)
    assert todo.stages.keys() - {"start and switch"} <= seen


def test_the_probe_of_a_calibration_fits_into_the_clauses_that_a_cluster_takes(
    cluster: Cluster, index_name: str
) -> None:
    """Each word of a query has twenty near words, and each of those is asked in each field."""
    fields = [f"part{number}" for number in range(8)]
    mappings = {"properties": {name: {"type": "text"} for name in fields}}
    cluster.request("PUT", path_of(index_name), {"mappings": mappings})
    lines: list[dict[str, Any]] = []
    for number, query in enumerate(foreign_queries(PROBED_QUERIES)):
        lines += [{"index": {"_id": str(number)}}, dict.fromkeys(fields, query)]
    bulk(cluster, index_name, lines)
    todo = preview(cluster, index_name, HashingEncoder(), ReindexSettings(fields=tuple(fields)))
    assert todo.stages["calibrate"] > 0


def test_what_may_not_be_asked_is_left_out_of_the_estimate(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused() -> float:
        raise AccessDenied("no")

    assert forecasting.permitted(refused) == 0.0
