"""What people type wrong in their first week: one line says what is wrong, the next what to type instead.

More of them, which need servers or files of their own, are in `test_bad_input.py`.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

import hybridr_cli
from hybridr.cluster.connection import Cluster, path_of
from support.corpus import beir_folder, fill_index

pytestmark = [pytest.mark.node, pytest.mark.model]
INDEX, EMPTY, BARE = "t-mistakes", "t-mistakes-empty", "t-mistakes-bare"


@pytest.fixture(scope="module")
def place(
    cluster: Cluster, minilm_encoder_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Path]:
    """An index with vectors, one without, one without documents; a folder with judgements of others."""
    for name, count in ((INDEX, 12), (BARE, 12), (EMPTY, 0)):
        fill_index(cluster, name, count) if count else cluster.request("PUT", path_of(name))
    assert hybridr_cli.main(["reindex", INDEX, "--quiet", "--url", cluster.url]) == 0
    folder = tmp_path_factory.mktemp("mistakes")
    beir_folder(folder / "other")
    (folder / "other" / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq1\tx9\t1\n")
    (folder / "typo.toml").write_text("[search]\ndepht = 5\n")
    yield folder
    for info in cluster.indices("t-mistakes*"):
        cluster.request("DELETE", path_of(info.name))


MISTAKES = {
    "an index name with a typo": (
        "search t-mistaks x",
        1,
        "no index or alias 't-mistaks'",
        "did you mean t-mistakes",
    ),
    "the same, rolled back": ("rollback t-mistaks", 1, "no index or alias", "did you mean t-mistakes"),
    "the same, removed": ("remove t-mistaks --yes", 1, "no index or alias", "did you mean t-mistakes"),
    "the same, kept up to date": ("sync t-mistaks", 1, "no index or alias", "did you mean t-mistakes"),
    "no name": ("reindex '' --dry-run", 1, "no index or alias ''", "hybridr load"),
    "no such index": ("inspect elsewhere", 1, "no index or alias", "hybridr load FOLDER --index elsewhere"),
    "no vectors yet": (f"search {BARE} x", 1, "has no vectors for hybrid search", f"hybridr reindex {BARE}"),
    "no vectors to deploy": (f"deploy {BARE}", 1, "no complete vectors", f"hybridr reindex {BARE}"),
    "no vectors to verify": (f"verify {BARE}", 1, "has no vectors to verify", f"hybridr reindex {BARE}"),
    "nothing to roll back": (f"rollback {BARE}", 1, "nothing to roll back", f"hybridr reindex {BARE}"),
    "nothing to undeploy": (f"undeploy {INDEX}", 1, "nothing is deployed", f"hybridr deploy {INDEX}"),
    "an empty index": (f"reindex {EMPTY}", 1, "is empty", "hybridr load"),
    "judgements of another collection": (
        f"evaluate {INDEX} --beir other",
        1,
        "1 of 1 relevant documents of the qrels are not in",
        "hybridr load",
    ),
    "a split that is none": (
        f"evaluate {INDEX} --beir other --split dev",
        1,
        "split 'dev'",
        "splits there: test",
    ),
    "a folder that is no BEIR folder": (f"evaluate {INDEX} --beir .", 1, "no qrels", "qrels/test.tsv"),
    "no judgements at all": (
        f"evaluate {INDEX}",
        2,
        "no queries to search with",
        "--beir FOLDER, or --judgements",
    ),
    "nobody judged": (f"tune {INDEX} --judgements", 2, "nobody has judged", f"hybridr serve --index {INDEX}"),
    "a filter that is no JSON": (f"search {INDEX} x --filter year:2020", 2, "no JSON object", "--filter '{"),
    "a filter of no kind": (
        f"""search {INDEX} x --filter '{{"trem": {{"tags": "a"}}}}'""",
        1,
        "unknown query [trem]",
        "the filter",
    ),
    "no text": (f"search {INDEX} ''", 1, "empty", "at least one visible character"),
    "a model of the hub by half its name": (
        f"reindex {BARE} --encoder all-mpnet-base-v2",
        1,
        "no encoder of that name",
        "hybridr models",
    ),
    "faiss on an embedded node": (f"reindex {BARE} --engine faiss", 1, "would kill", "--engine lucene"),
    "a user without a password": (f"status {INDEX} --user me", 2, "without a password", "HYBRIDR_PASSWORD"),
    "an address that is none": (
        f"status {INDEX} --url localhost",
        2,
        "not a cluster address",
        "it looks like https://host:9200",
    ),
    "nobody at that address": (
        f"status {INDEX} --url http://127.0.0.1:9",
        1,
        "nothing answers",
        "hybridr node start",
    ),
    "removed with nobody to ask": (
        f"remove {INDEX}",
        2,
        "nothing was deleted: there is nobody to ask",
        "--yes",
    ),
    "a plugin that is not there": (
        f"deploy {INDEX} --way transparent",
        1,
        "needs the plugin opensearch-ml",
        "hybridr node start --with-ml",
    ),
    "a file that is not there": ("load nothing.jsonl --index new", 1, "no file", "BEIR folder"),
    "an index that is there": (f"load other --index {BARE}", 1, "exists", "--replace"),
    "a setting with a typo": (
        f"search {INDEX} x --config typo.toml",
        2,
        "did you mean 'depth'?",
        "hybridr settings",
    ),
    "a weight beyond one": (
        f"search {INDEX} x --dense-weight 1.5",
        2,
        "less than or equal to 1",
        "hybridr settings",
    ),
    "a boost of no field": (f"search {INDEX} x --boost log1p(sold,9):0.2", 2, "'sold' of", "there is price"),
}


def said_by(capsys: pytest.CaptureFixture[str], command: str, code: int) -> list[str]:
    """Run a command that must fail, and give its lines."""
    capsys.readouterr()
    found = hybridr_cli.main(shlex.split(command))
    shown = capsys.readouterr()
    assert (found, "Traceback" in shown.err) == (code, False), shown
    return [line for line in shown.err.splitlines() if not line.startswith("warning: ")]


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_answered_by_what_to_type(
    cluster: Cluster,
    place: Path,
    name: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    command, code, wrong, instead = MISTAKES[name]
    monkeypatch.setenv("HYBRIDR_URL", cluster.url)
    monkeypatch.chdir(place)
    before = {info.name for info in cluster.indices("t-mistakes*")}
    error, hint = said_by(capsys, f"{command} --quiet", code)
    assert error.startswith("error: ")
    assert wrong in error
    assert hint.startswith("hint: ")
    assert instead in hint
    assert {info.name for info in cluster.indices("t-mistakes*")} == before


def test_options_are_taken_where_people_put_them(
    cluster: Cluster, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for command in (
        f"search {INDEX} anchor --k 2 --url {cluster.url} --json",
        f"search {INDEX} anchor -k 2 --url {cluster.url} --json",
        f"--url {cluster.url} search {INDEX} anchor -k 2 --json",
        f"--json --url={cluster.url} search -k 2 {INDEX} -- anchor",
    ):
        assert hybridr_cli.main(shlex.split(command)) == 0
        hits = json.loads(capsys.readouterr().out)["hits"]
        assert len(hits) == 2, command
    for command in ("--nope search x y", "search x y --nope", "--url"):
        assert "No such option" in "".join(said_by(capsys, command, 2))
    assert "Did you mean 'reindex'" in "".join(said_by(capsys, f"reidnex {INDEX}", 2))


def test_the_same_reindex_again_encodes_nothing(
    cluster: Cluster, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert hybridr_cli.main(["reindex", INDEX, "--url", cluster.url]) == 0
    assert "12 documents, 0 encoded, 12 were there already" in capsys.readouterr().out


def test_what_a_dry_run_and_a_refusal_leave_is_not_called_deleted(
    cluster: Cluster, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for command, code in (("--dry-run", 0), ("", 2)):
        assert hybridr_cli.main(shlex.split(f"remove {INDEX} {command} --url {cluster.url}")) == code
        shown = capsys.readouterr().out
        assert f"index {INDEX}-hybridr-1: to be deleted" in shown
        assert ": deleted" not in shown
