"""`hybridr compare` on a real node."""

from __future__ import annotations

import pytest

from hybridr_cli import main
from support.corpus import fill_index


def test_encoders_are_compared_and_nothing_is_written(cluster, index_name, minilm, cli):
    fill_index(cluster, index_name, 120)
    before = cluster.index_info(index_name)
    command = ["compare", index_name, "--encoders", str(minilm), "--url", cluster.url]
    found = cli.typed([*command, "--json"]).json
    assert (found["documents"], found["sampled"], found["judged"]) == (120, 120, False)
    [result] = found["encoders"]
    assert found["best"] == found["choice"] == str(minilm)
    assert 0 < result["dense"]["low"] <= result["dense"]["mean"] <= 1
    assert result["seconds"] == pytest.approx(120 / result["documents_per_second"])
    assert result["vector_bytes"] == 120 * 384 * 4
    assert cluster.index_info(index_name) == before
    shown = cli.typed(command).out
    assert "120 of 120 documents" in shown
    assert f"next       hybridr reindex {index_name} --encoder {minilm}" in shown


def test_no_encoder_is_a_wrong_setting(cluster, index_name):
    assert main(["compare", index_name, "--encoders", ",", "--url", cluster.url]) == 2
