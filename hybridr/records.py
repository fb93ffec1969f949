"""The nouns of retrieval (documents, queries, hits) as immutable records."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol, TypeAlias

from pydantic import BaseModel


class Document(NamedTuple):
    """A document of a corpus."""

    doc_id: str
    text: str
    title: str = ""

    @property
    def contents(self) -> str:
        """Return title and text, joined by a blank: what is indexed and encoded."""
        return f"{self.title} {self.text}".strip() if self.title else self.text


class Query(NamedTuple):
    """A query with its id."""

    query_id: str
    text: str


class Hit(NamedTuple):
    """A ranked document; ranks start at 1. `scores` are raw scores by retriever, None if a retriever did not
    find it.

    `passage` is the span of the best passage of a longer document, in characters of its joined text; `text`
    is then that passage. `text` is HTML: escaped, with the query's words in `<em>`. `parts` are the parts of
    the score, if it is a sum. `rule` names the rule that pinned the document. `confidence`, 0 to 1, is one
    minus the share of unanswerable queries whose best hit scores as high; None if not calibrated.
    """

    doc_id: str
    score: float
    rank: int
    scores: Mapping[str, float | None] = MappingProxyType({})
    text: str = ""
    passage: tuple[int, int] | None = None
    parts: dict[str, float] | None = None
    rule: str | None = None
    confidence: float | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON values; the raw score of a retriever is `<retriever>_score`."""
        scores = {f"{name}_score": score for name, score in self.scores.items()}
        texts = {"text": self.text, "passage": self.passage, "parts": self.parts}
        numbers = {"score": self.score, "confidence": self.confidence}
        pinned = {"rule": self.rule} if self.rule else {}
        return {"doc_id": self.doc_id, **numbers, "rank": self.rank, **scores, **texts, **pinned}


class Hits(list[Hit]):
    """The hits of a page, best first.

    `best` is the score of the best hit on any page; None without hits. `nearest` is the best document if
    every hit was dropped because of its low confidence.
    """

    def __init__(self, hits: Iterable[Hit] = (), best: float | None = None) -> None:
        super().__init__(hits)
        self.best = best
        self.nearest: Hit | None = None


@dataclass(frozen=True)
class Reported:
    """Base of results of verbs that can be shown as JSON."""

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON values: paths as text, models and dataclasses as objects."""

        def values(fields: list[tuple[str, Any]]) -> dict[str, Any]:
            """Return the fields of one record as a dictionary of JSON values."""
            paths = {name: str(value) for name, value in fields if isinstance(value, Path)}
            models = [(name, value) for name, value in fields if isinstance(value, BaseModel)]
            return dict(fields) | paths | {name: model.model_dump(mode="json") for name, model in models}

        return asdict(self, dict_factory=values)


@dataclass(frozen=True)
class Windows(Reported):
    """How documents are split: windows of `tokens` tokens, including [CLS] and [SEP].

    Neighbouring windows share `overlap` tokens. A document gets at most `most` windows.
    """

    tokens: int
    overlap: int
    most: int


Qrels: TypeAlias = dict[str, dict[str, int]]
"""query id -> document id -> grade (0 = judged not relevant)."""

Run: TypeAlias = dict[str, dict[str, float]]
"""query id -> document id -> score."""


class Progress(Protocol):
    """Receives the progress of a stage: `done` of `total` units, `total` None while unknown."""

    def __call__(self, stage: str, done: int, total: int | None = None, note: str = "") -> None:
        """Report that `stage` has finished `done` units; `note` is a short text such as a loss."""


def silent(stage: str, done: int, total: int | None = None, note: str = "") -> None:
    """Ignore progress."""
