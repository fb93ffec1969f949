from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from tokenizers import Tokenizer

from hybridr.encoders.export.exporting import export
from hybridr.encoders.opening import load_encoder
from hybridr.errors import ModelError
from hybridr.training.torch_models import read_retriever
from support.tiny import tiny_family, tiny_retriever, tiny_texts

PLAIN = ("mean", "cosine")
USAGES = [PLAIN, ("cls", "ip")]


@pytest.mark.parametrize(
    ("kind", "usage"),
    [*((kind, PLAIN) for kind in ("roberta", "distilbert")), *(("", usage) for usage in USAGES)],
)
def test_a_folder_opens_unchanged_elsewhere(kind: str, usage: tuple[str, str], tmp_path: Path) -> None:
    from sentence_transformers import SentenceTransformer
    from transformers import AutoModel, AutoTokenizer

    pooling, similarity = usage
    tiny = tiny_retriever(pooling=pooling, similarity=similarity)
    folder = export(tiny_family(kind, tmp_path / "source") if kind else tiny, tmp_path / "encoder")
    texts = [*tiny_texts(20), "", "Ein kleines Haus; 家 <s>."]
    vectors = load_encoder(folder).encode_documents(texts)
    theirs = SentenceTransformer(str(folder), device="cpu")
    tokens = AutoTokenizer.from_pretrained(folder)(texts, padding=True, truncation=True, return_tensors="pt")
    with torch.no_grad():
        states = AutoModel.from_pretrained(folder).eval()(**tokens).last_hidden_state
    mask = tokens["attention_mask"][:, :, None]
    pooled = states[:, 0] if pooling == "cls" else (states * mask).sum(1) / mask.sum(1)
    if similarity == "cosine":
        pooled = torch.nn.functional.normalize(pooled, dim=-1)
    for found in (theirs.encode(texts), pooled.numpy(), run_plainly(folder, texts)):
        assert np.abs(found - vectors).max() <= 1e-4
    again = export(folder, tmp_path / "again")
    prints = [load_encoder(folder).fingerprint, load_encoder(again).fingerprint]
    assert {*prints, read_retriever(folder).fingerprint} == {prints[0]}
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
        assert (again / name).read_bytes() == (folder / name).read_bytes()


def run_plainly(folder: Path, texts: list[str]) -> np.ndarray:
    """Encode with nothing but onnxruntime and tokenizers, as the files describe themselves."""
    described = json.loads((folder / "tokenizer_config.json").read_text())
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    padding = described["pad_token"]
    tokenizer.enable_padding(pad_id=tokenizer.token_to_id(padding), pad_token=padding)
    tokenizer.enable_truncation(described["model_max_length"])
    rows = tokenizer.encode_batch(texts)
    fields = {"input_ids": "ids", "attention_mask": "attention_mask", "token_type_ids": "type_ids"}
    session = onnxruntime.InferenceSession(folder / "onnx" / "model.onnx", providers=["CPUExecutionProvider"])
    assert {value.name for value in session.get_inputs()} == set(described["model_input_names"])
    feed = {of: np.array([getattr(row, fields[of]) for row in rows]) for of in described["model_input_names"]}
    found: np.ndarray = session.run(["sentence_embedding"], feed)[0]
    return found


def test_special_tokens_are_those_that_the_tokenizer_has(tmp_path: Path) -> None:
    source = tiny_family("roberta", tmp_path / "source")
    folder = export(source, tmp_path / "encoder")
    special = json.loads((folder / "special_tokens_map.json").read_text())
    assert special == {
        "bos_token": "<s>",
        "eos_token": "</s>",
        "cls_token": "<s>",
        "sep_token": "</s>",
        "pad_token": "<padding>",
        "unk_token": "<unk>",
        "mask_token": "<mask>",
    }
    (tmp_path / "source" / "special_tokens_map.json").unlink()  # the usual <pad> has no embedding here
    again = export(source, tmp_path / "again")
    assert "pad_token" not in json.loads((again / "special_tokens_map.json").read_text())
    (tmp_path / "source" / "special_tokens_map.json").write_text("[1]")
    with pytest.raises(ModelError, match=r"is damaged: special_tokens_map\.json is not a JSON object"):
        export(source, tmp_path / "third")
