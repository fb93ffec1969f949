"""Multi-vector encoders of random weights: the golden ColBERT, and as others write them."""

from __future__ import annotations

import atexit
import json
import shutil
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from support.golden_ddr import SOURCE, rem_of

REM = rem_of("colbert_lora192-pa4")


@cache
def exported() -> Path:
    """Export the golden ColBERT once for all tests of a process."""
    from hybridr.encoders.export.exporting import export
    from hybridr.training.rankers import assemble

    folder = Path(mkdtemp(prefix="hybridr-colbert-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return export(assemble(SOURCE, REM, ranker="colbert"), folder / "encoder")


def written(folder: Path, **form: Any) -> Any:
    """Have sentence-transformers write a MultiVectorEncoder over the golden backbone."""
    import torch
    from sentence_transformers import MultiVectorEncoder
    from sentence_transformers.base.modules import Dense, Transformer
    from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask
    from sentence_transformers.sentence_transformer.modules import Normalize

    shutil.copytree(SOURCE, folder / "backbone", copy_function=shutil.copyfile)
    torch.manual_seed(0)
    name = "token_embeddings"
    dense = Dense(32, 16, bias=False, activation_function=torch.nn.Identity(), module_input_name=name)
    words, prompts = form.pop("skiplist_words", None), form.pop("prompts", None)
    modules = [Transformer(str(folder / "backbone"), **form), dense, MultiVectorMask(words)]
    model = MultiVectorEncoder(modules=[*modules, Normalize(module_input_name=name)], prompts=prompts)
    model.save(str(folder / "model"))
    return model


def of_pylate(folder: Path, **knobs: Any) -> Any:
    """Write a folder as PyLate 1.x does, and have sentence-transformers open it, which reads those."""
    from sentence_transformers import MultiVectorEncoder

    written(folder)
    model = folder / "model"
    kinds = {"": "sentence_transformers.models.Transformer", "1_Dense": "pylate.models.Dense.Dense"}
    listed = [
        {"idx": at, "name": str(at), "path": path, "type": kind}
        for at, (path, kind) in enumerate(kinds.items())
    ]
    (model / "modules.json").write_text(json.dumps(listed))
    lengths = {"max_seq_length": 47, "do_lower_case": False}
    (model / "sentence_bert_config.json").write_text(json.dumps(lengths))
    for one in model.glob("[2-9]_*"):
        shutil.rmtree(one)
    record = {"model_type": "ColBERT", "query_prefix": "[MASK]", "document_prefix": "the ", **knobs}
    (model / "config_sentence_transformers.json").write_text(json.dumps(record))
    dense = {"in_features": 32, "out_features": 16, "bias": False}
    identity = {"activation_function": "torch.nn.modules.linear.Identity"}
    (model / "1_Dense" / "config.json").write_text(json.dumps(dense | identity))
    return MultiVectorEncoder(str(model), local_files_only=True)
