"""Negatives mined by the cluster's BM25."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import hybridr_cli
from hybridr import load
from hybridr.adaptation.judged import read_judged_beir
from hybridr.cluster.connection import Cluster
from hybridr.cluster.settings import LoadSettings
from support.rem_training import write_toy

pytestmark = pytest.mark.node


def test_negatives_of_an_index(
    cluster: Cluster, index_name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_toy(tmp_path / "beir")
    load(cluster, folder, LoadSettings(index=index_name))
    mine = ["rem", "negatives", "--beir", str(folder), "--mined", "5", "--json"]
    outs = {}
    for name, more in (("here", []), ("cluster", ["--index", index_name, "--url", cluster.url])):
        assert hybridr_cli.main([*mine, "--out", str(tmp_path / name), *more]) == 0
        outs[name] = json.loads(capsys.readouterr().out)
    lines = {name: (tmp_path / name / "negatives.tsv").read_text().splitlines() for name in outs}
    judged = read_judged_beir(folder)
    common = 0
    for here, there in zip(lines["here"], lines["cluster"], strict=True):
        query_id, listed = there.split("\t")
        assert not set(listed.split()) & set(judged.positives[query_id])
        common += len(set(listed.split()) & set(here.split("\t")[1].split()))
    assert common > 0.8 * outs["here"]["documents"]  # they differ in lengths, which Lucene rounds
