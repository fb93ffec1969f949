"""What people type wrong in their first week: one line says what is wrong, the next what to type instead.

More of them, which need servers or files of their own, are in `test_bad_input.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import hybridr_cli
from hybridr.cluster.connection import Cluster, path_of
from support.corpus import beir_folder, drop_indices, fill_index

INDEX, EMPTY, BARE, NUMBERS = "t-mistakes", "t-mistakes-empty", "t-mistakes-bare", "t-mistakes-numbers"


@pytest.fixture(scope="module")
def place(cluster: Cluster, minilm: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """An index with vectors, one without, one without documents; a folder with judgements of others."""
    for name, count in ((INDEX, 12), (BARE, 12), (EMPTY, 0)):
        fill_index(cluster, name, count) if count else cluster.request("PUT", path_of(name))
    cluster.request("PUT", path_of(NUMBERS, "_doc", "1"), {"n": 1}, {"refresh": "true"})
    cluster.request("PUT", path_of(NUMBERS, "_mapping"), {"properties": {"id": {"type": "keyword"}}})
    assert hybridr_cli.main(["reindex", INDEX, "--quiet", "--url", cluster.url]) == 0
    folder = tmp_path_factory.mktemp("mistakes")
    beir_folder(folder / "other")
    (folder / "other" / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq1\tx9\t1\n")
    (folder / "typo.toml").write_text("[search]\ndepht = 5\n")
    yield folder
    drop_indices(cluster, "t-mistakes*")


MISTAKES = [
    ("search t-mistaks x", 1, "no index or alias 't-mistaks'", "did you mean t-mistakes"),
    ("rollback t-mistaks", 1, "no index or alias", "did you mean t-mistakes"),
    ("remove t-mistaks --yes", 1, "no index or alias", "did you mean t-mistakes"),
    ("sync t-mistaks", 1, "no index or alias", "did you mean t-mistakes"),
    ("reindex '' --dry-run", 1, "no index or alias ''", "hybridr load"),
    ("inspect elsewhere", 1, "no index or alias", "hybridr load FOLDER --index elsewhere"),
    (f"search {BARE} x", 1, "has no vectors for hybrid search", f"hybridr reindex {BARE}"),
    (f"deploy {BARE}", 1, "no complete vectors", f"hybridr reindex {BARE}"),
    (f"verify {BARE}", 1, "has no vectors to verify", f"hybridr reindex {BARE}"),
    (f"rollback {BARE}", 1, "nothing to roll back", f"hybridr reindex {BARE}"),
    (f"undeploy {INDEX}", 1, "nothing is deployed", f"hybridr deploy {INDEX}"),
    (f"reindex {EMPTY}", 1, "is empty", "hybridr load"),
    (f"adapt --index {EMPTY} --out out", 1, "is empty", "hybridr load"),
    (f"reindex {NUMBERS}", 1, "has no text field", "--fields id"),
    (
        f"evaluate {INDEX} --beir other",
        1,
        "1 of 1 relevant documents of the qrels are not in",
        "hybridr load",
    ),
    (f"evaluate {INDEX} --beir other --split dev", 1, "no qrels for split 'dev'", "splits there: test"),
    (f"evaluate {INDEX} --beir .", 1, "no qrels", "qrels/test.tsv"),
    (f"evaluate {INDEX}", 2, "no queries to search with", "--beir FOLDER, or --judgements"),
    (f"tune {INDEX} --judgements", 2, "nobody has judged", f"hybridr serve --index {INDEX}"),
    (f"search {INDEX} x --filter year:2020", 2, "not a JSON object", "--filter '{"),
    (f"""search {INDEX} x --filter '{{"trem": {{}}}}'""", 1, "unknown query [trem]", "the filter"),
    (f"search {INDEX} ''", 1, "empty", "at least one visible character"),
    (f"reindex {BARE} --encoder all-mpnet-base-v2", 1, "no encoder of that name", "hybridr models"),
    (f"reindex {BARE} --engine faiss", 1, "would kill this embedded node", "--engine lucene"),
    (f"status {INDEX} --user me", 2, "no password for user 'me'", "HYBRIDR_PASSWORD"),
    (f"status {INDEX} --url localhost", 2, "not a cluster address", "it looks like https://host:9200"),
    (
        f"status {INDEX} --url https://me:hunter2@localhost:9200",
        2,
        "holds a user or password",
        "HYBRIDR_USER",
    ),
    (f"status {INDEX} --url http://127.0.0.1:9", 1, "127.0.0.1:9: Connection refused", "hybridr node start"),
    (f"status {INDEX} --url http://no-such.invalid:9", 1, "nothing answers at http://no-such.invalid:9", ""),
    (f"remove {INDEX}", 2, "nothing was deleted: there is no terminal to ask on", "--yes"),
    (f"deploy {INDEX} --way transparent", 1, "needs the plugin opensearch-ml", "node start --with-ml"),
    ("load nothing.jsonl --index new", 1, "no file", "BEIR folder"),
    (f"load other --index {BARE}", 1, "exists", "--replace"),
    (f"search {INDEX} x --config typo.toml", 2, "did you mean 'depth'?", "hybridr settings"),
    (f"search {INDEX} x --dense-weight 1.5", 2, "less than or equal to 1, got 1.5", "hybridr settings"),
    (f"search {INDEX} x --boost log1p(sold,9):0.2", 2, "'sold' of", "suitable fields: price"),
]


@pytest.mark.parametrize(("command", "code", "wrong", "instead"), MISTAKES, ids=[one[0] for one in MISTAKES])
def test_a_mistake_is_answered_by_what_to_type(
    cluster, place, cli, monkeypatch, command, code, wrong, instead
):
    monkeypatch.setenv("HYBRIDR_URL", cluster.url)
    monkeypatch.chdir(place)
    before = {info.name for info in cluster.indices("t-mistakes*")}
    error, hint = lines_of(cli(None, f"{command} --quiet", code=code).err)
    assert error.startswith("error: ")
    assert wrong in error
    assert hint.startswith("hint: ")
    assert instead in hint
    assert "hunter2" not in error + hint
    assert {info.name for info in cluster.indices("t-mistakes*")} == before


def lines_of(said: str) -> list[str]:
    return [line for line in said.splitlines() if not line.startswith("warning: ")]


def test_options_are_taken_where_people_put_them(cluster, place, cli):
    for command in (
        f"search {INDEX} anchor --k 2 --url {cluster.url} --json",
        f"search {INDEX} anchor -k 2 --url {cluster.url} --json",
        f"--url {cluster.url} search {INDEX} anchor -k 2 --json",
        f"--json --url={cluster.url} search -k 2 {INDEX} -- anchor",
    ):
        assert len(cli(None, command).json["hits"]) == 2, command
    for command in ("--nope search x y", "search x y --nope", "--url"):
        assert "No such option" in cli(None, command, code=2).err
    assert "Did you mean 'reindex'" in cli(None, f"reidnex {INDEX}", code=2).err


def test_the_same_reindex_again_encodes_nothing(cluster, place, cli):
    assert "12 documents, 0 encoded, 12 were there already" in cli(cluster, f"reindex {INDEX}").out
