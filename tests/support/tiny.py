"""Models and texts made in a second: a randomly initialised BERT over a vocabulary of toy words."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import ByteLevelBPETokenizer, Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import (
    AutoModel,
    BertConfig,
    BertModel,
    DistilBertConfig,
    RobertaConfig,
)

from hybridr.records import Document
from hybridr.training.torch_models import BiEncoder, Usage

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = [a + b + c for a in ("ba", "ko", "mi", "tu", "re") for b in ("la", "so", "ni", "du") for c in "nrskt"]


def tiny_tokenizer(words: Iterable[str] = WORDS) -> str:
    vocabulary = {word: i for i, word in enumerate([*SPECIAL, *words, ".", ","])}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    return tokenizer.to_str()


def tiny_bert(words: int, layers: int = 2, inner: int = 64, positions: int = 128) -> BertModel:
    """A BERT of 32 dimensions for so many words beside the special ones."""
    config = BertConfig(
        vocab_size=len(SPECIAL) + words,
        hidden_size=32,
        num_hidden_layers=layers,
        num_attention_heads=2,
        intermediate_size=inner,
        max_position_embeddings=positions,
        attn_implementation="eager",
    )
    return BertModel(config).float().eval()


def tiny_retriever(
    *, seed: int = 0, pooling: str = "mean", similarity: str = "cosine", query: str = "", document: str = ""
) -> BiEncoder:
    torch.manual_seed(seed)
    backbone = tiny_bert(len(WORDS) + 2)
    for name, weight in backbone.named_parameters():  # the usual .02 gives vectors that are all alike
        if "query" in name or "key" in name or "word_embeddings" in name:
            torch.nn.init.normal_(weight, std=0.3)
    usage = Usage(pooling, similarity, {"query": query, "document": document}, max_tokens=64)
    return BiEncoder(backbone, tiny_tokenizer(), usage)


def tiny_family(kind: str, folder: Path) -> BiEncoder:
    """A BERT, RoBERTa or DistilBERT over the toy words; RoBERTa's folder names its own padding."""
    if kind == "bert":
        return tiny_retriever()
    torch.manual_seed(0)
    usage = Usage("mean", "cosine", {"query": "", "document": ""}, max_tokens=64)
    if kind == "distilbert":
        size = len(SPECIAL) + len(WORDS) + 2
        config: Any = DistilBertConfig(
            vocab_size=size, dim=32, n_layers=2, n_heads=2, hidden_dim=64, max_position_embeddings=128
        )
        backbone = AutoModel.from_config(config, attn_implementation="eager")
        return BiEncoder(backbone.float().eval(), tiny_tokenizer(), usage)
    tokens = ["<s>", "<padding>", "</s>", "<unk>", "<mask>"]
    tokenizer = ByteLevelBPETokenizer(add_prefix_space=True)
    tokenizer.train_from_iterator(tiny_texts(50), vocab_size=400, special_tokens=tokens, show_progress=False)
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    folder.mkdir()
    (folder / "special_tokens_map.json").write_text('{"pad_token": {"content": "<padding>"}}')
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "RobertaTokenizer"}')
    config = RobertaConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=130,
        type_vocab_size=1,
        pad_token_id=1,
        bos_token_id=0,
        eos_token_id=2,
    )
    backbone = AutoModel.from_config(config, attn_implementation="eager")
    return BiEncoder(backbone.float().eval(), tokenizer.to_str(), usage, folder)


def tiny_texts(count: int, *, longest: int = 90, seed: int = 0) -> list[str]:
    random = np.random.default_rng(seed)
    return [" ".join(random.choice(WORDS, random.integers(0, longest))) for _ in range(count)]


def tiny_corpus(count: int, *, seed: int = 0) -> list[Document]:
    """Documents about one of ten topics; each topic has its own words, so there is something to learn."""
    random = np.random.default_rng(seed)
    topics = [random.choice(WORDS, 12, replace=False) for _ in range(10)]

    def sentence(topic: int) -> str:
        own, others = random.choice(topics[topic], 6), random.choice(WORDS, 3)
        return " ".join(random.permutation(np.concatenate([own, others]))) + "."

    return [
        Document(
            f"d{i}", " ".join(sentence(i % 10) for _ in range(6)), " ".join(random.choice(topics[i % 10], 3))
        )
        for i in range(count)
    ]


def damage_json(path: Path, **values: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def cosines(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Compare vectors `(n, dim)` of length 1, row by row."""
    found: np.ndarray = (left * right).sum(axis=1)
    return found


class Payload:
    """What a malicious checkpoint holds: unpickling it makes a file."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.target,)
