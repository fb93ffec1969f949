"""The benchmark runner on a real node: the whole way, going on, and reading only."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import collection
import run
from conditions import Condition
from hybridr.cluster import Cluster
from hybridr.formats import write_beir
from hybridr.records import Document, Query
from sections import reproduction

from .corpus import text_number

pytestmark = [pytest.mark.node, pytest.mark.model]
GOLDEN = Path(__file__).parents[1] / "golden" / "ddr"
SYSTEMS = ["bm25", "rm3", "dense", "hybrid-stock"]
READING = ("_search", "_msearch", "_mget", "_search/point_in_time", "_mtermvectors")


@pytest.fixture
def bench(
    cluster: Cluster, index_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_home: Path
) -> Any:
    corpus = [Document(f"d{i}", text_number(i)) for i in range(40)]
    queries = [Query(f"q{i}", " ".join(text_number(i).split()[:4])) for i in range(12)]
    write_beir(tmp_path / index_name, corpus, queries, {f"q{i}": {f"d{i}": 1} for i in range(12)})
    condition = Condition(index_name, "twelve", "test", 10, 13, ["nDCG@10", "R@100"], SYSTEMS, 0.01)
    monkeypatch.setattr(run, "read_conditions", lambda: {index_name: condition})

    def start(*more: str) -> int:
        places = ["--runs", str(tmp_path / "runs"), "--results", str(tmp_path / "results")]
        return run.main(["--collections", str(tmp_path), "--url", cluster.url, *places, *more])

    start.result = tmp_path / "results" / "collections" / f"{index_name}.json"
    return start


def test_the_whole_way_and_then_reading_only(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert bench() == 0
    found = json.loads(bench.result.read_text())
    assert list(found["systems"]) == SYSTEMS
    assert (found["documents"], found["queries"]) == (40, 10)
    assert found["systems"]["bm25"]["nDCG@10"] > 0.5
    assert {one["system"] for one in found["comparisons"]["bm25"]} == {"rm3", "dense", "hybrid-stock"}
    assert {one["system"] for one in found["comparisons"]["hybrid-stock"]} == {"bm25", "rm3", "dense"}
    assert {"load", "reindex", *SYSTEMS} == found["seconds"].keys()
    sent: list[tuple[str, str]] = []
    request = Cluster.request

    def spied(self: Cluster, method: str, path: str, *rest: Any, **more: Any) -> Any:
        sent.append((method, path))
        return request(self, method, path, *rest, **more)

    monkeypatch.setattr(Cluster, "request", spied)
    assert bench("--again") == 0
    writing = [one for one in sent if one[0] not in ("GET", "HEAD") and not one[1].endswith(READING)]
    assert sent
    assert [one for one in writing if one != ("DELETE", "/_search/point_in_time")] == []
    assert json.loads(bench.result.read_text())["systems"] == found["systems"]


def test_an_interrupted_run_goes_on_with_the_system_it_was_at(
    bench: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[str] = []
    ask = collection.ask

    def once(work: Any, cluster: Cluster, system: str, qrels: Path) -> None:
        asked.append(system)
        if asked == ["bm25", "rm3", "dense"]:
            raise KeyboardInterrupt
        ask(work, cluster, system, qrels)

    monkeypatch.setattr(collection, "ask", once)
    assert bench() == 130
    assert "none was finished" in capsys.readouterr().err
    assert not bench.result.exists()
    assert bench() == 0
    assert asked == ["bm25", "rm3", "dense", "dense", "hybrid-stock"]


def test_an_index_of_another_collection_is_left_alone(
    bench: Any, cluster: Cluster, index_name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.request("PUT", f"/{index_name}/_doc/1", {"text": "mine"}, {"refresh": "true"})
    assert bench() == 1
    assert cluster.count(index_name) == 1
    assert "holds 1 documents of another file" in capsys.readouterr().err
    assert not bench.result.exists()


def test_a_row_of_the_published_tables_runs_on_its_own_layout(
    cluster: Cluster, tmp_path: Path, own_home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "lotte" / "technology" / "test"
    folder.mkdir(parents=True)
    (folder / "collection.tsv").write_text("".join(f"{i}\t{text_number(i)}\n" for i in range(30)))
    (folder / "questions.forum.tsv").write_text("".join(f"{i}\t{text_number(i)}\n" for i in range(5)))
    answers = ({"qid": i, "query": "q", "url": "u", "answer_pids": [i]} for i in range(5))
    (folder / "qas.forum.jsonl").write_text("".join(json.dumps(one) + "\n" for one in answers))
    models = ["--dam", str(GOLDEN / "dams" / "dam_target"),
              "--rem", str(GOLDEN / "rems" / "rem_dense_lora192-pa4")]  # fmt: skip
    places = ["--runs", str(tmp_path / "runs"), "--results", str(tmp_path / "results")]
    common = ["--published", "lotte-tech", "--collections", str(tmp_path), "--url", cluster.url, *places]
    try:
        assert run.main([*common, "--row", "ddr/bm25"]) == 0
        assert run.main([*common, "--row", "ddr/contrast", *models]) == 0
        assert run.main([*common, "--row", "ddr/contrast", *models]) == 0
        assert "1 of 1 are finished already" in capsys.readouterr().err
    finally:
        for info in cluster.indices("published-lotte-tech*"):
            cluster.request("DELETE", f"/{info.name}")
    found = {
        file.stem: json.loads(file.read_text()) for file in (tmp_path / "results").glob("published/*.json")
    }
    assert found.keys() == {"lotte-tech--ddr-bm25", "lotte-tech--ddr-contrast"}
    lexical = found["lotte-tech--ddr-bm25"]["systems"]["bm25"]
    assert list(lexical) == ["nDCG@10", "R@100", "R@1000", "Success@5"]
    assert lexical["Success@5"] == 1.0
    dense = found["lotte-tech--ddr-contrast"]["systems"]["dense"]
    assert dense["R@1000"] == 1.0
    shown = reproduction.render(found)
    assert "| lotte-tech | " in shown
    assert "off (.20652 .44962 .71094)" in shown
