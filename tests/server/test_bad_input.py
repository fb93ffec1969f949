"""Bad input at the command line: a clear message, the right exit code, nothing lost."""

from __future__ import annotations

import json
import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

import hybridr_cli
from hybridr.cluster.connection import Cluster, path_of
from support.corpus import fill_index

pytestmark = pytest.mark.node
Failing = Callable[..., str]


@pytest.fixture
def failing(capsys: pytest.CaptureFixture[str]) -> Failing:
    """Run a command that must fail with `code` and give what it said."""

    def run(*arguments: str, code: int = 1) -> str:
        capsys.readouterr()
        found = hybridr_cli.main(list(arguments))
        shown = capsys.readouterr()
        assert found == code, shown
        assert shown.out == "", "a failed command prints no result"
        assert "Traceback" not in shown.err
        return shown.err

    return run


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@pytest.fixture
def impostor() -> Iterator[tuple[str, dict[str, Any]]]:
    """A server that answers each path with what the test puts into the dictionary; a number is a status."""
    answers: dict[str, Any] = {}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = answers.get(self.path.split("?")[0], {"status": 404})
            self.send_response(body.get("status", 200))
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(json.dumps(body).encode())

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", answers
    server.shutdown()
    server.server_close()


def test_wrong_port(failing: Failing) -> None:
    said = failing("search", "x", "y", "--url", f"http://127.0.0.1:{free_port()}")
    assert "nothing answers at http://127.0.0.1" in said
    assert said.splitlines()[0].endswith(": Connection refused")
    assert "hint:" in said


def test_wrong_url(failing: Failing) -> None:
    assert "is not a cluster address" in failing("search", "x", "y", "--url", "localhost", code=2)
    said = failing("search", "x", "y", "--url", "https://me:hunter2@localhost:9200", code=2)
    assert "holds a user or password" in said
    assert "hunter2" not in said
    said = failing("search", "x", "y", "--url", "http://no-such-host.invalid:9200")
    assert "nothing answers at http://no-such-host.invalid:9200" in said


Impostor = tuple[str, dict[str, Any]]


def test_node_not_yet_up(failing: Failing, impostor: Impostor) -> None:
    url, answers = impostor
    answers["/"] = {"error": "OpenSearch Security not initialized.", "status": 503}
    said = failing("search", "x", "y", "--url", url)
    assert "not ready yet (503): OpenSearch Security not initialized" in said


def test_old_version(failing: Failing, impostor: Impostor) -> None:
    url, answers = impostor
    answers["/"] = {"version": {"distribution": "opensearch", "number": "2.11.1"}}
    said = failing("search", "x", "y", "--url", url)
    assert "OpenSearch 2.11.1 at" in said
    assert "needs 2.19 or newer" in said


def test_another_product(failing: Failing, impostor: Impostor) -> None:
    url, answers = impostor
    answers["/"] = {"version": {"number": "8.15.0"}}
    said = failing("search", "x", "y", "--url", url)
    assert "it is version 8.15.0 of another product, not OpenSearch" in said


def test_plugin_missing(failing: Failing, impostor: Impostor, minilm_encoder_folder: Path) -> None:
    url, answers = impostor
    index = {
        "settings": {"index.uuid": "u", "index.number_of_shards": "1"},
        "mappings": {"properties": {"text": {"type": "text"}}},
        "aliases": {},
    }
    answers["/"] = {"version": {"distribution": "opensearch", "number": "3.6.0"}}
    answers["/_nodes/plugins,settings"] = {"nodes": {"n": {"plugins": [{"name": "analysis-icu"}]}}}
    answers["/docs"] = answers["/docs,docs-hybridr-*,docs-hybridr"] = {"docs": index}
    said = failing("reindex", "docs", "--encoder", str(minilm_encoder_folder), "--url", url)
    assert "the plugin opensearch-knn is not on every node" in said
    assert "hybridr doctor" in said


def test_user_without_password(failing: Failing, cluster: Cluster) -> None:
    said = failing("search", "x", "y", "--url", cluster.url, "--user", "me", code=2)
    assert "user 'me' without a password" in said
    assert "HYBRIDR_PASSWORD" in said


def test_index_missing(failing: Failing, cluster: Cluster) -> None:
    for command in (["search", "missing", "y"], ["inspect", "missing"], ["rollback", "missing"]):
        said = failing(*command, "--url", cluster.url)
        assert "no index or alias 'missing'" in said
        assert "hybridr load" in said


def test_empty_index(
    failing: Failing, cluster: Cluster, index_name: str, minilm_encoder_folder: Path, tmp_path: Path
) -> None:
    cluster.request("PUT", path_of(index_name), {"settings": {"number_of_replicas": 0}})
    encoder = ["--encoder", str(minilm_encoder_folder)]
    assert "is empty" in failing("reindex", index_name, *encoder, "--url", cluster.url)
    out = ["--out", str(tmp_path / "out")]
    assert "is empty" in failing("adapt", "--index", index_name, *out, "--url", cluster.url)


def test_index_without_text_fields(
    failing: Failing, cluster: Cluster, index_name: str, minilm_encoder_folder: Path
) -> None:
    properties = {"n": {"type": "integer"}, "id": {"type": "keyword"}}
    body = {"mappings": {"properties": properties}, "settings": {"number_of_replicas": 0}}
    cluster.request("PUT", path_of(index_name), body)
    cluster.request("PUT", path_of(index_name, "_doc", "1"), {"n": 1, "id": "x"}, {"refresh": "true"})
    encoder = ["--encoder", str(minilm_encoder_folder)]
    said = failing("reindex", index_name, *encoder, "--url", cluster.url)
    assert "no text field" in said


def test_damaged_encoder(
    failing: Failing, cluster: Cluster, index_name: str, minilm_encoder_folder: Path, tmp_path: Path
) -> None:
    fill_index(cluster, index_name, 3)
    damaged = tmp_path / "encoder"
    shutil.copytree(minilm_encoder_folder, damaged)
    graph = damaged / "onnx" / "model.onnx"
    graph.write_bytes(graph.read_bytes()[:-1000])
    said = failing("reindex", index_name, "--encoder", str(damaged), "--url", cluster.url)
    assert "model.onnx" in said
    missing = failing("reindex", index_name, "--encoder", str(tmp_path / "none"), "--url", cluster.url)
    assert "none" in missing
    assert not cluster.indices(f"{index_name}-hybridr-*")


def test_encoder_that_does_not_match_the_index(
    failing: Failing, cluster: Cluster, index_name: str, minilm_encoder_folder: Path
) -> None:
    from hybridr.indexing.reindexing import reindex
    from support.hashing import HashingEncoder

    fill_index(cluster, index_name, 3)
    reindex(cluster, index_name, HashingEncoder())
    encoder = ["--encoder", str(minilm_encoder_folder)]
    said = failing("search", index_name, "anchor", *encoder, "--url", cluster.url)
    assert "were written by encoder" in said


def test_promoted_encoder_that_is_gone(
    failing: Failing, cluster: Cluster, index_name: str, tmp_path: Path
) -> None:
    from hybridr.search.encoders import promote

    fill_index(cluster, index_name, 3)
    promote(cluster, index_name, tmp_path / "moved")
    assert "which is gone" in failing("reindex", index_name, "--url", cluster.url)
    assert not cluster.indices(f"{index_name}-hybridr-*")


def test_faiss_on_an_embedded_node(
    failing: Failing, cluster: Cluster, index_name: str, minilm_encoder_folder: Path
) -> None:
    fill_index(cluster, index_name, 3)
    encoder = ["--encoder", str(minilm_encoder_folder), "--engine", "faiss"]
    said = failing("reindex", index_name, *encoder, "--url", cluster.url)
    assert "would kill this embedded node" in said
    assert "--engine lucene" in said


def test_unusable_settings(failing: Failing, cluster: Cluster, tmp_path: Path) -> None:
    said = failing("search", "x", "y", "--dense-weight", "1.5", "--url", cluster.url, code=2)
    assert "dense_weight: input should be less than or equal to 1, got 1.5" in said
    file = tmp_path / "hybridr.toml"
    file.write_text("[search]\ndepht = 5\n")
    said = failing("search", "x", "y", "--config", str(file), "--url", cluster.url, code=2)
    assert "unknown setting 'depht', did you mean 'depth'?" in said
    file.write_text("[serach]\n")
    assert "unknown table [serach]" in failing(
        "search", "x", "y", "--config", str(file), "--url", cluster.url, code=2
    )


def test_unreadable_collections(failing: Failing, cluster: Cluster, tmp_path: Path) -> None:
    on = ["--index", "t-never", "--url", cluster.url]
    assert "no file" in failing("load", str(tmp_path / "none"), *on)
    file = tmp_path / "docs.jsonl"
    for content, message in {
        "": "holds no documents",
        "[1]\n": "docs.jsonl:1: needed a JSON object, found int",
        '{"_id": "1", "text": "a"}\n{oops\n': "docs.jsonl:2: not JSON",
        '{"text": "a"}\n': "docs.jsonl:1: a document without '_id'",
        '{"_id": "1", "text": "a"}\n' * 2: "docs.jsonl:2: document id '1' for the second time",
    }.items():
        file.write_text(content)
        assert message in failing("load", str(file), *on)
    file.write_bytes(b'{"_id": "1", "text": "\xff"}\n')
    assert "is not UTF-8" in failing("load", str(file), *on)
    assert not cluster.exists("t-never")


def test_unusable_topics(failing: Failing, cluster: Cluster, index_name: str, tmp_path: Path) -> None:
    fill_index(cluster, index_name, 3)
    (tmp_path / "qrels").mkdir()
    (tmp_path / "queries.jsonl").write_text('{"_id": "q1", "text": "anchor"}\n')
    qrels = tmp_path / "qrels" / "dev.tsv"
    qrels.write_text("query-id\tcorpus-id\tscore\nq1\td1\t1\n")
    command = ["evaluate", index_name, "--beir", str(tmp_path), "--url", cluster.url]
    assert "no qrels for split 'test'" in failing(*command)
    command += ["--split", "dev"]
    assert "unknown system 'bm26': bm25" in failing(*command, "--systems", "bm26", code=2)
    said = failing(*command, "--systems", "bm25", "--measures", "nDGC@10", code=2)
    assert "unknown measure 'nDGC@10'" in said
    qrels.write_text("query-id\tcorpus-id\tscore\nq1\td1\t0.5\n")
    assert "dev.tsv:2: needed" in failing(*command, "--systems", "bm25")
    qrels.write_text("query-id\tcorpus-id\tscore\nq9\td1\t1\n")
    assert "have no text, such as 'q9'" in failing(*command, "--systems", "bm25")
