"""Reads how a sentence-transformers folder is used: pooling, prompts, limits, lower-casing.

The tables name every key that sentence-transformers 3 to 6 reads, with its supported values: `ANY` if the
code below reads the key or it does not change vectors, else the values that change nothing. Any other value
is refused with an error that names the key and its file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

from tokenizers import Tokenizer

from ..errors import ModelError
from ..files.local import child_path, parsed_json
from .contract import MAX_PROMPT_CHARACTERS, Usage
from .stored_models import FETCH_AGAIN, backbone_folder, inner_folder, read_json, read_modules, read_object
from .tokens import TOKENIZER_FILE

ANY = object()
Table: TypeAlias = Mapping[str, Any]

MODULES = {"Transformer", "Pooling", "Normalize", "Dropout"}
"""Dropout is only active in training. Refused are Dense, LayerNorm, WeightedLayerPooling, CNN, LSTM, BoW,
WordEmbeddings, WordWeights, StaticEmbedding, Router, Asym, CLIPModel, and third-party modules."""
NO_OPTIONS: tuple[Any, ...] = ([], {}, None)
TEXT_ONLY = {"text": {"method": "forward", "method_output_name": "last_hidden_state"}}
BACKBONE_FILES = tuple(
    f"sentence_{kind}_config.json"
    for kind in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
"""Possible names of one file; the first that exists is read."""
BACKBONE: Table = {
    # unpad_inputs is the layout of a batch on a GPU; OPTIONS checks the six *_args and *_kwargs
    **dict.fromkeys(("max_seq_length", "do_lower_case", "unpad_inputs", "backend", "cache_dir"), ANY),
    **dict.fromkeys(("model_args", "model_kwargs", "tokenizer_args", "processor_kwargs"), ANY),
    **dict.fromkeys(("config_args", "config_kwargs"), ANY),
    "transformer_task": (None, "feature-extraction"),
    "modality_config": (None, TEXT_ONLY),
    "module_output_name": (None, "token_embeddings"),
    "processing_kwargs": NO_OPTIONS,
    **dict.fromkeys(("query_length", "document_length", "query_expansion"), (None,)),
    "tokenizer_name_or_path": (None,),
}
LOADING = dict.fromkeys(
    ("trust_remote_code", "local_files_only", "use_safetensors", "low_cpu_mem_usage"), ANY
)
"""Options for loading files: hybridr never runs code of a model, and only reads the model's folder."""
MODEL_OPTIONS: Table = {
    **LOADING,
    **dict.fromkeys(("torch_dtype", "dtype", "add_pooling_layer"), ANY),  # hybridr computes in fp32
    "attn_implementation": (None, "eager", "sdpa", "flash_attention_2"),
}
TOKENIZER_OPTIONS: Table = LOADING | dict.fromkeys(("model_max_length", "use_fast", "padding_side"), ANY)
OPTIONS: Mapping[str, Table] = {
    **dict.fromkeys(("model_args", "model_kwargs"), MODEL_OPTIONS),
    **dict.fromkeys(("tokenizer_args", "processor_kwargs"), TOKENIZER_OPTIONS),
    **dict.fromkeys(("config_args", "config_kwargs"), LOADING),
}
POOLING_MODES = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
"""The keys that sentence-transformers had before version 6, and the `pooling_mode` that each one means."""
POOLING: Table = dict.fromkeys(
    ("word_embedding_dimension", "embedding_dimension", "pooling_mode", "include_prompt", *POOLING_MODES), ANY
)
NORMALIZE: Table = dict.fromkeys(("module_input_name", "module_output_name"), (None, "sentence_embedding"))
MODEL_CONFIG: Table = {
    **dict.fromkeys(("__version__", "prompts", "default_prompt_name"), ANY),
    **dict.fromkeys(("similarity_fn_name", "truncate_dim"), ANY),
    "model_type": (None, "SentenceTransformer"),
}
"""Keys of config_sentence_transformers.json that sentence-transformers reads."""
TOKENIZER: Table = {
    **dict.fromkeys(("model_max_length", "do_lower_case", "strip_accents", "tokenize_chinese_chars"), ANY),
    **dict.fromkeys(("added_tokens_decoder", "additional_special_tokens", "extra_special_tokens"), ANY),
    "padding_side": ANY,  # a single text has no padding
    "truncation_side": (None, "right"),
    "split_special_tokens": (None, False),
}
"""Keys of tokenizer_config.json that hybridr checks; the others change no id, or name a special token."""
TOKENIZER_CONFIG = "tokenizer_config.json"
SIMILARITIES = {None: "cosine", "cosine": "cosine", "dot": "ip"}
SAME_WHEN_SCALED = {None, "cosine", "dot", "euclidean"}
"""Similarities that rank vectors of length 1 alike."""
BERT_TOKENIZERS = {
    f"{kind}Tokenizer{fast}" for kind in ("Bert", "DistilBert", "Electra", "MPNet") for fast in ("", "Fast")
}
"""Classes of transformers that normalise by tokenizer_config.json, regardless of tokenizer.json."""


def require_supported(place: str, record: Mapping[str, Any], table: Table, *, closed: bool = False) -> None:
    """Raise ModelError for an unsupported value; in a `closed` table also for every unknown key.

    `place` names the file and its folder in the message.
    """
    for key, value in record.items():
        if key not in table and not closed:
            continue
        values = table.get(key, ())
        if values is not ANY and value not in values:
            raise ModelError(
                f"{place} has {key} = {str(value)[:80]!r}, which hybridr does not support: "
                "its vectors would differ from those of sentence-transformers",
                hint=f"if vectors do not need {key}, remove it and save the model again, or use another one",
            )


def read_usage(folder: Path, max_tokens: int | None = None) -> Usage:
    """Return pooling, similarity, prefixes and limit from the sentence-transformers files.

    Raises ModelError, and TypeError or another built-in error for a file of another structure.
    """
    modules = require_modules(folder)
    model_config = read_object(folder, "config_sentence_transformers.json")
    require_supported(f"config_sentence_transformers.json of {folder}", model_config, MODEL_CONFIG)
    normalized, stored_function = "Normalize" in modules, model_config.get("similarity_fn_name")
    function = "cosine" if normalized and stored_function in SAME_WHEN_SCALED else stored_function
    if function not in SIMILARITIES:
        raise ModelError(
            f"{folder} compares vectors by '{function}'; cosine or dot is needed",
            hint="set similarity_fn_name in config_sentence_transformers.json",
        )
    size = model_config.get("truncate_dim")
    if size is not None and (not isinstance(size, int) or isinstance(size, bool) or size < 1):
        raise ModelError(f"{folder} has truncate_dim = {size!r}; a positive whole number is needed")
    if size and normalized and stored_function in ("dot", "euclidean"):
        raise ModelError(
            f"{folder} scales vectors, cuts them by truncate_dim, and compares them by {stored_function}",
            hint="set similarity_fn_name to cosine in config_sentence_transformers.json",
        )
    backbone = backbone_folder(folder)
    options = backbone_options(backbone)
    file = next((name for name in BACKBONE_FILES if child_path(backbone, name).is_file()), BACKBONE_FILES[0])
    require_supported(f"{file} of {backbone}", options, BACKBONE, closed=True)
    for key, table in OPTIONS.items():
        nested = options.get(key) or {}
        if not isinstance(nested, dict):
            raise ModelError(f"{file} of {backbone} has {key} = {str(nested)[:80]!r}; an object is needed")
        require_supported(f"{key} in {file} of {backbone}", nested, table, closed=True)
    settings = read_object(backbone, TOKENIZER_CONFIG)
    require_supported(f"{TOKENIZER_CONFIG} of {backbone}", settings, TOKENIZER)
    place = inner_folder(folder, modules["Pooling"])
    pooling = read_object(place, "config.json", needed=True)
    require_supported(f"config.json of {place}", pooling, POOLING, closed=True)
    modes = pooling.get("pooling_mode")
    if modes is None:  # a file of sentence-transformers before version 6
        modes = [mode for key, mode in POOLING_MODES.items() if pooling.get(key)] or "mean"
    modes = [modes] if isinstance(modes, str) else modes
    if modes not in (["mean"], ["cls"]) or not pooling.get("include_prompt", True):
        description = modes if pooling.get("include_prompt", True) else "include_prompt = false"
        raise ModelError(
            f"{place} pools by {description}; mean or cls over the whole input is needed",
            hint="hybridr models lists encoders that it opens",
        )
    return Usage(
        pooling=str(modes[0]),
        similarity=SIMILARITIES[function],
        prefixes=read_prompts(folder, model_config),
        max_tokens=min(max_tokens or 512, configured_limit(backbone)),
        truncate_dim=size,
    )


def require_modules(folder: Path) -> dict[str, str]:
    """Return the folders of the modules by kind. Raises ModelError for other modules, or another order."""
    entries = read_modules(folder)
    modules = dict(entries)
    unknown = modules.keys() - MODULES
    order = [kind for kind, _ in entries if kind != "Dropout"]
    if unknown or "Pooling" not in modules:
        problem = f"the module {min(unknown)}" if unknown else "no pooling"
        raise ModelError(
            f"{folder} has {problem}: a backbone with mean or cls pooling is needed",
            hint="hybridr models lists encoders that it opens",
        )
    if order not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
        raise ModelError(
            f"{folder} runs {', '.join(order)}; Transformer, Pooling and perhaps Normalize are needed"
        )
    for entry in read_json(folder, "modules.json"):
        if entry.get("kwargs"):
            raise ModelError(
                f"{folder} passes {entry['kwargs']} to its module {entry['type']}, which is not supported"
            )
    if "Normalize" in modules:
        place = inner_folder(folder, modules["Normalize"])
        record = read_object(place, "config.json")
        require_supported(f"config.json of {place}", record, NORMALIZE, closed=True)
    return modules


def read_prompts(folder: Path, model_config: Mapping[str, Any]) -> dict[str, str]:
    """Return the texts (prompts) that the model expects in front of a query and of a document, by side.

    Raises ModelError, also for prompts that versions of sentence-transformers read differently. Without a
    "document" prompt some versions give documents "passage" or "corpus", version 6.2 nothing.
    Versions before 5 give the default prompt to both sides, version 6.2 to neither.
    """
    prompts = {str(name): str(text or "") for name, text in (model_config.get("prompts") or {}).items()}
    sides = {side: prompts.get(side, "") for side in ("query", "document")}
    if (characters := max(map(len, sides.values()))) > MAX_PROMPT_CHARACTERS:
        raise ModelError(
            f"the model {folder} has a prompt of {characters:,} characters; "
            f"at most {MAX_PROMPT_CHARACTERS:,} are allowed",
            hint=FETCH_AGAIN,
        )
    hint = (
        'name both in "prompts" of config_sentence_transformers.json, "query" and "document", '
        'and set "default_prompt_name" to null'
    )
    if "document" not in prompts:
        for name in ("passage", "corpus"):
            if prompts.get(name):
                raise ModelError(
                    f"the model {folder} has a prompt for {name!r} and none for 'document': versions of "
                    "sentence-transformers differ in what a document gets",
                    hint=hint,
                )
    default = model_config.get("default_prompt_name")
    if default is None:
        return sides
    if default not in prompts:
        raise ModelError(f"the model {folder} has no prompt {default!r}, its default_prompt_name", hint=hint)
    if set(sides.values()) != {prompts[default]}:
        raise ModelError(
            f"the model {folder} has the default_prompt_name {default!r}: versions of sentence-transformers "
            "differ in whether queries and documents get it",
            hint=hint,
        )
    return sides


def backbone_options(folder: Path) -> dict[str, Any]:
    """Return the content of `sentence_bert_config.json`, by any of its names. Raises ModelError."""
    records = (read_object(folder, name) for name in BACKBONE_FILES)
    return next((record for record in records if record), {})


def configured_limit(folder: Path) -> int:
    """Return the token limit of the model's files, at most 512; 512 without one. Raises ModelError."""
    options = backbone_options(folder)
    nested = [options.get(key) for key in ("tokenizer_args", "processor_kwargs")]
    limits = (
        *(record.get("model_max_length") for record in nested if isinstance(record, dict)),
        options.get("max_seq_length"),
        read_object(folder, "tokenizer_config.json").get("model_max_length"),
    )
    limit = next((limit for limit in limits if limit is not None), 512)
    if not isinstance(limit, (int, float)) or not limit >= 3:
        raise ModelError(
            f"the model {folder} reads {limit!r} tokens, 3 at least are needed", hint=FETCH_AGAIN
        )
    return int(min(limit, 512))


def configured_tokenizer(folder: Path, definition: str) -> str:
    """Return a tokenizer's JSON with the changes that sentence-transformers makes by the configuration files.

    Raises ModelError for tokens that would be added, and for lower-casing that cannot be expressed.
    """
    record, config = parsed_json(definition), read_object(folder, TOKENIZER_CONFIG)
    normalizer = record.get("normalizer")
    if config.get("tokenizer_class") in BERT_TOKENIZERS and record["model"].get("type") == "WordPiece":
        if normalizer is not None and normalizer.get("type") != "BertNormalizer":
            raise ModelError(
                f"{TOKENIZER_CONFIG} of {folder} has {config['tokenizer_class']}, dropping the normalizer "
                f"{normalizer.get('type')} of {TOKENIZER_FILE}",
                hint=f'"tokenizer_class": "PreTrainedTokenizerFast" in {TOKENIZER_CONFIG} keeps it',
            )
        options = {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": config.get("tokenize_chinese_chars", True),
            "strip_accents": config.get("strip_accents"),
            "lowercase": config.get("do_lower_case", True),
        }
        normalizer = (normalizer or {}) | options
    if backbone_options(folder).get("do_lower_case") and not lowercases(normalizer):
        steps = normalizer["normalizers"] if (normalizer or {}).get("type") == "Sequence" else [normalizer]
        normalizer = {"type": "Sequence", "normalizers": [{"type": "Lowercase"}, *filter(None, steps)]}
    if normalizer != record.get("normalizer"):
        record["normalizer"] = normalizer
        definition = json.dumps(record, ensure_ascii=False)
    extra_tokens = config.get("extra_special_tokens") or {}
    tokens = [
        *(config.get("additional_special_tokens") or []),
        *(config.get("added_tokens_decoder") or {}).values(),
        *(extra_tokens.values() if isinstance(extra_tokens, dict) else extra_tokens),
    ]
    token_texts = {str(token.get("content") if isinstance(token, dict) else token) for token in tokens}
    if missing := sorted(token_texts - Tokenizer.from_str(definition).get_vocab().keys()):
        raise ModelError(
            f"{TOKENIZER_CONFIG} of {folder} adds {missing[0]!r}, which {TOKENIZER_FILE} lacks",
            hint="save_pretrained of transformers' AutoTokenizer writes it there",
        )
    return definition


def lowercases(normalizer: dict[str, Any] | None) -> bool:
    """Return whether a tokenizer's normalizer, or one nested in it, lowercases text."""
    if not normalizer:
        return False
    inner = normalizer.get("normalizers") or []
    return (
        normalizer.get("type") == "Lowercase"
        or bool(normalizer.get("lowercase"))
        or any(map(lowercases, inner))
    )
