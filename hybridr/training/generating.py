"""Generating: a sequence-to-sequence model that somebody brings (doc2query) writes queries of texts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..encoders.contract import require_no_links
from ..encoders.stored_models import explaining
from ..errors import extra
from ..files.foreign import numbered_lines
from ..files.manifest import fingerprint, sha256_of
from ..records import Progress
from .judged import whole_lines
from .torch_models import imported_transformers, quiet

with extra("train", "generating queries"):
    import torch

QUERIES_A_TEXT, TEXTS_AT_ONCE = 3, 8  # queries of a text (Wang et al. 2022), texts that are read together
TEXT_TOKENS, WRITTEN_TOKENS = 350, 64  # tokens
SAMPLING: dict[str, Any] = {"do_sample": True, "top_k": 25, "top_p": 0.95}  # as GPL draws


class QueryWriter:
    """Writes queries of texts, drawn by a seed: each time the same."""

    def __init__(self, folder: Path) -> None:
        """Open a folder with weights as safetensors. Raises ModelError for no such model."""
        require_no_links(folder)
        safe: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
        with explaining(folder), quiet():
            kinds = imported_transformers()
            self.tokens = kinds.AutoTokenizer.from_pretrained(folder, **safe)
            self.model = kinds.AutoModelForSeq2SeqLM.from_pretrained(folder, use_safetensors=True, **safe)
        self.model.eval()
        files = sorted(path for path in folder.iterdir() if path.is_file())
        self.fingerprint = fingerprint([[path.name, sha256_of(path)] for path in files])

    def queries(self, texts: Sequence[str], part: Path, seed: int, progress: Progress) -> list[list[str]]:
        """Write queries of each text, and keep them in the file `part`; a killed run goes on."""
        done = whole_lines(part)
        with part.open("a", encoding="utf-8") as lines:
            for start in range(done - done % TEXTS_AT_ONCE, len(texts), TEXTS_AT_ONCE):
                progress("write queries", start, len(texts))
                written = self.written(texts[start : start + TEXTS_AT_ONCE], seed + start)
                lines.writelines(json.dumps(queries) + "\n" for queries in written[max(0, done - start) :])
                lines.flush()
        progress("write queries", len(texts), len(texts))
        return [json.loads(line) for _, line in numbered_lines(part)]

    @torch.inference_mode()
    def written(self, texts: Sequence[str], seed: int) -> list[list[str]]:
        """Write queries of a few texts, none of them twice or empty."""
        torch.manual_seed(seed)
        inputs = self.tokens(
            list(texts), truncation=True, max_length=TEXT_TOKENS, padding=True, return_tensors="pt"
        )
        arguments = {name: inputs[name] for name in ("input_ids", "attention_mask")}
        outputs = self.model.generate(
            **arguments, **SAMPLING, num_return_sequences=QUERIES_A_TEXT, max_new_tokens=WRITTEN_TOKENS
        )
        said = [text.strip() for text in self.tokens.batch_decode(outputs, skip_special_tokens=True)]
        rows = [said[start : start + QUERIES_A_TEXT] for start in range(0, len(said), QUERIES_A_TEXT)]
        return [list(dict.fromkeys(filter(None, row))) for row in rows]
