"""The nouns of retrieval as immutable records."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar

from pydantic import BaseModel

T = TypeVar("T")


class Document(NamedTuple):
    """One unit of the corpus."""

    doc_id: str
    text: str
    title: str = ""

    @property
    def contents(self) -> str:
        """Title, blank, text: what is indexed and encoded."""
        return f"{self.title} {self.text}".strip() if self.title else self.text


class Query(NamedTuple):
    """An information need as it is sent to the system."""

    query_id: str
    text: str


class Hit(NamedTuple):
    """One ranked document; ranks start at 1. `scores` are raw, by retriever: None where it did not find it.

    `passage` is where the best passage of a longer document begins and ends, in characters of its joined
    text; `text` is that passage then. `text` is HTML: escaped, with the query's words in `<em>`. `parts` is
    what each part adds to the score, where that is a sum. `rule` names the rule that pinned it there.
    `confidence` is one minus the share of unanswerable queries whose best hit scores as high, 0 to 1; None
    where nobody measured that for this ranking.
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
        """Return the fields as answers show them: the raw score of a retriever as `<retriever>_score`."""
        scores = {f"{name}_score": score for name, score in self.scores.items()}
        texts = {"text": self.text, "passage": self.passage, "parts": self.parts}
        numbers = {"score": self.score, "confidence": self.confidence}
        pinned = {"rule": self.rule} if self.rule else {}
        return {"doc_id": self.doc_id, **numbers, "rank": self.rank, **scores, **texts, **pinned}


class Hits(list[Hit]):
    """The hits of a page, best first.

    `best` is the score of the best hit of all, on whichever page that is; None where nothing is found.
    `nearest` is the best document where there are some but none fits.
    """

    def __init__(self, hits: Iterable[Hit] = (), best: float | None = None) -> None:
        super().__init__(hits)
        self.best = best
        self.nearest: Hit | None = None


@dataclass(frozen=True)
class Reported:
    """What a verb found or did, as JSON values too."""

    def to_json(self) -> dict[str, Any]:
        """Return everything as JSON values: paths as text, models and all else inside as objects."""

        def values(fields: list[tuple[str, Any]]) -> dict[str, Any]:
            paths = {name: str(value) for name, value in fields if isinstance(value, Path)}
            models = [(name, value) for name, value in fields if isinstance(value, BaseModel)]
            return dict(fields) | paths | {name: model.model_dump(mode="json") for name, model in models}

        return asdict(self, dict_factory=values)


@dataclass(frozen=True)
class Windows(Reported):
    """How documents are split: `tokens` a window with [CLS] and [SEP], `overlap` of them shared.

    A document gets `most` windows at most.
    """

    tokens: int
    overlap: int
    most: int


Qrels: TypeAlias = dict[str, dict[str, int]]
"""query id -> document id -> grade (0 = judged not relevant)."""

Run: TypeAlias = dict[str, dict[str, float]]
"""query id -> document id -> score."""


class Progress(Protocol):
    """Receive the state of one stage: `done` of `total` units, `total` None while unknown."""

    def __call__(self, stage: str, done: int, total: int | None = None, note: str = "") -> None:
        """Report that `stage` has finished `done` units; `note` is a short text such as a loss."""


def silent(stage: str, done: int, total: int | None = None, note: str = "") -> None:
    """Report nothing."""


def counted(items: Iterable[T], progress: Progress, stage: str, total: int | None = None) -> Iterator[T]:
    """Yield `items`, reporting each one as a unit of `stage`."""
    done = 0
    progress(stage, 0, total)
    for done, item in enumerate(items, 1):
        yield item
        progress(stage, done, total)
    progress(stage, done, done)
