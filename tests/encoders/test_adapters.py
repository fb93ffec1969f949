"""Adapters: a second retriever, fitted to documents, judged by the gate, found again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hybridr import load_encoder
from hybridr.encoders.adapters import DOCUMENT_TOKENS
from hybridr.encoders.adapters.ensemble import Ensemble, EnsembleSettings
from hybridr.encoders.contract import Encoder
from hybridr.encoders.export.exporting import export, open_in_onnx
from hybridr.encoders.export.weights import open_without_torch
from hybridr.errors import ModelError, SettingsError
from hybridr.records import silent
from hybridr.training.adaptation import adapt
from hybridr.training.settings import AdaptSettings
from support.tiny import tiny_corpus, tiny_retriever

DOCUMENTS = tiny_corpus(120)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    folder = tmp_path_factory.mktemp("two")
    return str(export(tiny_retriever(), folder / "one")), str(
        export(tiny_retriever(seed=5), folder / "other")
    )


def settings(folders: tuple[str, str], out: Path, **changes: Any) -> AdaptSettings:
    base, second = folders
    values: dict[str, Any] = {"out": out, "base": base, "objective": "ensemble", "force": True}
    own = {"second": second, "held_out": 20} | changes.pop("own", {})
    return AdaptSettings(**(values | changes), objective_settings=own)


def test_the_encoder_is_fitted_to_the_documents_and_as_long_as_the_base(tmp_path, folders):
    done = adapt(DOCUMENTS, settings(folders, tmp_path / "out"))
    assert (done.promoted, done.objective, done.steps, done.reused) == (True, "ensemble", 0, False)
    assert done.loss_end < done.unseen_loss_end < 0.5  # type: ignore[operator]
    encoder = load_encoder(done.folder)
    assert encoder.dim == 32
    one, other = (open_without_torch(folder) for folder in folders)
    texts = [document.contents for document in DOCUMENTS[:10]]
    both = [retriever.encode_documents(texts) for retriever in (one, other)]
    near = encoder.encode_documents(texts) @ encoder.encode_documents(texts).T
    apart = [np.corrcoef(near.ravel(), (part @ part.T).ravel())[0, 1] for part in both]
    assert apart[0] > apart[1] > 0.2  # shares .7 and .3
    said = (done.folder / "README.md").read_text(encoding="utf-8")
    assert "Fitted without labels to 100 documents" in said


def test_documents_that_it_was_fitted_to_are_not_encoded_again(folders: tuple[str, str]) -> None:
    adapter = Ensemble(open_without_torch(folders[0]), EnsembleSettings(second=folders[1]))
    texts = [document.contents for document in DOCUMENTS]
    adapter.fit(texts[:100], texts[100:110], 0.3, silent)
    limit = min(DOCUMENT_TOKENS, adapter.side_by_side.max_tokens)
    pairs: list[tuple[Any, Encoder]] = [
        (adapter.encoder, open_in_onnx(adapter.candidate)),
        (adapter.old_encoder, open_in_onnx(adapter.first)),
    ]
    asked_for = [texts[3], texts[115], texts[105], texts[3], texts[116]]

    def fail(*_: Any, **__: Any) -> Any:
        raise AssertionError("encoded again")

    for remembering, plain in pairs:
        for tokens in (limit, 8, None):
            both = [part.encode_documents(asked_for, max_tokens=tokens) for part in (remembering, plain)]
            np.testing.assert_allclose(*both, atol=1e-6)
            both = [part.encode_queries(asked_for, max_tokens=tokens) for part in (remembering, plain)]
            np.testing.assert_allclose(*both, atol=1e-6)
        assert remembering.encode_documents([], max_tokens=limit).shape == (0, remembering.dim)
        remembering._both._opened.encode_documents = fail
        assert len(remembering.encode_queries(asked_for, max_tokens=limit)) == 5
        assert len(remembering.encode_documents(texts[:110], max_tokens=limit)) == 110


def test_few_documents_keep_all_dimensions(tmp_path: Path, folders: tuple[str, str]) -> None:
    done = adapt(DOCUMENTS[:60], settings(folders, tmp_path / "out"))
    assert load_encoder(done.folder).dim == 64
    assert adapt(DOCUMENTS, settings(folders, tmp_path / "out", own={"dim": 16})).folder == done.folder
    assert load_encoder(done.folder).dim == 16


def test_bad_input_is_refused_in_words(tmp_path: Path, folders: tuple[str, str]) -> None:
    with pytest.raises(SettingsError, match="takes no steps"):
        adapt(DOCUMENTS, settings(folders, tmp_path / "out", steps=5))
    with pytest.raises(SettingsError, match="rank"):
        adapt(DOCUMENTS, settings(folders, tmp_path / "out", own={"rank": 5}))
    with pytest.raises(ModelError, match="nowhere"):
        adapt(DOCUMENTS, settings((folders[0], str(tmp_path / "nowhere")), tmp_path / "out"))


def test_a_changed_second_one_is_noticed(tmp_path: Path, folders: tuple[str, str]) -> None:
    other = export(tiny_retriever(seed=6), tmp_path / "other")
    pair = (folders[0], str(other))
    adapt(DOCUMENTS, settings(pair, tmp_path / "out"))
    export(tiny_retriever(seed=7), other)
    assert not adapt(DOCUMENTS, settings(pair, tmp_path / "out")).reused
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 1}))
    with pytest.raises(ModelError):
        adapt(DOCUMENTS, settings(pair, tmp_path / "out"))
