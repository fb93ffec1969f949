"""The study "scale" on a real node, on a few hundred documents; its figures belong to benchmarks/."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import run
from hybridr.cluster.connection import Cluster
from hybridr_bench.corpora import word_windows
from studies import scale
from support.corpus import beir_folder

DOCUMENTS = 200


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return beir_folder(tmp_path_factory.mktemp("scale") / "beir", 400)


def test_a_case_that_was_cut_off_goes_on_and_is_told_whole(cluster, folder, tmp_path, monkeypatch):
    places = ["--runs", str(tmp_path / "runs"), "--results", str(tmp_path / "results"), "--url", cluster.url]
    command = ["scale", str(folder), "--documents", str(DOCUMENTS), "--queries", "1", *places]
    whole, result = scale.in_a_process, tmp_path / "results" / f"{DOCUMENTS}-threads-float.json"
    done: list[str] = []

    def until_verify(given: object, runs: Path, where: Cluster, step: str) -> object:
        if step == "verify" and "verify" not in done:
            done.append(step)
            raise KeyboardInterrupt
        done.append(step)
        return whole(given, runs, where, step)

    monkeypatch.setattr(scale, "in_a_process", until_verify)
    assert run.main(command) == run.INTERRUPTED
    assert not result.exists()
    assert run.main(command) == 0
    assert done == ["load", "reindex", "change", "sync", "verify", "verify", "search"]
    found = json.loads(result.read_text())
    steps = found["steps"]
    assert steps["load"]["documents"] == steps["reindex"]["encoded"] == DOCUMENTS
    assert (steps["sync"]["copied"], steps["sync"]["deleted"]) == (2, 1)
    assert steps["verify"]["documents"] == DOCUMENTS
    held = steps["reindex"]["index"]["bytes"]
    assert held["vectors"] >= 4 * 384 * DOCUMENTS
    assert min(held["graph"], held["source"], held["words"]) > 0
    assert [lane["requests"] for lane in steps["search"]["lanes"]] == [3] * 7
    assert all(step["seconds"] > 0 and step["peak_mb"] > 50 and step["tries"] == 1 for step in steps.values())
    assert not cluster.indices("hybridr-scale-*")
    assert run.main(command) == 0
    assert len(done) == 7, "what is finished is left"
    assert f"| {DOCUMENTS} | threads | float |" in scale.render({"one": found})


def test_no_two_documents_are_alike(folder):
    texts = list(word_windows(folder, 12, 10))
    assert len(texts) == len(set(texts)) > DOCUMENTS
    first, second = (text.split() for text in texts[:2])
    assert len(first) == len(second) == 12
    assert first[10:] == second[:2]
