"""MoDIR against a live index."""

from __future__ import annotations

import hybridr_cli
from hybridr.cluster.loading import load
from hybridr.cluster.settings import LoadSettings
from hybridr.files.local import read_manifest
from support.dam_training import tiny_dam
from support.rem_training import set_small, write_toy


def test_vectors_are_made_invariant_to_an_index(cluster, index_name, tmp_path, capsys, cli, monkeypatch):
    set_small(monkeypatch)
    labels, target = write_toy(tmp_path / "labels"), write_toy(tmp_path / "target", documents=60)
    load(cluster, target, LoadSettings(index=index_name))
    given = ["--beir", str(labels), "--dam", str(tiny_dam(tmp_path / "dam")), "--out", str(tmp_path / "rem")]
    small = ["--steps", "2", "--url", cluster.url]
    method = cli.typed(["rem", "train", *given, *small, "--invariant-to", index_name, "--json"]).json[
        "method"
    ]
    assert (method["name"], method["target"], method["target_documents"]) == ("modir", index_name, 60)
    assert (read_manifest(tmp_path / "rem") or {})["rem"]["method"] == method
    missing = ["--invariant-to", "no-such-index"]
    assert hybridr_cli.main(["rem", "train", *given, *small, *missing]) != 0
    assert "no-such-index" in capsys.readouterr().err
