"""Pair scorers give what `assemble` and transformers give for a query and a document, without torch."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hybridr import load_encoder
from hybridr.encoders import graph_folders
from hybridr.encoders.export.exporting import export
from hybridr.encoders.graph_folders import PairScorer
from hybridr.errors import DataError, ModelError
from hybridr.files.local import read_manifest
from hybridr_cli import main
from support.golden_ddr import DDR, INPUTS, SOURCE, golden, rem_of
from support.golden_ddr import cross_encoder as exported
from support.pairs import written

PAIRS = [
    (query, text)
    for query in ["the river and the sea", "", "a bank " * 40]
    for text in [*INPUTS["passages"], "", "stone by stone " * 60]
]


def test_a_folder_scores_pairs_as_the_ranker_does() -> None:
    ranker, scorer = golden("rerank"), PairScorer(exported())
    np.testing.assert_allclose(scorer.score(PAIRS), ranker.score(PAIRS), atol=1e-5)  # type: ignore[attr-defined]
    assert scorer.fingerprint == ranker.fingerprint
    assert np.ptp(scorer.score(PAIRS)) > 0.1
    assert (read_manifest(scorer.folder) or {})["parity"]["max_abs_difference"] <= 1e-5


def test_a_folder_scores_pairs_as_the_authors_code() -> None:
    name = "rerank__dam_source__rem_rerank_lora192-pa4__remembed.npy"
    scorer = PairScorer(exported())
    scorer.max_tokens = 48
    pairs = [tuple(pair) for pair in INPUTS["pairs"]]
    np.testing.assert_allclose(scorer.score(pairs), np.load(DDR / "expected" / name)[:, 0], atol=1e-5)


@pytest.mark.parametrize("kind", ["bert", "distilbert", "electra"])
def test_a_folder_of_transformers_gives_its_own_logits(kind: str, tmp_path: Path) -> None:
    import torch
    import transformers

    model = written(tmp_path, kind)
    read = transformers.AutoTokenizer.from_pretrained(tmp_path / "model")
    given = read(
        *map(list, zip(*PAIRS, strict=True)),
        padding=True,
        truncation=True,
        return_tensors="pt",
        max_length=64,
    )
    with torch.inference_mode():
        wanted = model(**given).logits[:, 0].numpy()
    scorer = PairScorer(export(tmp_path / "model", tmp_path / "out"))
    np.testing.assert_allclose(scorer.score(PAIRS), wanted, atol=1e-4)
    assert np.ptp(wanted) > 0.1


def test_int8_is_near_and_goes_with_its_folder() -> None:
    scorer = PairScorer(exported("int8"))
    exact = PairScorer(scorer.folder, "fp32").score(PAIRS)
    assert 0 < np.abs(scorer.score(PAIRS) - exact).max()
    assert np.corrcoef(scorer.score(PAIRS), exact)[0, 1] > 0.99
    assert (read_manifest(scorer.folder) or {})["parity"]["int8_correlation"] > 0.9


def test_what_is_not_done_in_time_has_no_score(monkeypatch: pytest.MonkeyPatch) -> None:
    scorer = PairScorer(exported())
    assert np.isnan(scorer.score(PAIRS, within_s=1e-9)).all()
    run, begun = graph_folders.session_outputs, []

    def first_only(*batch: Any) -> Any:
        begun.append(batch)
        if len(begun) > 1:
            time.sleep(0.3)
        return run(*batch)

    monkeypatch.setattr(graph_folders, "session_outputs", first_only)
    scorer._threads = 1
    many = PAIRS * 20
    found = scorer.score(many, within_s=0.2)
    done = ~np.isnan(found)
    assert 0 < done.sum() < len(many)
    assert done[: done.sum()].all(), "the first pairs come first"
    np.testing.assert_allclose(found[done], PairScorer(exported()).score(many[: done.sum()]), atol=1e-5)


def test_the_command_exports_both(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written(tmp_path)
    out = tmp_path / "a"
    assert main(["export", str(tmp_path / "model"), "--out", str(out)]) == 0
    assert f"rerank_settings = {{folder = '{out}'}}" in capsys.readouterr().out
    rem = rem_of("rerank_lora192-pa4")
    joined = ["export", "--dam", str(SOURCE), "--rem", str(rem), "--ranker", "rerank"]
    assert main([*joined, "--out", str(out), "--precision", "int8", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["pair_scorer"]["precision"] == "int8"
    with pytest.raises(ModelError, match=r"is not an encoder of hybridr"):
        load_encoder(out)


def test_what_is_no_ranker_is_refused(tmp_path: Path) -> None:
    written(tmp_path, labels=3)
    with pytest.raises(ModelError, match="classifies texts into 3 classes"):
        export(tmp_path / "model", tmp_path / "out")
    record = json.loads((SOURCE / "config.json").read_text())
    bare = shutil.copytree(SOURCE, tmp_path / "bare", copy_function=shutil.copyfile)
    named = {"architectures": ["BertForSequenceClassification"], "id2label": {"0": "LABEL_0"}}
    (bare / "config.json").write_text(json.dumps(record | named))
    with pytest.raises(ModelError, match="is not a re-ranker: it lacks 4 weights, such as bert.pooler"):
        export(bare, tmp_path / "out")
    with pytest.raises(ModelError, match="holds no pair scorer of hybridr"):
        PairScorer(SOURCE)
    with pytest.raises(ModelError, match="does not exist"):
        PairScorer(tmp_path / "nowhere")
    with pytest.raises(DataError, match="a string is needed"):
        PairScorer(exported()).score([("a", None)])  # type: ignore[list-item]
    assert not (tmp_path / "out").exists()
