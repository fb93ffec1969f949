"""Bad input at the command line: a clear message, the right exit code, nothing lost."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from hybridr.search.checks import promote
from support.corpus import fill_index
from support.hostile_cluster import Given, hostile


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ({"error": "Security not initialized.", "status": 503}, "not ready yet (503): Security not init"),
        ({"version": {"distribution": "opensearch", "number": "2.11.1"}}, "needs 2.19 or newer"),
        ({"version": {"number": "8.15.0"}}, "it is version 8.15.0 of another product, not OpenSearch"),
    ],
)
def test_what_is_no_cluster_for_us_is_told(cli, answer, said):
    with hostile({"/": Given(answer, answer.get("status", 200))}) as (url, _):
        assert said in cli.typed(["search", "x", "y", "--url", url], 1).err


def test_plugin_missing(cli, minilm):
    index = {
        "settings": {"index.uuid": "u", "index.number_of_shards": "1"},
        "mappings": {"properties": {"text": {"type": "text"}}},
        "aliases": {},
    }
    answers = {
        "/": {"version": {"distribution": "opensearch", "number": "3.6.0"}},
        "/_nodes/plugins,settings": {"nodes": {"n": {"plugins": [{"name": "analysis-icu"}]}}},
        "/docs": {"docs": index},
        "/docs,docs-hybridr-*,docs-hybridr": {"docs": index},
    }
    with hostile({path: Given(answer) for path, answer in answers.items()}) as (url, _):
        said = cli.typed(["reindex", "docs", "--encoder", str(minilm), "--url", url], 1).err
    assert "the plugin opensearch-knn is not on every node" in said
    assert "hybridr doctor" in said


def test_damaged_encoder(cli, cluster, index_name, minilm, tmp_path):
    fill_index(cluster, index_name, 3)
    graph = Path(shutil.copytree(minilm, tmp_path / "encoder")) / "onnx" / "model.onnx"
    graph.write_bytes(graph.read_bytes()[:-1000])
    for folder, named in (("encoder", "model.onnx"), ("none", "none")):
        assert named in cli(cluster, f"reindex {index_name} --encoder {tmp_path / folder}", code=1).err
    assert not cluster.indices(f"{index_name}-hybridr-*")


def test_promoted_encoder_that_is_gone(cli, cluster, index_name, tmp_path):
    fill_index(cluster, index_name, 3)
    promote(cluster, index_name, tmp_path / "moved")
    assert "which is gone" in cli(cluster, f"reindex {index_name}", code=1).err
    assert not cluster.indices(f"{index_name}-hybridr-*")


def test_unreadable_collections(cli, cluster, tmp_path):
    file = tmp_path / "docs.jsonl"
    for content, message in {
        b"": "holds no documents",
        b'{"_id": "1", "text": "a"}\n{oops\n': "docs.jsonl:2: not JSON",
        b'{"_id": "1", "text": "\xff"}\n': "is not UTF-8",
    }.items():
        file.write_bytes(content)
        said = cli(cluster, f"load {file} --index t-never", code=1)
        assert (said.out, message in said.err) == ("", True)
    assert not cluster.exists("t-never")


def test_unusable_topics(cli, cluster, index_name, tmp_path):
    fill_index(cluster, index_name, 3)
    (tmp_path / "qrels").mkdir()
    (tmp_path / "queries.jsonl").write_text('{"_id": "q1", "text": "anchor"}\n')
    for row, systems, code, message in (
        ("q1\td1\t1", "bm26", 2, "unknown system 'bm26': bm25"),
        ("q1\td1\t1", "bm25 --measures nDGC@10", 2, "unknown measure 'nDGC@10'"),
        ("q1\td1\t0.5", "bm25", 1, "dev.tsv:2: needed"),
        ("q9\td1\t1", "bm25", 1, "lacks 1 judged query, such as 'q9'"),
    ):
        (tmp_path / "qrels" / "dev.tsv").write_text(f"query-id\tcorpus-id\tscore\n{row}\n")
        command = f"evaluate {index_name} --beir {tmp_path} --split dev --systems {systems}"
        assert message in cli(cluster, command, code=code).err
