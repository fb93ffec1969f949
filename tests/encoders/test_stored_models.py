"""Opening a bi-encoder: what is damaged, belongs to another model, or would run code is refused."""

from __future__ import annotations

import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from hybridr.encoders.export.exporting import export
from hybridr.encoders.export.weights import open_without_torch
from hybridr.errors import ModelError
from hybridr.training.torch_models import read_retriever
from support.tiny import Payload, damage_json, tiny_retriever


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = export(tiny_retriever(), tmp_path_factory.mktemp("retriever") / "encoder")
    (folder / "manifest.json").unlink()  # its checksum would be the first to complain
    return folder


@pytest.fixture
def source(encoder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(encoder, tmp_path / "model"))


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
@pytest.mark.parametrize("save", [torch.save, lambda value, path: path.write_bytes(pickle.dumps(value))])
@pytest.mark.attack(52)
def test_a_pickle_that_would_make_a_file_is_refused(save: Callable[..., Any], source: Path) -> None:
    target = source / "ran"
    pickle.loads(pickle.dumps(Payload(target)))
    assert target.exists()
    target.unlink()
    (source / "model.safetensors").unlink()
    save({"weight": Payload(target)}, source / "pytorch_model.bin")
    with pytest.raises(ModelError, match="may run code") as caught:
        read_retriever(source)
    assert "trust" in str(caught.value.hint)
    assert not target.exists()


@pytest.mark.parametrize("name", ["num_hidden_layers", "hidden_size", "num_attention_heads"])
def test_without_torch_a_configuration_that_lacks_a_size_is_refused(name: str, source: Path) -> None:
    record = json.loads((source / "config.json").read_text())
    del record[name]
    (source / "config.json").write_text(json.dumps(record))
    with pytest.raises(ModelError, match=f"cannot be opened: .*{name}"):
        open_without_torch(source)


@pytest.mark.parametrize("keep", [0, 100, -1000])
@pytest.mark.attack(59)
def test_truncated_weights_are_refused(keep: int, source: Path) -> None:
    path = source / "model.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(ModelError, match="cannot be opened") as caught:
        read_retriever(source)
    assert "fetch or export it again" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"hidden_size": 64}, "have other sizes than config.json says"),
        ({"vocab_size": 50}, "have other sizes than config.json says"),
        ({"num_hidden_layers": 1}, r"has more layers than config.json says, such as encoder.layer.1"),
        ({"num_hidden_layers": 3}, "lacks 16 weights, such as encoder.layer.2"),
    ],
)
def test_a_configuration_of_another_model_is_refused(change, words, source, capfd):
    damage_json(source / "config.json", **change)
    with pytest.raises(ModelError, match=words) as caught:
        read_retriever(source)
    assert caught.value.hint
    assert "LOAD REPORT" not in "".join(capfd.readouterr())


def test_a_tokenizer_of_another_model_is_refused(source: Path) -> None:
    record = json.loads((source / "tokenizer.json").read_text())
    record["model"]["vocab"]["onemore"] = 107
    (source / "tokenizer.json").write_text(json.dumps(record))
    with pytest.raises(ModelError, match="has ids up to 107; the model has 107 embeddings") as caught:
        read_retriever(source)
    assert "belongs to another model" in str(caught.value.hint)
