"""The five rankers of DDR (Zhan et al. 2022): dense, unicoil, splade, colbert and rerank.

`assemble` joins a DAM (backbone fitted to a domain) and a REM (adapters fitted to relevance) to a ranker.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ..encoders.contract import Precision, Vectors
from ..encoders.export.exporting import export, require_replaceable
from ..encoders.export.fetched_models import fetch_published
from ..encoders.registry import published_checkpoint
from ..encoders.tokens import batches, encode_ids, pad_rows
from ..errors import ModelError, SettingsError, extra
from ..families import member_names
from ..files.local import read_manifest
from ..records import Document, Progress, silent
from . import adapters
from .adapters import lora_layers
from .backbone import EMBEDDINGS, TIED, Dam, RemFiles, Tensors, read_dam, read_rem
from .ranker import Pairs, Ranker, Texts, Tokens
from .settings import OBJECTIVES, AdaptSettings
from .torch_models import BackboneModel, BiEncoder

with extra("train", "assembling DAM and REM"):
    import torch
    from torch import nn


class VectorRanker(Ranker):
    """A ranker that encodes queries and documents separately, to one vector each."""

    @property
    def dim(self) -> int:
        """The size of a vector."""
        return int(self.config.hidden_size)

    def encode_queries(self, texts: Texts, *, max_tokens: int | None = None) -> Vectors:
        """Encode queries (texts, or rows of token ids) to float32 `(n, dim)`, in their order.

        Raises DataError, and ModelError for texts if the DAM has no tokenizer.
        """
        rows = self.tokens.rows(texts, self.limit(max_tokens))
        return encode_ids(
            rows,
            self.dim,
            lambda ids, mask: self.run(np.where(mask == 1, ids, self.tokens.padding), mask),
            budget=self.batch_tokens,
        )

    def encode_documents(self, texts: Texts, *, max_tokens: int | None = None) -> Vectors:
        """Encode documents exactly as `encode_queries` encodes queries."""
        return self.encode_queries(texts, max_tokens=max_tokens)


class Dense(VectorRanker):
    """The dense ranker: one vector per text, the mean of the token states ([CLS] and [SEP] included) or the
    [CLS] state.

    The head is the identity, or a module that training added.
    """

    ranker = "dense"

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Return vectors `(n, dim)` for ids and mask `(n, tokens)`."""
        return self.vectors(self.states(ids, mask), mask)

    def vectors(self, states: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Return fp32 vectors `(n, dim)` of token states `(n, tokens, dim)`."""
        vectors: torch.Tensor = self.head(self.pool(states, mask)).float()
        return vectors

    def retriever(self) -> BiEncoder:
        """Return the same encoder as a `BiEncoder`, LoRA merged. Raises ModelError without tokenizer."""
        if self.tokens.definition is None:
            raise ModelError(
                "the DAM has no tokenizer, which an encoder needs", hint="add its tokenizer.json"
            )
        backbone = adapters.plain_copy(self.backbone).eval()
        return BiEncoder(backbone, self.tokens.definition, self.usage, self.folder)


class WordRanker(VectorRanker):
    """A ranker that gives each word of the vocabulary a weight."""

    @property
    def dim(self) -> int:
        """The size of a vector, which is the vocabulary's."""
        return int(self.config.vocab_size)


class Unicoil(WordRanker):
    """Learned weights of the text's own tokens: relu(u h + c), the largest for each id; 0 for special ids."""

    ranker = "unicoil"
    outputs = 1

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Return weights `(n, vocabulary)` for ids and mask `(n, tokens)`."""
        special = torch.tensor(sorted(self.special_ids.values()), device=ids.device)
        visible = mask * (ids.unsqueeze(-1) != special).all(-1)
        weights = torch.relu(self.head(self.states(ids, mask)).squeeze(-1)) * visible
        return weights.new_zeros(ids.shape[0], self.dim).scatter_reduce(1, ids, weights, "amax")

    def require_complete(self) -> None:
        """Raise ModelError without the head, or without special tokens (whose weights are 0)."""
        super().require_complete()
        unknown = sorted(self.special_tokens.keys() - self.special_ids.keys())
        if unknown:
            raise ModelError(
                f"the DAM {self.folder} does not say its {unknown[0]}, which unicoil has to leave out",
                hint="put its tokenizer.json or vocab.txt into the folder",
            )


class Splade(WordRanker):
    """Learned weights of all words: the largest log(1 + relu(logit)) of the masked-LM head over the tokens.

    The head's decoder is tied to the word embeddings. A REM carries the entire head, so loading it replaces
    the DAM's word embeddings, as in DDR's code. With `load_embeddings=False` the DAM's embeddings stay, also
    in the decoder.
    """

    ranker = "splade"

    def __init__(self, dam: Dam, pooling: str = "mean", similarity: str = "ip") -> None:
        super().__init__(dam, pooling, similarity)
        self.model = dam.model
        self._has_head = dam.has_language_head

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Return weights `(n, vocabulary)` for ids and mask `(n, tokens)`."""
        logits = self.model(input_ids=ids, attention_mask=mask).logits.float()
        return (torch.log1p(torch.relu(logits)) * mask.unsqueeze(-1)).amax(1)

    def head_weights(self, name: str = "") -> dict[str, nn.Parameter]:
        """Return the parameters of the masked-LM head by their keys in a DAM or REM."""
        backbone = f"{self.model.base_model_prefix}."
        parameters = self.model.named_parameters(remove_duplicate=False)
        return {key: weight for key, weight in parameters if not key.startswith(backbone)}

    def own_head(self) -> nn.Module:
        """Return the masked-LM head as a module of its parameters."""
        names = {key.replace(".", "_"): weight for key, weight in self.head_weights().items()}
        return nn.ParameterDict(names)

    def take_rem_head(self, rem: RemFiles, head: Tensors, load_embeddings: bool) -> None:
        """Set the masked-LM head, with the word embeddings, from a REM. Raises ModelError."""
        words = self.backbone.get_input_embeddings().weight
        parameters = self.head_weights()
        targets = {key: weight for key, weight in parameters.items() if key in head or not key.endswith(TIED)}
        tied = {key for key, weight in targets.items() if weight is words}
        if head and not load_embeddings:
            head = {key: words.detach() if key in tied else value for key, value in head.items()}
        adapters.fill_weights(targets, head, rem.path_of("pytorch_model_head.bin"))
        self._has_head = True

    def require_complete(self) -> None:
        """Raise ModelError if neither DAM nor REM had a masked-LM head."""
        if not self._has_head:
            raise ModelError(
                f"the DAM {self.folder} has no masked-LM head, which splade needs",
                hint="give a masked-LM checkpoint, or a REM that was trained as splade",
            )


class Colbert(VectorRanker):
    """One short vector of length 1 per token; padding is zero (ColBERT, without its [Q], [D] and [MASK]).

    Scores are computed by `max_sim`.
    """

    ranker = "colbert"
    outputs = 0

    @property
    def dim(self) -> int:
        """The size of a token's vector."""
        return len(self.head.get_parameter("bias"))

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Return vectors `(n, tokens, dim)` for ids and mask `(n, tokens)`."""
        vectors = self.head(self.states(ids, mask)).float()
        return nn.functional.normalize(vectors, dim=-1) * mask.unsqueeze(-1)

    def encode_queries(self, texts: Texts, *, max_tokens: int | None = None) -> Vectors:
        """Return the token vectors of texts, float32 `(n, tokens, dim)`, zero after the end of a text."""
        rows = self.tokens.rows(texts, self.limit(max_tokens))
        lengths = [len(row) for row in rows]
        vectors = np.zeros((len(rows), max(lengths, default=0), self.dim), dtype=np.float32)
        for batch in batches(lengths, self.batch_tokens):
            ids, mask = self.tokens.batch([rows[position] for position in batch])
            vectors[batch, : ids.shape[1]] = self.run(ids, mask)
        return vectors


class CrossEncoder(Ranker):
    """The re-ranker: reads query and document together; the score is a linear function of the [CLS] state.

    A REM carries its own input embeddings, which replace the DAM's unless `load_embeddings=False`.
    """

    ranker = "rerank"
    outputs = 1

    def forward(
        self, ids: torch.Tensor, mask: torch.Tensor, segments: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Return scores `(n,)`; ids, mask and segments (0 query, 1 document) are `(n, tokens)`."""
        has_types = getattr(self.config, "type_vocab_size", 0) > 1
        kinds = {"token_type_ids": segments} if has_types and segments is not None else {}
        scores: torch.Tensor = self.head(self.states(ids, mask, **kinds)[:, 0]).squeeze(-1)
        return scores

    def score(self, pairs: Pairs, *, max_tokens: int | None = None) -> Vectors:
        """Return scores of pairs (query, document), float32 `(n,)`, in their order; higher is better.

        A pair may also be one row of token ids of both texts. Raises DataError, and
        ModelError for texts if the DAM has no tokenizer.
        """
        return score_pairs(self, self.tokens, pairs, self.limit(max_tokens))

    def take_rem_head(self, rem: RemFiles, head: Tensors, load_embeddings: bool) -> None:
        """Load the head's weights, and with `load_embeddings` the REM's input embeddings if it has any.

        Raises ModelError for weights that do not fit.
        """
        super().take_rem_head(rem, head, load_embeddings)
        if load_embeddings and (tensors := rem.tensors(EMBEDDINGS)):
            embeddings = dict(self.backbone.embeddings.named_parameters())
            floats = {key: value for key, value in tensors.items() if value.is_floating_point()}
            adapters.fill_weights(embeddings, floats, rem.path_of(EMBEDDINGS))


def score_pairs(model: BackboneModel, tokens: Tokens, pairs: Pairs, limit: int) -> Vectors:
    """Return scores of pairs (query, document) by a model that reads both together, float32 `(n,)`."""
    rows, segments = tokens.pair_rows(pairs, limit)
    scores = np.zeros(len(rows), dtype=np.float32)
    for batch in batches([len(row) for row in rows], model.batch_tokens):
        ids, mask = tokens.batch([rows[place] for place in batch])
        inputs = (ids, mask, pad_rows([segments[place] for place in batch])[0])
        scores[batch] = model.run(*inputs[: len(model.input_names)])
    return scores


RANKERS: dict[str, type[Ranker]] = {
    kind.ranker: kind for kind in (Dense, Unicoil, Splade, Colbert, CrossEncoder)
}
CHOICES = {"ranker": tuple(RANKERS), "pooling": ("mean", "cls"), "similarity": ("ip", "cosine")}


def assemble(
    dam: Path | str,
    rem: Path | str | None = None,
    *,
    ranker: str = "dense",
    pooling: str | None = None,
    similarity: str | None = None,
    merge: bool = True,
    load_rem_embeddings: bool = True,
    progress: Progress = silent,
) -> Ranker:
    """Join a DAM (a masked-LM checkpoint of BERT, RoBERTa or DistilBERT) and a REM to a ranker, and return
    it.

    `dam` is a folder, `rem` a folder or zip; each may be a published name (`hybridr models`), which is
    downloaded. `ranker` is "dense", "unicoil", "splade", "colbert" or "rerank". For "dense", `pooling` is
    "mean" or "cls" and `similarity` "ip" or "cosine"; None takes the value that the published model or
    the REM was trained with, else "mean" and "ip". `merge` folds the LoRA into the weights (a parallel
    adapter stays). `load_rem_embeddings=False` keeps the DAM's embeddings if a REM (of splade and rerank)
    carries its own. The ranker encodes texts or token ids in fp32 on the CPU, or where `.to(device)` puts it.

    Method: Zhan et al. 2022, "Disentangled Modeling of Domain and Relevance for Adaptable Dense Retrieval".
    Raises SettingsError, DownloadError, and ModelError for a checkpoint that is damaged, unsupported, asks
    to run code, or does not fit.
    """
    dam_entry, rem_entry = published_checkpoint(dam), published_checkpoint(rem) if rem is not None else None
    for entry in (dam_entry, rem_entry):  # equal sizes do not show that two published models match
        if entry and entry.ranker not in ("any", ranker):
            raise ModelError(
                f"{entry.name} is a {entry.ranker} ranker, not {ranker}", hint=f'ranker="{entry.ranker}"'
            )
    if dam_entry and rem_entry and dam_entry.language != rem_entry.language:
        raise ModelError(
            f"{dam_entry.name} is {dam_entry.language} and {rem_entry.name} is {rem_entry.language}",
            hint="`hybridr models` shows which REM goes with which DAM",
        )
    trained_usage = read_trained_usage(dam) | (read_trained_usage(rem) if rem is not None else {})
    kind = RANKERS[checked_choice("ranker", ranker)]
    if ranker != "dense" and (pooling or "mean", similarity or "ip") != ("mean", "ip"):
        raise SettingsError(f"pooling and similarity are for the dense ranker, not for {ranker}")
    pooling = checked_choice("pooling", pooling or trained_usage.get("pooling", "mean"))
    similarity = checked_choice("similarity", similarity or trained_usage.get("similarity", "ip"))
    assembled = kind(read_dam(local_path(dam, progress)), pooling, similarity)
    if rem is not None:
        assembled.add_rem(read_rem(local_path(rem, progress)), load_embeddings=load_rem_embeddings)
        if merge and any(lora_layers(assembled.backbone)):
            assembled.merge()
    assembled.require_complete()
    return assembled.eval()


def read_trained_usage(source: Path | str) -> dict[str, str]:
    """Return pooling and similarity of a published model, or of a folder trained by hybridr."""
    if (entry := published_checkpoint(source)) is not None:
        return {"pooling": entry.pooling, "similarity": entry.similarity}
    folder = Path(source).expanduser()
    manifest = read_manifest(folder) or {}
    settings: dict[str, Any] = {}
    pooled = member_names(OBJECTIVES, on="documents", pooled=True)
    if manifest.get("stage") == "rem":
        settings = manifest["rem"]
    elif manifest.get("stage") == "dam" and manifest["dam"]["objective"] in pooled:
        settings = manifest["settings"]
    return {name: settings[name] for name in ("pooling", "similarity") if name in settings}


def local_path(source: Path | str, progress: Progress) -> Path:
    """Return the path of a folder, zip or downloaded published name. Raises ModelError, DownloadError."""
    path = Path(source).expanduser()
    if path.exists():
        return path
    entry = published_checkpoint(source)
    if entry is None or str(source) not in (entry.name, entry.repository):
        raise ModelError(
            f"there is no DAM or REM {source}", hint="`hybridr models` lists the published names"
        )
    return fetch_published(entry.name, progress=progress)


def checked_choice(setting: str, value: str) -> str:
    """Return `value`. Raise SettingsError if it is not one of the setting's choices."""
    if value not in CHOICES[setting]:
        raise SettingsError(f"there is no {setting} '{value}'", hint=f"one of {', '.join(CHOICES[setting])}")
    return value


def export_joined(
    dam: Path | str,
    rem: Path | str | None,
    folder: Path | str,
    *,
    ranker: str = "dense",
    precision: Precision = "fp32",
    texts: Sequence[Document | str] = (),
    progress: Progress = silent,
    **usage: Any,
) -> Path:
    """Join DAM and REM by `assemble` and export the ranker to `folder`. Raises what `assemble` and `export`
    raise.

    `usage` are further arguments of `assemble`. The dense ranker becomes an encoder, the others folders of
    their own kinds.
    """
    require_replaceable(Path(folder))
    model = assemble(dam, rem, ranker=ranker, progress=progress, **usage)
    return export(model, folder, precision=precision, texts=texts, progress=progress)


def joined_encoder(dam: Path | str, settings: AdaptSettings, progress: Progress) -> BiEncoder:
    """Return the exportable encoder made of a DAM and the REM in the settings."""
    ranker = assemble(
        dam, settings.rem, pooling=settings.pooling, similarity=settings.similarity, progress=progress
    )
    encoder = ranker.retriever()
    limit = min(settings.max_tokens or encoder.max_tokens, encoder.max_tokens)
    encoder.usage = replace(encoder.usage, max_tokens=limit)
    return encoder


def interpolated_encoder(old: BiEncoder, new: BiEncoder, strength: float) -> BiEncoder:
    """Return the encoder with weights `old + strength * (new - old)`; equal weights do not change."""
    if strength == 1:
        return new
    result = copy.deepcopy(new)
    old_weights = dict(old.backbone.named_parameters())
    with torch.no_grad():
        for name, weight in result.backbone.named_parameters():
            weight.copy_(old_weights[name].lerp(weight, strength))
    return result
