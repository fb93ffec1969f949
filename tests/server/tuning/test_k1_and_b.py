"""k1 and b computed from term vectors are what a real node answers."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hybridr_cli
from hybridr import Search, SearchSettings, load_encoder, reindex
from hybridr.cluster.connection import Cluster
from hybridr.cluster.destinations import resolve, write_record
from hybridr.cluster.legs.lexical import among
from hybridr.cluster.similarities import Similarity, similarity_of
from hybridr.errors import ClusterError
from hybridr.evaluation.evaluation import parse_measure, values_of
from hybridr.records import Query
from hybridr.reindexing.settings import ReindexSettings
from hybridr.tuning.evidence import Asked, ask, with_words
from hybridr.tuning.k1_and_b import bm25_obstacle, change_similarity, errors_of
from hybridr.tuning.settings import TuneSettings
from hybridr.tuning.tuning import tune
from support.corpus import WORDS, fill_uneven, sources

pytestmark = pytest.mark.node
COUNT = 240  # documents
CLOSE = 1e-5  # scores are in single precision
QUERIES = [Query(f"q{number}", " ".join(random.Random(number).sample(WORDS, 3))) for number in range(12)]


@pytest.fixture(scope="module")
def folder(minilm_encoder_folder: Path) -> Path:
    return minilm_encoder_folder


@pytest.fixture
def searched(cluster: Cluster, index_name: str, folder: Path, request: Any) -> Search:
    """An index with vectors; by parameter on several shards."""
    fill_uneven(cluster, index_name, getattr(request, "param", 1))
    reindex(cluster, index_name, folder, ReindexSettings(fields=("text",)))
    untuned = SearchSettings(tuned=False)
    return Search(cluster, index_name, load_encoder(folder), settings=untuned)


def judged(cluster: Cluster, index: str) -> tuple[list[Query], dict[str, dict[str, int]]]:
    """Queries whose words the relevant documents hold most often, however long they are."""
    texts = {doc_id: source["text"].split() for doc_id, source in sources(cluster, index).items()}
    queries = [Query(f"q{n}", " ".join(random.Random(n).sample(WORDS[5:], 3))) for n in range(30)]
    qrels = {}
    for query in queries:
        counts = {doc: sum(map(words.count, query.text.split())) for doc, words in texts.items()}
        qrels[query.query_id] = dict.fromkeys(sorted(counts, key=lambda doc: -counts[doc])[:8], 1)
    return queries, qrels


def scores_of_server(search: Search, one: Asked) -> dict[str, float]:
    query = among(one.candidates, search.opened.plain([one.query.text])[0])
    return search.scores([{"size": len(one.candidates), "query": query}])[0]


@pytest.mark.parametrize("searched", [1, 3], indirect=True)
def test_other_k1_and_b_are_what_the_node_answers_with_them(cluster: Cluster, searched: Search) -> None:
    assert searched.lexical_fields == ("text",)
    asked = with_words(searched, ask(searched, QUERIES))
    assert bm25_obstacle(searched, asked) is None
    assert max(errors_of(one).max() for one in asked) < CLOSE
    before = [scores_of_server(searched, one) for one in asked]
    for similarity in (Similarity(0.4, 0.0), Similarity(2.4, 1.0), Similarity(0.9, 0.4)):
        assert change_similarity(cluster, searched.info.name, similarity) < 30
        assert similarity_of(resolve(cluster, searched.info.name)) == similarity
        for one, old in zip(asked, before, strict=True):
            assert one.words is not None
            found = one.words.scores(similarity, len(one.candidates)).tolist()
            told = scores_of_server(searched, one)
            computed = dict(zip(one.candidates, found, strict=True))
            assert {doc: score for doc, score in computed.items() if score > 0} == pytest.approx(
                told, rel=CLOSE
            )
            assert told != pytest.approx(old, rel=0.01)


def test_several_fields_are_searched_as_one_and_say_so(searched: Search) -> None:
    settings = SearchSettings(tuned=False, lexical_fields=("title", "text"))
    search = Search(searched.cluster, searched.info, searched.encoder, settings=settings)
    assert "title, text are searched as one" in str(bm25_obstacle(search, []))


def test_a_similarity_of_the_field_is_its_own(cluster: Cluster, index_name: str, folder: Path) -> None:
    fill_uneven(cluster, index_name, similarity="mine")
    reindex(cluster, index_name, folder)
    settings = SearchSettings(tuned=False, lexical_fields=("text",))
    search = Search(cluster, index_name, load_encoder(folder), settings=settings)
    asked = with_words(search, ask(search, QUERIES))
    assert "'mine'" in str(bm25_obstacle(search, asked))
    assert max(errors_of(one).max() for one in asked) > 0.01
    before = scores_of_server(search, asked[0])
    change_similarity(cluster, search.info.name, Similarity(2.4, 1.0))
    assert scores_of_server(search, asked[0]) == pytest.approx(before)


def test_an_index_is_open_after_a_change_that_is_refused(cluster: Cluster, searched: Search) -> None:
    with pytest.raises(ClusterError, match="k1"):
        change_similarity(cluster, searched.info.name, Similarity(-1.0, 0.5))
    assert searched.run(QUERIES[:1])["q0"]
    assert similarity_of(resolve(cluster, searched.info.name)) == Similarity()


def test_searches_take_up_feedback_that_was_found(cluster: Cluster, searched: Search) -> None:
    found = {"fusion": "absolute", "dense_weight": 0.4, "feedback": "rocchio"}
    write_record(cluster, searched.info.name, tuning={"search": found})
    name, encoder = searched.info.name, searched.encoder
    search = Search(cluster, name, encoder)
    assert (search.feedback, search.fusion) == ("rocchio", "absolute")
    assert search.using("lexical").feedback is None
    assert search.using("hybrid", feedback=None).feedback is None
    assert Search(cluster, name, encoder, feedback="rm3").fusion == "pipeline"
    given = Search(cluster, name, encoder, feedback="rocchio", settings=search.settings)
    expected = given.run(QUERIES)
    for query_id, found in search.run(QUERIES).items():
        assert found == pytest.approx(expected[query_id], abs=1e-6)
    for settings in (SearchSettings(tuned=False), SearchSettings(feedback="none")):
        assert Search(cluster, name, encoder, settings=settings).feedback is None
    assert Search(cluster, name, encoder, "dense").feedback is None


def test_k1_and_b_are_shown_and_changed_only_on_demand(
    cluster: Cluster, searched: Search, folder: Path, capsys: Any, tmp_path: Path
) -> None:
    name = searched.info.name
    queries, qrels = judged(cluster, name)
    shown = tune(cluster, name, (queries, qrels), encoder=folder)
    assert shown.bm25 is not None
    assert shown.bm25.choice is not None
    chosen = shown.bm25.similarity
    assert chosen is not None
    assert shown.bm25.choice.gain > 0
    assert chosen.b < 0.75
    assert (shown.bm25.closed_s, similarity_of(resolve(cluster, name))) == (None, Similarity())
    command = [
        "tune",
        name,
        "--beir",
        str(written(tmp_path, queries, qrels)),
        "--encoder",
        str(folder),
        "--url",
        cluster.url,
    ]
    assert hybridr_cli.main([*command, "--bm25", "apply", "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert f"POST /{name}/_close" in said
    assert "not applied" in said
    assert similarity_of(resolve(cluster, name)) == Similarity()
    assert hybridr_cli.main([*command, "--bm25", "show", "--json"]) == 0
    best = json.loads(capsys.readouterr().out)["bm25"]
    assert (best["before"], best["best"]) == (Similarity()._asdict(), chosen._asdict())
    assert hybridr_cli.main(["tune", name, "--bm25", "apply", "--url", cluster.url]) == 2
    assert "--beir" in capsys.readouterr().err
    assert hybridr_cli.main([*command, "--bm25", "off"]) == 0
    assert "bm25" not in capsys.readouterr().out
    assert hybridr_cli.main([*command, "--bm25", "apply"]) == 0
    assert "the index was closed for" in capsys.readouterr().out
    info = resolve(cluster, name)
    assert similarity_of(info) == chosen
    assert info.record.tuning.bm25 == {**chosen._asdict(), "before": Similarity()._asdict()}
    assert info.record.history[-1]["bm25"] == info.record.tuning.bm25
    again = tune(cluster, name, (queries, qrels), encoder=folder)
    assert again.bm25 is not None
    assert again.bm25.before == chosen
    assert resolve(cluster, name).record.tuning.bm25["before"] == Similarity()._asdict()


def test_a_new_index_has_the_source_s_k1_and_b_and_that_is_told(
    cluster: Cluster, searched: Search, folder: Path, capsys: Any
) -> None:
    name, source = searched.info.name, searched.info.record.source
    change_similarity(cluster, name, Similarity(0.4, 0.0))
    write_record(cluster, name, tuning={"bm25": {"k1": 0.4, "b": 0.0}})
    command = ["reindex", source, "--encoder", str(folder), "--max-tokens", "32", "--url", cluster.url]
    assert hybridr_cli.main(command) == 0
    assert f"found for '{name}', k1 and b too" in " ".join(capsys.readouterr().out.split())
    assert similarity_of(resolve(cluster, source)) == Similarity()
    assert similarity_of(resolve(cluster, name)) == Similarity(0.4, 0.0)


def test_the_estimate_with_k1_and_b_is_of_the_ranking_afterwards(
    cluster: Cluster, searched: Search, folder: Path
) -> None:
    queries, qrels = judged(cluster, searched.info.name)
    settings = TuneSettings(bm25="apply")
    found = tune(cluster, searched.info.name, (queries, qrels), encoder=folder, settings=settings)
    assert found.bm25 is not None
    assert found.bm25.choice is not None
    assert found.bm25.closed_s is not None
    curve = {str(point.variant): point.mean for point in found.bm25.choice.curve}
    search = Search(cluster, searched.info.name, load_encoder(folder))
    ids = [query.query_id for query in queries]
    [values] = values_of(search.run(queries, 100), qrels, [parse_measure("nDCG@10")], ids).values()
    assert np.mean(list(values.values())) == pytest.approx(curve[str(found.bm25.similarity)], abs=0.005)


def written(folder: Path, queries: list[Query], qrels: dict[str, dict[str, int]]) -> Path:
    (folder / "qrels").mkdir()
    lines = [json.dumps({"_id": query.query_id, "text": query.text}) for query in queries]
    (folder / "queries.jsonl").write_text("\n".join(lines))
    rows = [f"{query}\t{doc}\t1" for query, docs in qrels.items() for doc in docs]
    (folder / "qrels" / "test.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *rows]))
    return folder
