"""Search and evaluate on a real node."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ir_measures
import pytest

import hybridr_cli
from hashing import HashingEncoder
from hybridr import Search, SearchSettings, evaluate, load, reindex
from hybridr.cluster.connection import Cluster
from hybridr.cluster.legs.lexical import lexical_query
from hybridr.cluster.settings import LoadSettings
from hybridr.errors import ClusterError, DataError, SettingsError
from hybridr.records import Query
from hybridr.search.feedback import FeedbackDocument, TermFeedback, rm3
from hybridr.search.fusions.pipeline import fuse, hybrid_query
from hybridr.search.hits import checked_hits

from .corpus import fill_index, text_number

pytestmark = pytest.mark.node


@pytest.fixture(scope="module")
def searchable(cluster: Cluster) -> Any:
    fill_index(cluster, "t-searchable", 300)
    encoder = HashingEncoder(dim=32)
    reindex(cluster, "t-searchable", encoder)
    yield "t-searchable", encoder
    for info in cluster.indices("t-searchable*"):
        cluster.request("DELETE", f"/{info.name}")


def test_hybrid_scores_are_the_fusion_of_the_legs(cluster: Cluster, searchable: Any) -> None:
    index, encoder = searchable
    for normalization in ("min_max", "l2", "z_score", "rrf"):
        settings = SearchSettings(normalization=normalization, dense_weight=0.6, depth=50)
        search = Search(cluster, index, encoder, settings=settings)
        for number in range(0, 60, 7):
            query = [Query("q", text_number(number))]
            legs = [search.using(mode).run(query, 50)["q"] for mode in ("lexical", "dense")]
            expected = fuse(legs, normalization=normalization, weights=[0.4, 0.6])
            found = search.run(query, 20)["q"]
            assert len(found) == 20
            assert found == pytest.approx({doc: expected[doc] for doc in found}, abs=1e-5)


def test_hits_carry_text_and_both_raw_scores(cluster: Cluster, searchable: Any) -> None:
    index, encoder = searchable
    search = Search(cluster, index, encoder)
    text = text_number(5)
    hits = search(text, 5)
    assert [hit.rank for hit in hits] == [1, 2, 3, 4, 5]
    assert hits[0].doc_id == "d5"
    assert "<em>n5</em>" in hits[0].text
    lexical = search.using("lexical").run([Query("q", text)], 300)["q"]
    dense = search.using("dense").run([Query("q", text)], 100)["q"]
    for hit in hits:
        assert hit.lexical_score == pytest.approx(lexical[hit.doc_id], abs=1e-5)
        assert hit.dense_score == pytest.approx(dense[hit.doc_id], abs=1e-5)


def test_completion_gives_every_candidate_both_true_scores(cluster: Cluster, searchable: Any) -> None:
    index, encoder = searchable
    text = text_number(5)
    search = Search(cluster, index, encoder, settings=SearchSettings(fusion="completed", depth=20))
    lexical = search.using("lexical").run([Query("q", text)], 300)["q"]
    dense = Search(cluster, index, encoder, "dense").run([Query("q", text)], 300)["q"]
    candidates = search.candidates([text])[0]
    assert len(candidates) > 20
    assert {one.doc_id: one.dense for one in candidates} == pytest.approx(
        {one.doc_id: dense[one.doc_id] for one in candidates}, abs=1e-5
    )
    assert {one.doc_id: one.lexical for one in candidates} == pytest.approx(
        {one.doc_id: lexical.get(one.doc_id, 0.0) for one in candidates}, abs=1e-5
    )
    hits = search(text, 3)
    assert [hit.doc_id for hit in hits] == [one.doc_id for one in candidates[:3]]
    assert "<em>n5</em>" in hits[0].text
    assert list(search.run([Query("q", text)], 3)["q"]) == [hit.doc_id for hit in hits]


def test_k_changes_no_score(cluster: Cluster, searchable: Any) -> None:
    index, encoder = searchable
    search = Search(cluster, index, encoder)
    few, many = (search.run([Query("q", "anchor ladder")], k)["q"] for k in (5, 80))
    assert few == {doc: many[doc] for doc in list(many)[:5]}


def test_rm3_expands_by_the_words_of_the_best_documents(cluster: Cluster, searchable: Any) -> None:
    index, encoder = searchable
    text = "anchor ladder"
    plain = Search(cluster, index, mode="lexical")
    first = plain(text, 10)
    found = {info.name: info for info in cluster.indices(f"{index}-hybridr")}
    words = {hit.doc_id: Counter(text_number(int(hit.doc_id[1:])).split()) for hit in first}
    everywhere = Counter(word for number in range(300) for word in set(text_number(number).split()))
    documents = [FeedbackDocument(words[hit.doc_id], hit.score) for hit in first]
    expected = rm3(text.split(), documents, everywhere, 300)
    query = TermFeedback(cluster, next(iter(found)), ["text"]).queries([text])[0]
    weights = {
        clause["term"]["text"]["value"]: clause["term"]["text"]["boost"] for clause in query["bool"]["should"]
    }
    assert weights == pytest.approx(expected, abs=1e-6)
    expanded = Search(cluster, index, mode="lexical", feedback="rm3")
    assert expanded(text, 5)[0].lexical_score == pytest.approx(expanded(text, 5)[0].score)
    assert Search(cluster, index, encoder, feedback="rm3")(text, 5)
    with pytest.raises(SettingsError, match="unknown feedback"):
        Search(cluster, index, encoder, feedback="bm25")  # type: ignore[arg-type]


CHINESE = [
    "病毒疫苗接种安全研究",
    "疫苗接种人群免疫反应",
    "疫苗接种不良反应报告",
    "股票市场价格波动",
    "天气预报明天下雨",
    "足球比赛冠军球队",
    "古代诗歌语言艺术",
    "铁路运输货物列车",
    "海洋生物多样保护",
    "城市交通管理政策",
]
"""Written for this test."""


def test_rm3_expands_chinese_by_character_pairs(cluster: Cluster, index_name: str, tmp_path: Path) -> None:
    file = tmp_path / "zh.jsonl"
    filler = [text for text in CHINESE[3:] for _ in range(4)]
    rows = [{"_id": str(n), "text": text} for n, text in enumerate([*CHINESE[:3], *filler])]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = load(cluster, file, LoadSettings(index=index_name, k1=0.9, b=0.4))
    assert (done.language, done.analyzer) == ("zh", "cjk")
    body = TermFeedback(cluster, index_name, ["contents"]).queries(["病毒"])[0]
    weights = {
        clause["term"]["contents"]["value"]: clause["term"]["contents"]["boost"]
        for clause in body["bool"]["should"]
    }
    pairs = [CHINESE[0][i : i + 2] for i in range(len(CHINESE[0]) - 1)]
    assert weights == pytest.approx(
        {pair: 0.5 / len(pairs) + 0.5 * (pair == "病毒") for pair in pairs}, abs=1e-6
    )
    filtered = TermFeedback(cluster, index_name, ["contents"], words_only=True).queries(["病毒"])[0]
    assert [clause["term"]["contents"]["value"] for clause in filtered["bool"]["should"]] == ["病毒"]
    plain = Search(cluster, index_name, mode="lexical").run([Query("q", "病毒")])["q"]
    expanded = Search(cluster, index_name, mode="lexical", feedback="rm3").run([Query("q", "病毒")])["q"]
    assert plain.keys() == {"0"}
    assert expanded.keys() == {"0", "1", "2"}


def test_the_analyser_can_be_named(cluster: Cluster, index_name: str, tmp_path: Path, capsys: Any) -> None:
    folder, on = beir_folder(tmp_path / "beir"), ["--index", index_name, "--url", cluster.url]
    assert hybridr_cli.main(["load", str(folder), *on, "--analyzer", "smartcnx", "--k1", "0.9"]) == 2
    said = capsys.readouterr().err
    assert "the cluster has no analyser 'smartcnx'" in said
    assert "cjk, " in said
    assert not cluster.exists(index_name)
    assert hybridr_cli.main(["load", str(folder), *on, "--analyzer", "whitespace", "--k1", "0.9"]) == 0
    info = cluster.index_info(index_name)
    assert info.mappings["properties"]["contents"]["analyzer"] == "whitespace"
    assert info.settings["index.similarity.default.k1"] == "0.9"
    assert info.settings["index.similarity.default.b"] == "0.75"


def test_hybrid_without_pipeline_is_an_error(cluster: Cluster, searchable: Any) -> None:
    index, _ = searchable
    legs = [lexical_query("anchor", ["text"]), lexical_query("ladder", ["text"])]
    answer = cluster.search(f"{index}-hybridr", {"query": hybrid_query(legs, 10)})
    with pytest.raises(ClusterError, match="raw hybrid scores"):
        checked_hits(answer)


def test_queries_that_are_not_words(cluster: Cluster, searchable: Any) -> None:
    index, encoder = searchable
    search = Search(cluster, index, encoder)
    for text in ('"} {', "a\u0000\u0007", "\U0001f600", "the", "a" * 20_000):
        assert len(search(text, 3)) <= 3
    for text in ("  \n", "\u0000\u0007"):
        with pytest.raises(DataError, match="the query is empty"):
            search(text)
    with pytest.raises(SettingsError, match="unknown mode 'semantic'"):
        Search(cluster, index, encoder, "semantic")  # type: ignore[arg-type]
    with pytest.raises(SettingsError, match="needs an encoder"):
        Search(cluster, index)


def test_command_line_searches_in_three_modes(
    cluster: Cluster, index_name: str, minilm_encoder_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fill_index(cluster, index_name, 30)
    on = ["--url", cluster.url]
    assert hybridr_cli.main(["reindex", index_name, *on, "--encoder", str(minilm_encoder_folder)]) == 0
    assert f"alias {index_name}-hybridr -> {index_name}-hybridr-1" in capsys.readouterr().out
    for mode in ("hybrid", "lexical", "dense"):
        command = ["search", index_name, "velvet window", "--mode", mode, "--k", "3", "--json", *on]
        assert hybridr_cli.main(command) == 0
        hits = json.loads(capsys.readouterr().out)["hits"]
        assert len(hits) == 3
        assert {"doc_id", "score", "rank", "lexical_score", "dense_score", "text", "passage"} == hits[
            0
        ].keys()
    assert hybridr_cli.main(["search", index_name, "velvet window", *on]) == 0
    assert "*velvet*" in capsys.readouterr().out
    assert hybridr_cli.main(["rollback", index_name, *on]) == 0
    capsys.readouterr()
    assert hybridr_cli.main(["search", index_name, "velvet", *on]) == 1
    assert "has no vectors for hybrid search" in capsys.readouterr().err
    assert hybridr_cli.main(["search", index_name, "velvet", "--mode", "lexical", *on]) == 0


FLOORS = {"cranfield": 0.355, "npl": 0.430, "scifact": 0.675}


@pytest.mark.model
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", FLOORS)
def test_hybrid_beats_bm25_on_open_collections(
    cluster: Cluster,
    collection: Callable[[str], Path],
    minilm_encoder_folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    name: str,
) -> None:
    folder, index, on = collection(name), f"t-{name}", ["--url", cluster.url]
    assert hybridr_cli.main(["load", str(folder), "--index", index, *on]) == 0
    assert hybridr_cli.main(["reindex", index, "--encoder", str(minilm_encoder_folder), *on]) == 0
    capsys.readouterr()
    systems = ["--systems", "bm25,rm3,dense,hybrid,hybrid-completed"]
    command = ["evaluate", index, "--beir", str(folder), "--runs", str(tmp_path), "--json", *systems, *on]
    assert hybridr_cli.main(command) == 0
    found = json.loads(capsys.readouterr().out)
    means = {system: values["nDCG@10"] for system, values in found["systems"].items()}
    assert means["bm25"] >= FLOORS[name]
    assert means["hybrid"] >= max(means["bm25"], means["rm3"]) + 0.03
    assert means["hybrid-completed"] >= means["hybrid"] - 0.006
    best = next(c for c in found["comparisons"] if (c["system"], c["measure"]) == ("hybrid", "nDCG@10"))
    assert best["p_value"] < 0.01
    assert best["wins"] + best["ties"] + best["losses"] == found["queries"]
    # The run file, read by another program, gives the same mean.
    run = ir_measures.read_trec_run(found["runs"]["hybrid"])
    qrels = [
        ir_measures.Qrel(*line.split("\t")[:2], int(line.split("\t")[2]))
        for line in (folder / "qrels" / "test.tsv").read_text().splitlines()[1:]
    ]
    again = ir_measures.calc_aggregate([ir_measures.nDCG @ 10], qrels, run)
    assert again[ir_measures.nDCG @ 10] == pytest.approx(means["hybrid"], abs=1e-4)
    for info in cluster.indices(f"{index}*"):
        cluster.request("DELETE", f"/{info.name}")


def test_evaluate_refuses_qrels_of_another_collection(cluster: Cluster, searchable: Any) -> None:
    index, encoder = searchable
    search = Search(cluster, index, encoder, "lexical")
    with pytest.raises(DataError, match="no judged document was found"):
        evaluate({"bm25": search}, [Query("q1", "anchor")], {"q1": {"elsewhere": 1}})


def test_evaluate_mixes_an_index_with_run_files_and_reports(
    cluster: Cluster, index_name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, on = beir_folder(tmp_path / "beir"), ["--url", cluster.url]
    assert hybridr_cli.main(["load", str(folder), "--index", index_name, *on]) == 0
    capsys.readouterr()
    (tmp_path / "mine.trec").write_text("q1 Q0 d4 1 2.0 x\nq1 Q0 d3 2 1.0 x\n")
    command = ["evaluate", index_name, "--beir", str(folder), "--systems", "bm25,rm3", *on, "--json"]
    report = ["--run", f"mine={tmp_path / 'mine.trec'}", "--report", str(tmp_path / "a.html")]
    assert (
        hybridr_cli.main(
            [*command, *report, "--baseline", "mine", "--measures", "nDCG@10,R@1000,RR@10,AP,Judged@10"]
        )
        == 0
    )
    found = json.loads(capsys.readouterr().out)
    assert list(found["systems"]) == ["bm25", "rm3", "mine"]
    assert found["systems"]["bm25"]["RR@10"] == 1.0
    assert found["systems"]["mine"]["AP"] == 0.5
    page = (tmp_path / "a.html").read_text()
    assert f"Title 3 {text_number(3)}" in page, "the text comes from the index"
    qrels = tmp_path / "other.tsv"
    qrels.write_text(
        "query-id\tcorpus-id\tscore\n" + "".join(f"q1\tx{n}\t1\n" for n in range(3)) + "q1\td1\t1\n"
    )
    assert hybridr_cli.main([*command, "--qrels", str(qrels)]) == 1
    assert f"3 of 4 relevant documents of the qrels are not in '{index_name}'" in capsys.readouterr().err


def beir_folder(folder: Path, documents: int = 20) -> Path:
    (folder / "qrels").mkdir(parents=True)
    records = [
        {"_id": f"d{n}", "title": f"Title {n}", "text": text_number(n), "year": n} for n in range(documents)
    ]
    (folder / "corpus.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    (folder / "queries.jsonl").write_text(json.dumps({"_id": "q1", "text": text_number(3)}) + "\n")
    (folder / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq1\td3\t1\n")
    return folder


def test_load_keeps_the_record_and_adds_contents(cluster: Cluster, index_name: str, tmp_path: Path) -> None:
    folder = beir_folder(tmp_path / "beir")
    settings = LoadSettings(index=index_name, k1=0.9, b=0.4, language="de")
    done = load(cluster, folder, settings)
    assert (done.documents, done.rejected, done.analyzer, done.loaded) == (20, 0, "german", True)
    info = cluster.index_info(index_name)
    assert info.settings["index.similarity.default.k1"] == "0.9"
    assert info.mappings["properties"]["contents"]["analyzer"] == "german"
    source = cluster.request("GET", f"/{index_name}/_doc/d3")["_source"]
    assert source["contents"] == f"Title 3 {text_number(3)}"
    assert source["year"] == 3
    assert not load(cluster, folder, settings).loaded
    with pytest.raises(DataError, match="holds 20 documents of another file or settings"):
        load(cluster, folder, LoadSettings(index=index_name, k1=1.2))
    assert load(cluster, folder, LoadSettings(index=index_name, replace=True)).loaded


def test_load_takes_any_jsonl_by_its_fields(cluster: Cluster, index_name: str, tmp_path: Path) -> None:
    file = tmp_path / "faq.jsonl"
    rows = [{"_id": n, "question": f"How {n}?", "answer": text_number(n)} for n in range(5)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(DataError, match="no field 'title' or 'text', found answer, question"):
        load(cluster, file, LoadSettings(index=index_name))
    load(cluster, file, LoadSettings(index=index_name, fields=("question", "answer")))
    assert Search(cluster, index_name, mode="lexical")("n4", 1)[0].doc_id == "4"


def test_load_reports_what_the_index_refuses(
    cluster: Cluster, index_name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = beir_folder(tmp_path / "beir")
    with (folder / "corpus.jsonl").open("a") as lines:
        lines.write(
            json.dumps({"_id": "bad", "title": "", "text": "fine", "year": {"not": "a number"}}) + "\n"
        )
    command = ["load", str(folder), "--index", index_name, "--url", cluster.url]
    assert hybridr_cli.main(command) == 3
    shown = capsys.readouterr().out
    assert "20 documents" in shown
    assert "1 refused by the index, reasons in" in shown
    assert hybridr_cli.main(command) == 0, "the second run finds nothing to do"
