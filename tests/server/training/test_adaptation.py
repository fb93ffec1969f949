"""`hybridr adapt` on the documents of a live index, from the command line."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from hybridr import AdaptSettings, load_encoder
from hybridr.cluster.connection import Cluster, path_of
from hybridr.encoders.export.exporting import export
from hybridr.training.adaptation import adapt
from support.corpus import bulk, create, put
from support.pythons import run_without_torch
from support.tiny import WORDS, tiny_corpus, tiny_retriever


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(export(tiny_retriever(), tmp_path_factory.mktemp("base") / "tiny"))


@pytest.fixture(scope="module", autouse=True)
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, object]]:
    """Name a tiny second retriever, in the environment of commands too."""
    folder = export(tiny_retriever(seed=5), tmp_path_factory.mktemp("second") / "tiny")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HYBRIDR_ADAPT_OBJECTIVE_SETTINGS", f"second={folder},held_out=20")
        yield {"second": str(folder), "held_out": 20}


def put_corpus(cluster: Cluster, index: str, count: int = 150) -> None:
    properties = {"title": {"type": "text"}, "text": {"type": "text"}}
    create(cluster, index, properties, {"number_of_replicas": 0, "number_of_shards": 2})
    documents = {one.doc_id: {"title": one.title, "text": one.text} for one in tiny_corpus(count)}
    if documents:
        put(cluster, index, documents)


@pytest.fixture(scope="module")
def few(cluster: Cluster) -> Iterator[str]:
    """Give an index of too few documents."""
    put_corpus(cluster, "t-few", 20)
    yield "t-few"
    cluster.request("DELETE", path_of("t-few"))


def test_adapt_without_torch_then_reindex(cluster, index_name, base, tmp_path, cli, monkeypatch):
    put_corpus(cluster, index_name)
    out = tmp_path / "encoder"
    command = ["adapt", "--index", index_name, "--out", str(out), "--base", base, "--url", cluster.url]
    process = run_without_torch(*command, "--force", "--json")
    assert process.returncode == 0, process.stderr
    result = json.loads(process.stdout)
    assert (result["folder"], result["objective"], result["steps"]) == (str(out), "ensemble", 0)
    assert result["promoted"]
    assert [row["name"] for row in result["gate"]["rows"]][-1] == "hybrid top 10 kept"
    assert load_encoder(out).dim == load_encoder(base).dim
    shown = cli.typed([*command, "--force"]).out
    assert "from an earlier run" in shown
    assert f"hybridr reindex {index_name} --encoder {out}" in shown
    reindexing = ["reindex", index_name, "--url", cluster.url, "--json"]  # takes the encoder just made
    cli.typed(reindexing)
    destination = cluster.index_info(f"{index_name}-hybridr")
    assert destination.record.encoder == load_encoder(out).fingerprint
    assert cluster.count(destination.name) == 150
    refused = cli.typed(
        [*command, "--force", "--max-documents", "120"], 1
    )  # it replaced the encoder of these vectors
    assert "its searches need it" in refused.err
    assert destination.record.encoder == load_encoder(out).fingerprint
    assert cli.typed([*command, "--force"]).out == shown
    trained = run_without_torch(*command, "--rem", base)
    assert trained.returncode == 1
    assert "'torch'" in trained.stderr
    assert "train" in trained.stderr


@pytest.mark.parametrize(("count", "said"), [(40, "by 40 judged queries"), (20, "30 would decide")])
def test_judged_queries_decide_where_there_are_enough(cluster, index_name, base, tmp_path, cli, count, said):
    put_corpus(cluster, index_name)
    (tmp_path / "qrels").mkdir()
    queries, qrels = [], ["query-id\tcorpus-id\tscore"]
    for number, document in enumerate(tiny_corpus(150)[:count]):
        queries.append(json.dumps({"_id": f"q{number}", "text": " ".join(document.text.split()[:3])}))
        qrels.append(f"q{number}\t{document.doc_id}\t1")
    (tmp_path / "queries.jsonl").write_text("\n".join(queries))
    (tmp_path / "qrels" / "test.tsv").write_text("\n".join(qrels))
    command = ["adapt", "--index", index_name, "--out", str(tmp_path / "out"), "--base", base]
    command += ["--url", cluster.url, "--beir", str(tmp_path), "--strength", "0"]
    shown = cli.typed(command)
    assert said in shown.out + shown.err
    assert ("no gain is shown" in shown.out) is (count >= 30), "a share of 0 changes nothing"


def test_the_index_gives_the_same_encoder_as_its_documents(cluster, index_name, base, tmp_path, own):
    put_corpus(cluster, index_name)

    def settings(name: str) -> AdaptSettings:
        return AdaptSettings(out=tmp_path / name, base=base, max_tokens=64, objective_settings=own)

    read = adapt((cluster, index_name), settings("read"))
    given = adapt(tiny_corpus(150), settings("given"))
    assert load_encoder(read.folder).fingerprint == load_encoder(given.folder).fingerprint
    assert read.gate == given.gate


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--index", "no-such-index"], 1, "no-such-index"),
        (["--index", "INDEX", "--strength", "2"], 2, "strength"),
        (["--index", "INDEX", "--base", "no-such-folder"], 1, "no-such-folder does not exist"),
        (["--index", "INDEX", "--fields", "nothing"], 1, "nothing"),
        (["--index", "INDEX", "--queries", "no-such-log"], 1, "the query log no-such-log cannot be read"),
        (["--index", "INDEX"], 1, "different texts; 40 are needed"),
        ([], 2, "--index"),
    ],
)
def test_bad_input_is_a_clear_error(cluster, few, base, tmp_path, cli, arguments, code, message):
    given = [few if word == "INDEX" else word for word in arguments]
    defaults = [] if "--base" in given else ["--base", base]
    said = cli.typed(["adapt", "--url", cluster.url, "--out", str(tmp_path / "out"), *defaults, *given], code)
    assert message in said.err
    assert said.out == ""
    assert not (tmp_path / "out" / "manifest.json").exists()


def test_documents_with_empty_and_foreign_values_are_left_out(cluster, index_name, base, tmp_path, own):
    put_corpus(cluster, index_name)
    odd: list[dict[str, object]] = []
    for number, text in enumerate(("", "   ", None, [], [WORDS[0], WORDS[1]])):
        odd += [{"index": {"_id": f"odd{number}"}}, {"text": text}]
    bulk(cluster, index_name, odd)
    found = adapt(
        (cluster, index_name),
        AdaptSettings(out=tmp_path / "out", base=base, max_tokens=64, objective_settings=own),
    )
    assert found.documents == 151 - found.gate.held_out
