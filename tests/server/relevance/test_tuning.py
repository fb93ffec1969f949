"""`hybridr tune` on a real node: what it finds, what it writes, and who takes it up."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hybridr import ReindexSettings, Search, SearchSettings, load_encoder
from hybridr.cluster.connection import Cluster
from hybridr.cluster.destinations import resolve, write_record
from hybridr.cluster.record_parts import Tuned
from hybridr.errors import DataError, SettingsError
from hybridr.evaluation.evaluation import parse_measure, query_values
from hybridr.relevance import tuning
from hybridr.relevance.settings import TuneSettings
from hybridr.relevance.tuning import tune
from hybridr.search import signals
from hybridr.serving.deploy.deploying import plan_deployment
from hybridr.serving.settings import DeploySettings
from support.corpus import filled_and_reindexed, judged_by_number, reindexed, text_number
from support.hashing import HashingEncoder
from support.members import one_more

COUNT = 150


@pytest.fixture(scope="module")
def folder(minilm: Path) -> Path:
    return minilm


@pytest.fixture(scope="module")
def index(cluster: Cluster, folder: Path) -> Iterator[str]:
    name = "t-tuned"
    with filled_and_reindexed(cluster, name, COUNT, folder) as name:
        yield name


@pytest.fixture
def judged() -> Any:
    """Queries that only words can answer: MiniLM makes little of the numbers at the end."""
    return judged_by_number(range(0, COUNT, 5), lambda number: f"n{number} candle anchor")


LEARNT = '''
from hybridr.search.signals import Signal


class Learnt(Signal):
    """Was made of judged queries."""

    name = "throwaway"
    help = "what was good before"
    weight = 0.1
    learnt = True

    def __init__(self, place):
        pass

    def clauses(self, asked):
        return [{"match_all": {"boost": len(asked.text)}}]
'''


def test_no_query_judges_what_was_made_of_it(cluster, index, folder, judged, tmp_path):
    """All else is judged without it, by the same queries too; and a dry run writes nothing."""
    before = cluster.index_info(resolve(cluster, index).name).mappings
    plain = tune(cluster, index, judged, encoder=folder, settings=TuneSettings(dry_run=True))
    assert plain.choice is not None
    with one_more(signals, "throwaway", LEARNT, tmp_path):
        found = tune(cluster, index, judged, encoder=folder, settings=TuneSettings(dry_run=True))
    assert found == plain
    assert cluster.index_info(resolve(cluster, index).name).mappings == before


def test_judged_queries_choose_and_searches_follow(cluster, index, folder, judged):
    found = tune(cluster, index, judged, encoder=folder)
    choice = found.choice
    assert choice.applied
    assert choice.low <= choice.gain <= choice.high
    assert choice.chosen.settings["dense_weight"] < 0.5
    assert resolve(cluster, index).record.tuning.search == choice.chosen.settings
    search = Search(cluster, index, load_encoder(folder))
    assert search.settings.dense_weight == choice.chosen.settings["dense_weight"]
    given = Search(cluster, index, load_encoder(folder), settings=SearchSettings(dense_weight=0.7))
    assert given.settings.dense_weight == 0.7
    other = Search(cluster, index, load_encoder(folder), settings=SearchSettings(fusion="pipeline"))
    assert (other.fusion, other.settings.dense_weight) == ("pipeline", 0.5)
    untuned = Search(cluster, index, load_encoder(folder), settings=SearchSettings(tuned=False))
    assert untuned.settings.dense_weight == 0.5
    # Every variant was scored here; the server must agree with what was written down.
    queries, qrels = judged
    ids = [query.query_id for query in queries]
    [values] = query_values(search.run(queries, 100), qrels, [parse_measure("nDCG@10")], ids).values()
    of_curve = {str(point.variant): point.mean for point in choice.curve}
    assert sum(values.values()) / len(values) == pytest.approx(of_curve[str(choice.chosen)], abs=1e-3)
    # A deployment takes up the pipeline that was tuned.
    assert found.pipeline.applied
    assert found.pipeline.chosen.settings["fusion"] == "pipeline"
    weight = found.pipeline.chosen.settings["dense_weight"]
    for settings, weights in (
        (SearchSettings(), [1 - weight, weight]),
        (SearchSettings(dense_weight=0.6), [0.4, 0.6]),
    ):
        todo = plan_deployment(cluster, index, DeploySettings(), settings)
        [processor] = todo.requests[-2]["body"]["phase_results_processors"][0].values()
        assert processor["combination"]["parameters"]["weights"] == pytest.approx(weights)


def test_without_judgements_nothing_is_chosen(cluster, index, folder):
    """Whoever measured the confidence of scores again, as status advises, lost what judged queries chose."""
    name, chosen = resolve(cluster, index).name, {"dense_weight": 0.3}
    for stored, in_use in ((None, []), (Tuned(search=chosen), ["search: as before"])):
        write_record(cluster, name, tuning=stored)
        found = tune(cluster, index, encoder=folder)
        assert (found.pipeline, found.choice, found.in_use) == (None, None, in_use)
        assert resolve(cluster, index).record.tuning == stored
    assert json.loads(json.dumps(found.to_json()))["stored"] == {"search": chosen}


def test_thin_evidence_is_refused(cluster, index, folder, judged):
    queries, qrels = judged
    with pytest.raises(DataError, match="9 judged queries; at least 10 are needed"):
        tune(cluster, index, (queries[:9], qrels), encoder=folder)


def test_all_that_was_tuned_is_taken_back(cluster, index_name, cli):
    reindexed(cluster, index_name, 30)
    info = resolve(cluster, index_name)
    first = Search(cluster, index_name, HashingEncoder())(text_number(7))
    found = {"fusion": "absolute", "dense_weight": 0.3}
    write_record(cluster, info.name, tuning={"search": found, "pipeline": found})
    command = ["tune", index_name, "--reset", "--url", cluster.url]

    said = cli.typed([*command, "--dry-run"]).out
    assert "search, pipeline: would be taken back" in said
    assert resolve(cluster, index_name).record.tuning is not None
    assert Search(cluster, index_name, HashingEncoder()).settings.dense_weight == 0.3

    assert "search, pipeline: taken back" in cli.typed(command).out
    after = resolve(cluster, index_name)
    assert after.record.tuning is None
    assert after.record.history[-1]["event"] == "untuned"
    again = Search(cluster, index_name, HashingEncoder())(text_number(7))
    assert [(hit.doc_id, hit.score) for hit in again] == [(hit.doc_id, hit.score) for hit in first]

    assert cli.typed([*command, "--json"]).json["tuned"] is None


@pytest.mark.usefixtures("few_terms")
def test_tune_fits_what_a_reindex_did_not(cluster, index_name, minilm, cli):
    index = reindexed(cluster, index_name, 60, minilm, ReindexSettings(term_table=False)).destination
    shown = tune(cluster, index_name, settings=TuneSettings(dry_run=True))
    assert shown.to_json()["term_table"] is None
    assert cluster.index_info(index).record.term_table is None
    found = tune(cluster, index_name)
    assert found.term_table.fitted
    named = cluster.index_info(index).record.term_table
    assert found.to_json()["term_table"]["table"] == named.model_dump()  # type: ignore[union-attr]
    line = f"term table: {named.terms:,} terms of 60 documents"  # type: ignore[union-attr]
    assert f"{line}\n" in cli(cluster, f"tune {index_name}").out
    assert f"{line}, in this cluster and this machine\n" in cli(cluster, f"status {index_name}").out
    said = cli(cluster, f"remove {index_name} --yes").out
    assert f"term table {named.fingerprint[:12]}: deleted" in said  # type: ignore[union-attr]


def test_a_query_log_without_judgements_chooses_the_weight(
    cluster, index, folder, tmp_path, judged, monkeypatch
):
    monkeypatch.setattr(tuning, "MIN_LOGGED", 40)
    log = tmp_path / "queries.txt"
    log.write_text("".join(f"{text_number(number)}\n" for number in range(50)), encoding="utf-8")
    settings = TuneSettings(query_log=log)
    with pytest.raises(SettingsError, match="a query log and judgements are both given"):
        tune(cluster, index, judged, encoder=folder, settings=settings)
    before = resolve(cluster, index).record.tuning
    dry = tune(cluster, index, encoder=folder, settings=TuneSettings(query_log=log, dry_run=True))
    assert resolve(cluster, index).record.tuning == before
    found = tune(cluster, index, encoder=folder, settings=settings)
    assert found.by_log
    assert found.by_log == dry.by_log
    assert 0.25 <= found.by_log.dense_weight <= 0.75
    assert found.in_use == [f"search: dense weight {found.by_log.dense_weight:g}"]
    assert Search(cluster, index, load_encoder(folder)).settings.dense_weight == found.by_log.dense_weight
    assert json.loads(json.dumps(found.to_json()))["by_log"]["queries"] == found.by_log.queries
    assert tune(cluster, index, encoder=folder).by_log is None
    assert resolve(cluster, index).record.tuning.search == found.settings
