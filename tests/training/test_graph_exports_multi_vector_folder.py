"""Multi-vector encoders give the vectors of `assemble`, without torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hybridr.encoders.graph_folders import MultiVectorEncoder
from hybridr.errors import ModelError
from hybridr_cli import main
from support.golden_ddr import DDR, INPUTS, SOURCE, golden, rem_of
from support.golden_ddr import colbert as exported

TEXTS = [*INPUTS["passages"], "the river, and the sea!", "a bank . of the river"]
QUERIES = ["the virus and the vaccine", "what is the price of a house ?", "a"]


def scores(queries: list[Any], documents: list[Any]) -> np.ndarray:
    return np.array(
        [[(np.asarray(q) @ np.asarray(d).T).max(axis=1).sum() for d in documents] for q in queries]
    )


def test_a_folder_gives_the_vectors_of_the_ranker() -> None:
    found, ranker = MultiVectorEncoder(exported()), golden("colbert")
    for text in [*TEXTS, *QUERIES, ""]:
        [wanted] = ranker.encode_documents([text])  # type: ignore[attr-defined]
        np.testing.assert_allclose(found.encode_documents([text])[0], wanted, atol=1e-5)
        np.testing.assert_allclose(found.encode_queries([text])[0], wanted, atol=1e-5)
    assert found.fingerprint == ranker.fingerprint


def test_a_folder_scores_as_the_authors_code() -> None:
    name = "colbert__dam_source__rem_colbert_lora192-pa4__merged__scores.npy"
    encoder = MultiVectorEncoder(exported())
    encoder.max_tokens = 24
    queries = encoder.encode_queries(INPUTS["queries"])
    encoder.max_tokens = 48
    found = scores(queries, encoder.encode_documents(INPUTS["passages"]))
    np.testing.assert_allclose(found, np.load(DDR / "expected" / name), atol=1e-4)


def test_the_command_exports_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rem = rem_of("colbert_lora192-pa4")
    joined = ["export", "--dam", str(SOURCE), "--rem", str(rem), "--ranker", "colbert"]
    assert main([*joined, "--out", str(tmp_path / "out")]) == 0
    assert f"--token-encoder {tmp_path / 'out'}" in capsys.readouterr().out
    assert main([*joined, "--out", str(tmp_path / "out"), "--precision", "int8"]) == 1
    assert "exported in fp32" in capsys.readouterr().err
    with pytest.raises(ModelError, match="holds no multi vector encoder of hybridr"):
        MultiVectorEncoder(SOURCE)
