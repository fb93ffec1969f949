"""Signals: what a ranking knows of a document besides BM25 and its vector, without labels; one file each.

The class of a member states in plain lines its `name`, that of the file, a `help` for the command line, its
`weight` beside a dense weight of .5, and `usual`, whether a search uses it by default.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, ClassVar, NamedTuple, Protocol

from ...cluster.connection import Cluster
from ...cluster.record import IndexInfo
from ...encoders.contract import Encoder, Reading
from ...indexing.terms.terms import Analysed

FAMILY = "search.signals"


class Place(NamedTuple):
    """The index of a search, its searched text fields, and the encoder of its vectors."""

    cluster: Cluster
    info: IndexInfo
    fields: Sequence[str]
    encoder: Encoder


class QueryReading(NamedTuple):
    """A query analysed by the index and read by the encoder; BM25 is divided by `root` to be comparable with
    a cosine.
    """

    text: str
    analysed: Analysed
    reading: Reading
    root: float


class Signal(Protocol):
    """A part of a score beside BM25 and cosine; members subclass this: `name`, `help`, `weight`, `clauses`,
    maybe `obstacle`.

    Made once a search. With `reads_tokens`, queries come with the states of their tokens; with
    `needs_scripts`, it is left out on a cluster that runs no scripts. If it is chosen by name, the usual
    signal that it `replaces` is not used by default. A signal `learnt` from people is used by default
    wherever there is no obstacle; its weight is not taken from that of the words, and `tune` does not choose
    it.
    """

    name: ClassVar[str]
    help: ClassVar[str]
    weight: ClassVar[float]
    usual: ClassVar[bool] = False
    replaces: ClassVar[str] = ""
    reads_tokens: ClassVar[bool] = False
    needs_scripts: ClassVar[bool] = False
    learnt: ClassVar[bool] = False

    def __init__(self, place: Place) -> None:
        """Store what the signal needs of the index; `obstacle` has returned None."""

    @classmethod
    def obstacle(cls, place: Place) -> str | None:
        """Return why this index or encoder cannot give the signal; None if they can."""
        return None

    @classmethod
    def is_usual(cls, place: Place) -> bool:
        """Return whether `auto` takes the signal on this index."""
        return cls.usual

    def prepare(self, readings: Sequence[QueryReading]) -> None:
        """Request the data that the clauses of these queries need."""

    def needs_request(self, text: str) -> bool:
        """Return whether the clauses of a text need a request first."""
        return False

    def warm(self) -> bool:
        """Prepare a part of what many queries will need; return whether more is left."""
        return False

    def learnt_from(self, texts: Sequence[str]) -> Collection[str]:
        """Return those texts from which the signal was learnt; they must not be used to judge it."""
        return ()

    def clauses(self, reading: QueryReading) -> list[dict[str, Any]]:
        """Return the queries whose scores add up to the signal of a document; empty if it adds nothing."""
