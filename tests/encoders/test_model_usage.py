"""Keys of a model folder: vectors are those of sentence-transformers, or the key is refused by name."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import BertConfig, BertModel

from hybridr.encoders.export.exporting import encoder_folder, export
from hybridr.encoders.export.weights import open_without_torch
from hybridr.encoders.model_usage import BACKBONE_FILES
from hybridr.encoders.opening import load_encoder
from hybridr.errors import ModelError
from hybridr.training.torch_models import read_retriever
from support.tiny import damage_json

TEXTS = ["SEAL of the Pump", "seal of the pump", "the pump of the seal of the pump of the seal", "É PUMP"]
BERT_NORMALIZER = {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True}
BERT_NORMALIZER |= {"strip_accents": None, "lowercase": False}
WHOLE, POOLING, BACKBONE = "config_sentence_transformers.json", "1_Pooling/config.json", BACKBONE_FILES[0]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random BERT as a sentence-transformers folder, whose tokenizer keeps capitals."""
    folder = tmp_path_factory.mktemp("model") / "model"
    folder.mkdir()
    letters = "abcdefghijklmnopqrstuvwxyz"
    words = [*"[PAD] [UNK] [CLS] [SEP] [MASK] :".split(), *letters, *(f"##{letter}" for letter in letters)]
    words += "seal of the pump passage query SEAL PUMP".split()
    tokenizer = Tokenizer(models.WordPiece({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    special = {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")}
    plain = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 128}
    torch.manual_seed(1)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    BertModel(BertConfig(vocab_size=len(words), **sizes)).save_pretrained(folder)
    modules = [("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")]
    (folder / "1_Pooling").mkdir()
    for name, value in {
        "tokenizer_config.json": special | plain,
        "modules.json": [
            {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
            for i, (path, kind) in enumerate(modules)
        ],
        POOLING: {"word_embedding_dimension": 32, "pooling_mode_mean_tokens": True},
        BACKBONE: {"max_seq_length": 128, "do_lower_case": False},
        WHOLE: {"prompts": {}, "similarity_fn_name": "cosine"},
    }.items():
        (folder / name).write_text(json.dumps(value))
    return folder


@pytest.fixture
def source(model: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(model, tmp_path / "model"))


def set_keys(file: str, **keys: Any) -> Callable[[Path], None]:
    return lambda folder: damage_json(folder / file, **keys)


def normalizer(value: Any) -> Callable[[Path], None]:
    return set_keys("tokenizer.json", normalizer=value)


def in_inner_folder(folder: Path) -> None:
    (folder / "0_Transformer").mkdir()
    for file in list(folder.iterdir()):
        if file.is_file() and file.name not in ("modules.json", WHOLE):
            file.rename(folder / "0_Transformer" / file.name)
    modules = json.loads((folder / "modules.json").read_text())
    modules[0]["path"] = "0_Transformer"
    (folder / "modules.json").write_text(json.dumps(modules))


def in_shards(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names, places = sorted(weights), {}
    for i, part in enumerate((names[::2], names[1::2]), 1):
        file = f"model-0000{i}-of-00002.safetensors"
        save_file({name: weights[name] for name in part}, folder / file, {"format": "pt"})
        places |= dict.fromkeys(part, file)
    index = {"metadata": {}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def saved_anew(folder: Path) -> None:
    newer = folder.parent / "newer"
    SentenceTransformer(str(folder), device="cpu").save_pretrained(str(newer))
    shutil.rmtree(folder)
    newer.rename(folder)


def without_normalize(folder: Path) -> None:
    modules = json.loads((folder / "modules.json").read_text())
    (folder / "modules.json").write_text(json.dumps(modules[:2]))


def dot_product(folder: Path) -> None:
    without_normalize(folder)
    damage_json(folder / WHOLE, similarity_fn_name="dot")


def renamed(folder: Path) -> None:
    damage_json(folder / BACKBONE, do_lower_case=True, max_seq_length=6)
    (folder / BACKBONE).rename(folder / "sentence_roberta_config.json")


def bert_tokenizer(**keys: Any) -> Callable[[Path], None]:
    return set_keys("tokenizer_config.json", tokenizer_class="BertTokenizer", **keys)


LOWER = set_keys(BACKBONE, do_lower_case=True)
PROMPTS = {"query": "query: ", "document": "passage: "}
FOLLOWED: dict[str, list[Callable[[Path], None]]] = {
    "lower case, short texts and prompts": [
        set_keys(BACKBONE, do_lower_case=True, max_seq_length=5),
        set_keys(WHOLE, prompts=PROMPTS),
    ],
    "lower case before a normalizer": [
        LOWER,
        normalizer({"type": "Sequence", "normalizers": [{"type": "NFD"}, {"type": "StripAccents"}]}),
    ],
    "lower case twice, and a default prompt of both": [
        LOWER,
        normalizer({"type": "Lowercase"}),
        set_keys(WHOLE, prompts={"query": "query: ", "document": "query: "}, default_prompt_name="query"),
    ],
    "lower case by default of the class, by one mode": [
        bert_tokenizer(),
        normalizer(BERT_NORMALIZER),
        set_keys(POOLING, pooling_mode_mean_tokens=None, pooling_mode="cls"),
    ],
    "lower case of the class, by a mode in a list": [
        bert_tokenizer(do_lower_case=True),
        normalizer(BERT_NORMALIZER),
        set_keys(POOLING, pooling_mode=["cls"]),
    ],
    "capitals of the tokenizer's class, cls": [
        bert_tokenizer(do_lower_case=False),
        normalizer(BERT_NORMALIZER | {"lowercase": True}),
        set_keys(POOLING, pooling_mode_mean_tokens=False, pooling_mode_cls_token=True),
    ],
    "accents of the tokenizer's class, no mode": [
        bert_tokenizer(do_lower_case=False, strip_accents=True),
        normalizer(BERT_NORMALIZER),
        set_keys(POOLING, pooling_mode_mean_tokens=False),
    ],
    "lower case that a plain class leaves, and more dimensions than there are": [
        set_keys("tokenizer_config.json", do_lower_case=True),
        set_keys(WHOLE, truncate_dim=99),
    ],
    "short texts by the tokenizer": [
        set_keys(BACKBONE, max_seq_length=None),
        set_keys("tokenizer_config.json", model_max_length=6),
    ],
    "short texts by tokenizer_args, without Normalize": [
        set_keys(BACKBONE, tokenizer_args={"model_max_length": 7}),
        without_normalize,
    ],
    "shards in an inner folder": [in_shards, in_inner_folder],
    "another name": [renamed],
    "saved by version 6": [set_keys(WHOLE, truncate_dim=16), saved_anew],
    "dot of eight dimensions, unpadded": [
        dot_product,
        set_keys(WHOLE, truncate_dim=8),
        set_keys(BACKBONE, unpad_inputs=True, model_args={"attn_implementation": "sdpa"}),
    ],
}


@pytest.mark.parametrize("name", FOLLOWED)
def test_vectors_are_those_of_sentence_transformers(name: str, source: Path, tmp_path: Path) -> None:
    for change in FOLLOWED[name]:
        change(source)
    theirs = SentenceTransformer(str(source), device="cpu")
    sides = {"encode_queries": theirs.encode_query(TEXTS), "encode_documents": theirs.encode_document(TEXTS)}
    exported = load_encoder(export(source, tmp_path / "encoder"))
    again = SentenceTransformer(str(tmp_path / "encoder"), device="cpu")
    for opened in (exported, read_retriever(source), open_without_torch(source)):
        for side, vectors in sides.items():
            if opened.similarity == "cosine":  # which sentence-transformers computes of any length
                vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
            np.testing.assert_allclose(getattr(opened, side)(TEXTS), vectors, atol=1e-5)
    assert exported.dim == sides["encode_queries"].shape[1] == again.encode(TEXTS).shape[1]
    assert (
        read_retriever(source).fingerprint == exported.fingerprint == open_without_torch(source).fingerprint
    )
    scores = again.similarity(again.encode_query(TEXTS), again.encode_document(TEXTS))
    np.testing.assert_allclose(scores, theirs.similarity(*sides.values()), atol=1e-4)


def test_letters_are_made_small_and_vectors_are_cut(source: Path, tmp_path: Path) -> None:
    """The table would hold if neither side did anything."""
    LOWER(source)
    set_keys(WHOLE, truncate_dim=16)(source)
    vectors = load_encoder(export(source, tmp_path / "encoder")).encode_queries(TEXTS[:2])
    assert vectors.shape == (2, 16)
    np.testing.assert_allclose(vectors[0], vectors[1], atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)


def module(kind: str, place: int = 3) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        modules = json.loads((folder / "modules.json").read_text())
        entry = {"idx": 9, "name": "9", "path": "9_More", "type": f"sentence_transformers.models.{kind}"}
        modules.insert(place, entry)
        (folder / "9_More").mkdir()
        (folder / "9_More" / "config.json").write_text("{}")
        (folder / "modules.json").write_text(json.dumps(modules))

    return change


KINDS = ["Dense", "LSTM", "StaticEmbedding", "CLIPModel"]
REFUSED: list[tuple[Callable[[Path], None], str]] = [
    *((module(kind), f"has the module {kind}") for kind in KINDS),
    (module("Router"), "by .*Router|has the module Router"),
    (module("Normalize", 1), "runs Transformer, Normalize, Pooling"),
    *(
        (set_keys(POOLING, pooling_mode_mean_tokens=False, **{key: True}), f"pools by .*'{mode}'")
        for key, mode in {
            "pooling_mode_max_tokens": "max",
            "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
            "pooling_mode_weightedmean_tokens": "weightedmean",
            "pooling_mode_lasttoken": "lasttoken",
        }.items()
    ),
    (set_keys(POOLING, pooling_mode_cls_token=True), r"pools by \['cls', 'mean'\]"),
    (set_keys(POOLING, include_prompt=False), "pools by include_prompt"),
    (set_keys(POOLING, pooling_mode_new=True), "has pooling_mode_new = "),
    (set_keys(BACKBONE, transformer_task="fill-mask"), "has transformer_task = 'fill-mask'"),
    (set_keys(BACKBONE, modality_config={"image": {}}), "has modality_config = "),
    (set_keys(BACKBONE, processing_kwargs={"text": {"max_length": 9}}), "has processing_kwargs = "),
    (set_keys(BACKBONE, query_length=8), "has query_length = '8'"),
    (set_keys(BACKBONE, query_expansion={"strategy": "fixed"}), "has query_expansion = "),
    (set_keys(BACKBONE, tokenizer_args={"truncation_side": "left"}), "has truncation_side = 'left'"),
    (set_keys(BACKBONE, config_args={"num_hidden_layers": 1}), "has num_hidden_layers = '1'"),
    (set_keys(BACKBONE, model_args={"subfolder": "x"}), "has subfolder = 'x'"),
    (set_keys(BACKBONE, of_tomorrow=1), "has of_tomorrow = '1'"),
    (set_keys(WHOLE, model_type="SparseEncoder"), "has model_type = 'SparseEncoder'"),
    (set_keys(WHOLE, similarity_fn_name="manhattan"), "compares vectors by 'manhattan'"),
    (set_keys(WHOLE, truncate_dim="16"), "truncate_dim = '16'"),
    (set_keys(WHOLE, truncate_dim=16, similarity_fn_name="dot"), "compares them by dot"),
    (set_keys(WHOLE, truncate_dim=16, similarity_fn_name="euclidean"), "compares them by euclidean"),
    (set_keys(WHOLE, prompts={"query": "q: ", "passage": "p: "}), "a prompt for 'passage'"),
    (set_keys(WHOLE, prompts={"x": "q: "}, default_prompt_name="x"), "default_prompt_name 'x'"),
    (set_keys(WHOLE, prompts={"query": "q: "}, default_prompt_name="y"), "no prompt 'y'"),
    (set_keys("tokenizer_config.json", truncation_side="left"), "has truncation_side = 'left'"),
    (set_keys("tokenizer_config.json", split_special_tokens=True), "has split_special_tokens"),
    (set_keys("tokenizer_config.json", additional_special_tokens=["[NEW]"]), r"adds '\[NEW\]'"),
    (set_keys("tokenizer_config.json", added_tokens_decoder={"9": {"content": "<x>"}}), "adds '<x>'"),
]


@pytest.mark.parametrize(("change", "words"), REFUSED, ids=[words[:60] for _, words in REFUSED])
def test_what_is_not_followed_is_refused_by_name(change, words, source, tmp_path):
    change(source)
    for attempt in (
        lambda: export(source, tmp_path / "encoder"),
        lambda: encoder_folder(source),
        lambda: open_without_torch(source),
    ):
        with pytest.raises(ModelError, match=words) as caught:
            attempt()
        assert "damaged" not in caught.value.message
    assert not (tmp_path / "encoder").exists()


def test_weights_that_are_missing_are_named(source: Path) -> None:
    in_shards(source)
    (source / "model-00002-of-00002.safetensors").unlink()
    for open_folder in (read_retriever, open_without_torch):
        with pytest.raises(ModelError, match=r"names 'model-00002-of-00002.safetensors', which is missing"):
            open_folder(source)
    (source / "model.safetensors.index.json").unlink()
    (source / "pytorch_model.bin.index.json").write_text("{}")
    with pytest.raises(ModelError, match=r"has no model.safetensors") as caught:
        read_retriever(source)
    assert "save_pretrained" in str(caught.value.hint)
