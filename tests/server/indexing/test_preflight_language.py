"""A Chinese index: refused with the packaged encoder, before anything is written; whole with a user's."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from hybridr.cluster.connection import Cluster
from hybridr_cli import main
from support import chinese
from support.corpus import drop_indices

pytestmark = [pytest.mark.node, pytest.mark.model]


@pytest.fixture(scope="module")
def index(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    name = f"t-zh-{uuid.uuid4().hex[:8]}"
    corpus = chinese.corpus(tmp_path_factory.mktemp("zh") / "corpus.jsonl")
    assert main(["load", str(corpus), "--index", name, "--url", cluster.url, "--quiet"]) == 0
    yield name
    drop_indices(cluster, f"{name}*")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return chinese.model_folder(tmp_path_factory.mktemp("model") / "theirs")


def everything(cluster: Cluster, index: str) -> object:
    return cluster.request("GET", f"/{index}*"), cluster.request("GET", "/_alias")


def test_the_packaged_encoder_is_refused_before_anything_is_written(cluster, index, cli):
    before = everything(cluster, index)
    for more in ("", "--dry-run", "--in-place"):
        said = " ".join(cli(cluster, f"reindex {index} --quiet {more}", code=1).err.split())
        if not more:
            assert f"100% of the texts of '{index}' are in a language that the encoder does not know" in said
            assert "--encoder bge-small-zh-v1.5 or bge-base-zh-v1.5" in said
    assert everything(cluster, index) == before
    said = " ".join(cli(cluster, f"inspect {index} --quiet").out.split())
    assert "--encoder bge-small-zh-v1.5" in said


def test_what_was_forced_is_recorded_shown_and_refused_by_deploy(cluster, index, cli):
    alias = f"{index}-forced"
    cli(cluster, f"reindex {index} --alias {alias} --force --quiet")
    made = cluster.index_info(alias)
    assert "does not know, most in 'zh'; it knows en" in made.record.warning
    said = " ".join(cli(cluster, f"status {index}").out.split())
    assert "WARNING, forced: 100% of the texts" in said
    assert "does not know" in cli(cluster, f"deploy {alias} --quiet", code=1).err
    assert cluster.index_info(alias).record == made.record
    cli(cluster, f"deploy {alias} --force --quiet")
    cli(cluster, f"remove {index} --yes --quiet")


def test_a_users_folder_searches_in_chinese_with_soft_terms_and_without_phrases(cluster, index, folder, cli):
    cli(cluster, f"reindex {index} --encoder {folder} --quiet")
    assert cluster.index_info(f"{index}-hybridr").record.warning == ""
    hits = cli(cluster, f"search {index} 成都火车时刻为什么这样慢 --explain --json").json["hits"]
    best = hits[0]
    assert chinese.texts()[int(best["doc_id"])].startswith("成都火车时刻为什么这样慢，")
    assert best["lexical_score"] > 0
    assert best["dense_score"] > max(hit["dense_score"] for hit in hits[1:])
    assert best["parts"]["soft_terms"] > 0
    assert "phrases" not in best["parts"], "words of the analyser cjk overlap"
    cli(cluster, f"deploy {index} --quiet")
