"""BERM (Xu et al. 2023): balance and extraction of matching units (sentences) in passages."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional

from ...errors import DataError
from ...settings import Stage
from ..batches import Numbers, Rows, TargetTexts
from ..runs import Training
from .labelled import ComparedBatch, EncodedApart, Plain

ENDS = (".", "?", "!", "。", "？", "！")
"""Tokens that end a sentence, where the vocabulary has them."""
TokenSpan: TypeAlias = tuple[int, int]
"""Positions of a unit's tokens in its passage, the second excluded."""
UnitScores: TypeAlias = Callable[[int, int, Sequence[TokenSpan]], NDArray[np.float64]]
"""Scores a passage's units for a query: numbers of query and passage, and the units."""
AnswerScores: TypeAlias = Callable[[int, int], NDArray[Any] | None]
"""A reader's score per position of a passage, by numbers of query and passage; None without scores."""


def find_units(ids: NDArray[Any], ends: Collection[int], *, released: bool = False) -> list[TokenSpan]:
    """Return the units of a passage's tokens `(tokens,)`: the spans between tokens in `ends`.

    The first and last token are special. Tokens after the last end are a unit too, and two adjacent ends
    enclose none. In the `released` form of the authors' code nothing follows the last end. A unit without
    tokens is then the end itself.
    """
    places = np.flatnonzero(np.isin(ids, list(ends))).tolist()
    starts = [1, *(place + 1 for place in places)]
    if released:
        pairs = zip(starts, places, strict=False)
        return [(start, max(end, start + 1)) for start, end in pairs]
    pairs = zip(starts, [*places, len(ids) - 1], strict=True)
    return [(start, end) for start, end in pairs if start < end]


@dataclass(frozen=True)
class Bm25Units:
    """BM25 scores of a passage's units for its query, with the collection's statistics (BERM).

    Words are token ids. The factor k1 + 1 is left out; it would only matter with a reader's scores.
    """

    queries: Rows
    documents: Rows
    """Queries and documents are stored as encoded, with a special token at either end."""
    frequencies: NDArray[Any]
    """Number of passages with a token, by its id."""
    count: int
    """Number of passages."""
    average: float
    """Mean tokens of a unit, without its end."""
    reader: AnswerScores | None = None
    k1: float = 1.5
    b: float = 0.75
    delta: float = 0.1
    """Weight of the reader's largest score inside a unit."""

    def __call__(self, query: int, document: int, spans: Sequence[TokenSpan]) -> NDArray[np.float64]:
        """Return the score of each unit `spans` of a document for a query, `(units,)`."""
        words, tokens = self.queries[query][1:-1], self.documents[document]
        passage_counts = self.frequencies[words].astype(np.float64)
        idf = np.log(1 + (self.count - passage_counts + 0.5) / (passage_counts + 0.5))
        reader_scores = self.reader(query, document) if self.reader else None
        scores = []
        for start, end in spans:  # a word that a query repeats counts each time
            unit = tokens[start:end]
            frequency = (words[:, None] == unit).sum(1)
            length = 1 - self.b + self.b * len(unit) / self.average
            scores.append(float((idf * frequency / (frequency + self.k1 * length)).sum()))
        if reader_scores is not None:
            best = [float(np.max(reader_scores[start:end], initial=0.0)) for start, end in spans]
            scores = [score + self.delta * best_score for score, best_score in zip(scores, best, strict=True)]
        return np.array(scores, dtype=np.float64)


def unit_statistics(documents: Rows, ends: Collection[int], vocabulary: int) -> tuple[Numbers, int, float]:
    """Return the number of passages with each token id, the number of units, and their mean tokens."""
    frequencies = np.zeros(vocabulary, dtype=np.int64)
    tokens = units = 0
    for row in documents:
        frequencies[np.unique(row)] += 1
        lengths = [end - start for start, end in find_units(row, ends)]
        tokens, units = tokens + sum(lengths), units + len(lengths)
    return frequencies, units, tokens / max(1, units)


def unit_means(states: Tensor, units: Sequence[Sequence[TokenSpan]]) -> tuple[Tensor, Tensor]:
    """Return the mean token states of each passage's units, from states `(n, tokens, width)`.

    The result is vectors `(n, units, width)` and a mask `(n, units)` of the units that exist. Vectors are 0
    where a passage has fewer units.
    """
    limit = max(1, *(len(spans) for spans in units))
    shares = np.zeros((len(units), limit, states.shape[1]), dtype=np.float32)
    for row, spans in enumerate(units):
        for number, (start, end) in enumerate(spans):
            shares[row, number, start:end] = 1 / (end - start)
    counts = torch.tensor([len(spans) for spans in units], device=states.device)
    mask = torch.arange(limit, device=states.device) < counts.unsqueeze(1)
    return torch.from_numpy(shares).to(states) @ states, mask


def log_shares(scores: Tensor, mask: Tensor) -> Tensor:
    """Return the log-softmax of scores `(n, units)` over the units that exist (`mask`); 0 elsewhere."""
    hidden = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    return functional.log_softmax(hidden, dim=1).masked_fill(~mask, 0.0)


def balance_losses(texts: Tensor, units: Tensor, mask: Tensor, *, per_unit: bool = False) -> Tensor:
    """Return BERM's balance losses `(n,)`, least if a passage's vector is equally near to all its units.

    `texts` are `(n, dim)`, `units` and `mask` the results of `unit_means`. The loss is the KL divergence of
    the softmax of their products from the uniform distribution; `per_unit` divides once more by the number of
    units, as the released code does.
    """
    shares = log_shares((units @ texts.unsqueeze(2)).squeeze(2), mask)
    counts = mask.sum(1).clamp(min=1).to(shares.dtype)
    divergence = -counts.log() - shares.sum(1) / counts
    divergence = torch.where(mask.any(1), divergence, 0.0)
    return divergence / counts if per_unit else divergence


def extract_losses(
    queries: Tensor,
    texts: Tensor,
    units: Tensor,
    mask: Tensor,
    essential: Tensor,
    *,
    twice: bool = False,
) -> Tensor:
    """Return BERM's extract losses `(n,)`, least if query and passage together point to the essential unit.

    It is the cross-entropy of the products of the units with GELU(query * text); `twice` takes the softmax
    twice, as the released code does. `essential` `(n,)` is the number of the unit, negative without one, for
    a loss of 0.
    """
    matching = functional.gelu(queries * texts)
    shares = log_shares((units @ matching.unsqueeze(2)).squeeze(2), mask)
    if twice:
        shares = log_shares(shares.exp(), mask)
    losses = -shares.gather(1, essential.clamp(min=0).unsqueeze(1)).squeeze(1)
    return torch.where(essential >= 0, losses, 0.0)


class BermSettings(Stage):
    """Settings of BERM; defaults are those of Xu et al. 2023."""

    table: ClassVar[str] = "rem.method_settings"

    balance: float = Field(0.1, ge=0, le=100, description="weight of balance")
    extract: float = Field(1.0, ge=0, le=100, description="weight of extract")
    variant: Literal["paper", "code"] | None = Field(None, description="as released, or None: of the paper")


class Berm(Plain):
    """BERM as a method: a passage's vector balances its units, and the query finds the essential one (Xu et
    al. 2023).

    It adds two terms to the ranking loss. Only positives are cut into units. The "code" variant is the
    released form with its faults, for comparison. It counts the last passage that has a unit with a loss of
    0, and passages without any are not counted.
    """

    name = "berm"
    help = "passages balance their units, and queries find the essential one"
    on = "method"
    source = "Xu et al. 2023 (BERM)"
    own_settings = BermSettings

    def __init__(
        self,
        objective: EncodedApart,
        scores: UnitScores,
        ends: Collection[int],
        *,
        alpha: float = 0.1,
        beta: float = 1.0,
        variant: Literal["paper", "code"] = "paper",
    ) -> None:
        """Take the scoring of units, the tokens that end units, and the weights of balance and extract."""
        self.objective, self.scores, self.ends = objective, scores, ends
        self.alpha, self.beta, self.released = alpha, beta, variant == "code"
        self.last_values: dict[str, Any] = {}
        """Values of the last step, by name."""

    @classmethod
    def create(cls, objective: EncodedApart, settings: Any, seed: int, target: TargetTexts | None) -> Berm:
        """Return the method with units scored by BM25 of the corpus. Raises DataError."""
        tokens, examples = objective.module.tokens, objective.batches.examples
        tokenizer = Tokenizer.from_str(tokens.definition) if tokens.definition else None
        token_ids = [tokenizer.token_to_id(token) for token in ENDS] if tokenizer else []
        ends = [number for number in token_ids if number is not None]
        if not ends:
            raise DataError(
                "the DAM's tokenizer has no token that ends a sentence, so passages cannot be cut into units",
                hint="train without --method berm",
            )
        frequencies, units, average = unit_statistics(examples.documents, ends, tokens.vocabulary)
        if units <= len(examples.documents):
            raise DataError(
                f"the {len(examples.documents):,} documents hold {units:,} sentences: with one "
                "each there is nothing to balance or extract",
                hint="train without --method berm",
            )
        count = len(examples.documents)
        scores = Bm25Units(examples.queries, examples.documents, frequencies, count, average)
        weights = {"alpha": settings.balance, "beta": settings.extract}
        return cls(objective, scores, ends, **weights, variant=settings.variant or "paper")

    def loss(self, compared: ComparedBatch) -> Tensor:
        """Return the weighted sum of ranking loss, balance and extract."""
        objective, passages = self.objective, compared.passages
        share, documents = objective.process_share(compared.batch), objective.batches.examples.documents
        numbers = share.positives.tolist()
        units = [find_units(documents[number], self.ends, released=self.released) for number in numbers]
        scored = list(map(self.scores, share.queries.tolist(), numbers, units))
        essential = torch.tensor([int(np.argmax(scores)) if len(scores) else -1 for scores in scored])
        size = len(units)
        offset = objective.processes.rank * size
        queries = compared.queries[offset : offset + size]
        assert passages.states is not None  # of the dense ranker only, which `rem train` requires
        texts, indices = passages.vectors, essential.to(queries.device)
        vectors, mask = unit_means(passages.states, units)
        balanced = balance_losses(texts, vectors, mask, per_unit=self.released)
        extracted = extract_losses(queries, texts, vectors, mask, indices, twice=self.released)
        terms = [self.mean(part, essential) for part in (balanced, extracted)]
        ranking = compared.losses.mean()
        self.last_values = {
            "loss_ranking": ranking.item(),
            "loss_balance": terms[0].item(),
            "loss_extract": terms[1].item(),
            "unit_counts": np.array([len(spans) for spans in units]),
            "essential": essential.numpy(),
            "unit_scores": scored,
        }
        return ranking + self.alpha * terms[0] + self.beta * terms[1]

    def mean(self, terms: Tensor, essential: Tensor) -> Tensor:
        """Return the mean of the terms `(n,)` over all processes' passages."""
        gathered = self.objective.processes.gathered
        terms, has_units = gathered(terms), gathered((essential >= 0).to(terms.device))
        if not self.released:
            return terms.mean()
        counted = terms[has_units][:-1]
        return counted.sum() / max(1, len(counted) + 1)

    def observed(self) -> dict[str, Any]:
        """Return the terms of the last loss and the mean number of units of a passage."""
        names = ("loss_ranking", "loss_balance", "loss_extract")
        return {name: self.last_values[name] for name in names} | {
            "units": float(self.last_values["unit_counts"].mean())
        }

    def record(self, run: Training) -> dict[str, Any]:
        """Return the mean number of units of a passage, and each term at the start and end of the run."""
        observed, tenth = run.observed, max(1, len(run.losses) // 10)
        ends = {
            name: [float(np.mean(observed[name][:tenth])), float(np.mean(observed[name][-tenth:]))]
            for name in ("loss_balance", "loss_extract")
        }
        return {"units": float(np.mean(observed["units"])), **ends}
