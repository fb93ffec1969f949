"""Tiny masked-LM checkpoints, and a program that trains one: to be killed, or to be launched twice."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import BertConfig, DistilBertConfig, RobertaConfig

from hybridr.training.dam import fit_dam
from hybridr.training.settings import DamSettings
from support.tiny import SPECIAL, WORDS, tiny_corpus, tiny_tokenizer

ANGLES = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
VOCABULARY = len(SPECIAL) + len(WORDS) + 2
SIZES = {"vocab_size": VOCABULARY, "max_position_embeddings": 130}
WIDTHS = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
SETTINGS: dict[str, Any] = {
    "steps": 12,
    "batch_size": 16,
    "learning_rate": 1e-3,
    "max_tokens": 40,
    "held_out": 20,
    "checkpoint_every": 3,
    "precision": "fp32",
    "device": "cpu",
    "token_budget": 200,
    "warm_up": 4,
}


def tiny_dam(folder: Path, kind: str = "bert", *, seed: int = 0) -> Path:
    """Write a random masked-LM checkpoint whose loss has something to learn from."""
    torch.manual_seed(seed)
    model = {
        "bert": lambda: transformers.BertForMaskedLM(BertConfig(**SIZES, **WIDTHS)),
        "roberta": lambda: transformers.RobertaForMaskedLM(
            RobertaConfig(
                **SIZES, **WIDTHS, pad_token_id=1, bos_token_id=0, eos_token_id=2, type_vocab_size=1
            )
        ),
        "distilbert": lambda: transformers.DistilBertForMaskedLM(
            DistilBertConfig(**SIZES, dim=32, n_layers=2, n_heads=2, hidden_dim=64)
        ),
    }[kind]()
    transformers.utils.logging.disable_progress_bar()
    model.save_pretrained(folder)
    (folder / "tokenizer.json").write_text(angled_tokenizer() if kind == "roberta" else tiny_tokenizer())
    return folder


def weights_of(folder: Path, file: str = "model.safetensors") -> dict[str, torch.Tensor]:
    return load_file(folder / file)


def same(left: Path, right: Path, file: str = "model.safetensors") -> bool:
    """Tell whether two folders hold the same weights, to the bit."""
    ours, theirs = weights_of(left, file), weights_of(right, file)
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


def angled_tokenizer() -> str:
    """Give the toy words a tokenizer with RoBERTa's special tokens."""
    words = {word: i for i, word in enumerate([*ANGLES, *WORDS, ".", ","])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    return tokenizer.to_str()


def main() -> None:
    """Train as `out` and `base` of the command line say; print each step that is done."""
    torch.set_num_threads(1)
    values = json.loads(sys.argv[1])

    def tell(stage: str, done: int, total: int | None = None, note: str = "") -> None:
        sys.stdout.write(f"{stage} {done}\n")
        sys.stdout.flush()

    fit_dam(tiny_corpus(120), DamSettings(**(SETTINGS | values)), progress=tell)


def dam_settings(base: Path, out: Path, **changes: Any) -> DamSettings:
    return DamSettings(**(SETTINGS | {"base": str(base), "out": out} | changes))


if __name__ == "__main__":
    main()
