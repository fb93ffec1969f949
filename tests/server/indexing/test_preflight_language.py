"""A Chinese index: refused with the packaged encoder, before anything is written; whole with a user's."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from hybridr.cluster.connection import Cluster, path_of
from hybridr_cli import main
from support import chinese

pytestmark = [pytest.mark.node, pytest.mark.model]


@pytest.fixture(scope="module")
def index(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    name = f"t-zh-{uuid.uuid4().hex[:8]}"
    corpus = chinese.corpus(tmp_path_factory.mktemp("zh") / "corpus.jsonl")
    assert main(["load", str(corpus), "--index", name, "--url", cluster.url, "--quiet"]) == 0
    yield name
    for info in cluster.indices(f"{name}*"):
        cluster.request("DELETE", path_of(info.name))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return chinese.model_folder(tmp_path_factory.mktemp("model") / "theirs")


def run(cluster: Cluster, *arguments: str) -> int:
    return main([*arguments, "--url", cluster.url])


def everything(cluster: Cluster, index: str) -> object:
    return cluster.request("GET", f"/{index}*"), cluster.request("GET", "/_alias")


def test_the_packaged_encoder_is_refused_before_anything_is_written(
    cluster: Cluster, index: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = everything(cluster, index)
    for more in ([], ["--dry-run"], ["--in-place"]):
        assert run(cluster, "reindex", index, "--quiet", *more) == 1
        said = " ".join(capsys.readouterr().err.split())
        if not more:
            assert f"100% of the texts of '{index}' are in a language that the encoder does not know" in said
            assert "--encoder bge-small-zh-v1.5 or bge-base-zh-v1.5" in said
    assert everything(cluster, index) == before
    assert run(cluster, "inspect", index, "--quiet") == 0
    assert "--encoder bge-small-zh-v1.5" in " ".join(capsys.readouterr().out.split())


def test_what_was_forced_is_recorded_shown_and_refused_by_deploy(
    cluster: Cluster, index: str, capsys: pytest.CaptureFixture[str]
) -> None:
    alias = f"{index}-forced"
    assert run(cluster, "reindex", index, "--alias", alias, "--force", "--quiet") == 0
    made = cluster.index_info(alias)
    assert "does not know, most in 'zh'; it knows en" in made.record.warning
    capsys.readouterr()
    assert run(cluster, "status", index) == 0
    assert "WARNING, forced: 100% of the texts" in " ".join(capsys.readouterr().out.split())
    assert run(cluster, "deploy", alias, "--quiet") == 1
    assert "does not know" in capsys.readouterr().err
    assert cluster.index_info(alias).record == made.record
    assert run(cluster, "deploy", alias, "--force", "--quiet") == 0
    assert run(cluster, "remove", index, "--yes", "--quiet") == 0


def test_a_users_folder_searches_in_chinese_with_phrases_and_soft_terms(
    cluster: Cluster, index: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(cluster, "reindex", index, "--encoder", str(folder), "--quiet") == 0
    assert cluster.index_info(f"{index}-hybridr").record.warning == ""
    capsys.readouterr()
    assert run(cluster, "search", index, "成都火车时刻为什么这样慢", "--explain", "--json") == 0
    hits = json.loads(capsys.readouterr().out)["hits"]
    best = hits[0]
    assert chinese.texts()[int(best["doc_id"])].startswith("成都火车时刻为什么这样慢，")
    assert best["lexical_score"] > 0
    assert best["dense_score"] > max(hit["dense_score"] for hit in hits[1:])
    assert best["parts"]["phrases"] > 0
    assert best["parts"]["soft_terms"] > 0
    assert run(cluster, "deploy", index, "--quiet") == 0
