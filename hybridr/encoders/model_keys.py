"""Every key of a model folder that sentence-transformers 3 to 6 reads: followed, without effect, or refused.

A key of a table has the values that hybridr follows: `ANY` where the code reads it or it moves no vector,
else those that change nothing. Every other value is refused by name, with its file.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from ..errors import ModelError

ANY = object()
Table: TypeAlias = Mapping[str, Any]

MODULES = {"Transformer", "Pooling", "Normalize", "Dropout"}
"""Dropout does nothing outside of training. Refused are Dense, LayerNorm, WeightedLayerPooling, CNN, LSTM,
BoW, WordEmbeddings, WordWeights, StaticEmbedding, Router, Asym, CLIPModel, and those of other people."""
NO_OPTIONS: tuple[Any, ...] = ([], {}, None)
TEXT_ONLY = {"text": {"method": "forward", "method_output_name": "last_hidden_state"}}
BACKBONE_FILES = tuple(
    f"sentence_{kind}_config.json"
    for kind in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
"""Names of one file; the first that is there counts."""
BACKBONE: Table = {
    "max_seq_length": ANY,
    "do_lower_case": ANY,
    "unpad_inputs": ANY,  # how a batch is laid out on a GPU
    "backend": ANY,
    "cache_dir": ANY,
    "model_args": ANY,  # these six by the tables below
    "model_kwargs": ANY,
    "tokenizer_args": ANY,
    "processor_kwargs": ANY,
    "config_args": ANY,
    "config_kwargs": ANY,
    "transformer_task": (None, "feature-extraction"),
    "modality_config": (None, TEXT_ONLY),
    "module_output_name": (None, "token_embeddings"),
    "processing_kwargs": NO_OPTIONS,
    "query_length": (None,),
    "document_length": (None,),
    "query_expansion": (None,),
    "tokenizer_name_or_path": (None,),
}
LOADING = dict.fromkeys(
    ("trust_remote_code", "local_files_only", "use_safetensors", "low_cpu_mem_usage"), ANY
)
"""How files are found and read: hybridr never runs code of a model, and reads its own folder only."""
MODEL_OPTIONS: Table = LOADING | {
    "torch_dtype": ANY,  # hybridr computes in fp32
    "dtype": ANY,
    "attn_implementation": (None, "eager", "sdpa", "flash_attention_2"),
    "add_pooling_layer": ANY,
}
TOKENIZER_OPTIONS: Table = LOADING | {"model_max_length": ANY, "use_fast": ANY, "padding_side": ANY}
OPTIONS: Mapping[str, Table] = {
    "model_args": MODEL_OPTIONS,
    "model_kwargs": MODEL_OPTIONS,
    "tokenizer_args": TOKENIZER_OPTIONS,
    "processor_kwargs": TOKENIZER_OPTIONS,
    "config_args": LOADING,
    "config_kwargs": LOADING,
}
POOLING_MODES = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
"""The keys of before sentence-transformers 6, and the `pooling_mode` that each one means."""
POOLING: Table = {
    "word_embedding_dimension": ANY,
    "embedding_dimension": ANY,
    "pooling_mode": ANY,
    "include_prompt": ANY,
    **dict.fromkeys(POOLING_MODES, ANY),
}
NORMALIZE: Table = dict.fromkeys(("module_input_name", "module_output_name"), (None, "sentence_embedding"))
WHOLE: Table = {
    "__version__": ANY,
    "prompts": ANY,
    "default_prompt_name": ANY,
    "similarity_fn_name": ANY,
    "truncate_dim": ANY,
    "model_type": (None, "SentenceTransformer"),
}
"""Of config_sentence_transformers.json, in which sentence-transformers reads no further key."""
TOKENIZER: Table = {
    "model_max_length": ANY,
    "do_lower_case": ANY,
    "strip_accents": ANY,
    "tokenize_chinese_chars": ANY,
    "added_tokens_decoder": ANY,
    "additional_special_tokens": ANY,
    "extra_special_tokens": ANY,
    "padding_side": ANY,  # a text alone has no padding
    "truncation_side": (None, "right"),
    "split_special_tokens": (None, False),
}
"""Of tokenizer_config.json; what else transformers reads there moves no id, or names a special token."""


def require_followed(place: str, record: Mapping[str, Any], table: Table, *, closed: bool = False) -> None:
    """Raise ModelError for a value that is not followed; in a `closed` table for every key beyond it too.

    `place` names the file and its folder in the message.
    """
    for key, value in record.items():
        if key not in table and not closed:
            continue
        values = table.get(key, ())
        if values is not ANY and value not in values:
            raise ModelError(
                f"{place} has {key} = {str(value)[:80]!r}, which hybridr does not follow: "
                "its vectors would not be those of sentence-transformers",
                hint=f"take {key} out and save the model again, if its vectors do without; or another model",
            )
