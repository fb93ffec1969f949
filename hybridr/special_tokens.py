"""Which tokens pad, begin, end and mask a text: the model folder's own, else those usual for its kind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .errors import ModelError
from .retriever import FETCH_AGAIN, read_json

BRACKETS = {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")}
ANGLES = {
    "bos_token": "<s>", "eos_token": "</s>", "cls_token": "<s>", "sep_token": "</s>",
    "pad_token": "<pad>", "unk_token": "<unk>", "mask_token": "<mask>",
}  # fmt: skip
KINDS = {kind: ANGLES for kind in ("roberta", "xlm-roberta", "camembert")}
KINDS["mpnet"] = ANGLES | {"unk_token": "[UNK]"}
"""By `model_type`; all others write brackets, as BERT and DistilBERT do."""

FILES = ("special_tokens_map.json", "tokenizer_config.json")


def read_special_tokens(folder: Path | None, kind: str) -> dict[str, str]:
    """Name the special tokens by role, as "pad_token". Raises ModelError when a file is damaged."""
    named = dict(KINDS.get(kind, BRACKETS))
    for file in FILES if folder else ():
        record = read_object(Path(str(folder)), file)
        for role in named:
            token = record.get(role)
            named[role] = (token.get("content") if isinstance(token, dict) else token) or named[role]
    return named


def read_object(folder: Path, file: str) -> dict[str, Any]:
    """Read a JSON object, empty where the file is missing. Raises ModelError when it is damaged."""
    record = read_json(folder, file, default={})
    if not isinstance(record, dict):
        raise ModelError(f"the model {folder} is damaged: {file} holds no JSON object", hint=FETCH_AGAIN)
    return record
