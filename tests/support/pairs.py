"""Pair scorers of random weights: of the golden re-ranker, and as transformers writes them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from support.golden_ddr import SOURCE


def written(folder: Path, kind: str = "bert", labels: int = 1) -> Any:
    """Have transformers write a sequence classifier over the words of the golden DAMs."""
    import torch
    import transformers

    shutil.copytree(SOURCE, folder / "words", copy_function=shutil.copyfile)
    stem = {"bert": "Bert", "distilbert": "DistilBert", "electra": "Electra"}[kind]
    sizes: dict[str, Any] = {"vocab_size": 280, "max_position_embeddings": 64, "pad_token_id": 0}
    if kind == "distilbert":
        sizes |= {"dim": 32, "n_layers": 2, "n_heads": 2, "hidden_dim": 64}
    else:
        sizes |= {
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "intermediate_size": 64,
        }
    torch.manual_seed(0)
    config = getattr(transformers, f"{stem}Config")(**sizes, num_labels=labels, initializer_range=0.3)
    model = getattr(transformers, f"{stem}ForSequenceClassification")(config).eval()
    model.save_pretrained(folder / "model")
    transformers.AutoTokenizer.from_pretrained(folder / "words").save_pretrained(folder / "model")
    return model
