"""Chooses the signals of a search, and collects the queries by which they add to a score."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from ..encoders.contract import Encoder, Reading, reads_tokens
from ..errors import SettingsError
from ..families import member_of, names_of
from .fusions import Weighted
from .signals import FAMILY, Place, QueryReading, Signal

SETS = ("auto", "all", "none")


class SignalSet:
    """The signals of one search by name; `left_out` maps unused signals to the reason.

    `unusual` are those that other indices use by default, and this one only if they are named.
    """

    def __init__(
        self, members: Mapping[str, Signal], left_out: Mapping[str, str], unusual: Collection[str] = ()
    ) -> None:
        self.members, self.left_out, self.unusual = members, left_out, unusual

    @property
    def usual(self) -> tuple[str, ...]:
        """Return the names of the signals that a search uses by default."""
        usual = (name for name, signal in self.members.items() if signal.usual)
        return tuple(name for name in usual if name not in self.unusual)

    @property
    def others(self) -> tuple[str, ...]:
        """Return the names of the signals that are used only if named."""
        unlearnt = (name for name, signal in self.members.items() if not signal.learnt)
        return tuple(name for name in unlearnt if name not in self.usual)

    @property
    def reads_tokens(self) -> bool:
        """Return whether any signal needs the states of a query's tokens."""
        return any(signal.reads_tokens for signal in self.members.values())

    def read(self, encoder: Encoder, texts: Sequence[str]) -> list[Reading]:
        """Return the encoder's readings of queries, with the states of their tokens if a signal needs
        them.
        """
        if self.reads_tokens and reads_tokens(encoder):
            return encoder.read_queries(texts)
        return [without_tokens(vector) for vector in encoder.encode_queries(list(texts))]

    def due(self, text: str) -> bool:
        """Return whether a signal must ask the cluster about a text first."""
        return any(signal.due(text) for signal in self.members.values())

    def learnt_from(self, texts: Sequence[str]) -> set[str]:
        """Return those texts from which a signal was learnt."""
        return {text for signal in self.members.values() for text in signal.learnt_from(texts)}

    def of(self, readings: Sequence[QueryReading]) -> list[dict[str, Weighted]]:
        """Return the weighted clauses of each signal for each query."""
        for signal in self.members.values():
            if waiting := [reading for reading in readings if signal.due(reading.text)]:
                signal.prepare(waiting)
        return [
            {
                name: Weighted(signal.weight, signal.clauses(reading), signal.needs_scripts)
                for name, signal in self.members.items()
            }
            for reading in readings
        ]


def signals_taken(place: Place, chosen: Sequence[str]) -> SignalSet:
    """Return the chosen signals: by name, `auto` for the usual ones that are possible, `all`, or `none`.

    Raises SettingsError for a named signal that this index or encoder cannot give.
    """
    obstacles = obstacles_to(place, chosen)
    for name in chosen:
        if name not in SETS and obstacles[name]:
            raise SettingsError(f"no {name} here: {obstacles[name]}", hint="--signals auto")
    members = {name: member_of(FAMILY, name)(place) for name, obstacle in obstacles.items() if not obstacle}
    left_out = {name: obstacle for name, obstacle in obstacles.items() if obstacle}
    return SignalSet(
        members, left_out, {name for name, signal in members.items() if not signal.is_usual(place)}
    )


def obstacles_to(place: Place, chosen: Sequence[str]) -> dict[str, str]:
    """Return for each chosen signal why it cannot be used; empty text if it can.

    A signal that must be learnt first is omitted if it cannot be used, unless it is named.
    """
    obstacles: dict[str, str] = {}
    for name in names_of(FAMILY):
        kind: type[Signal] = member_of(FAMILY, name)
        in_set = "all" in chosen or ("auto" in chosen and (kind.is_usual(place) or kind.learnt))
        if name in chosen or in_set:
            obstacle = kind.obstacle(place) or ""
            if name in chosen or not (kind.learnt and obstacle):
                obstacles[name] = obstacle
    for name in obstacles.keys() & set(chosen):
        replaced = member_of(FAMILY, name).replaces
        if replaced in obstacles and replaced not in chosen:
            obstacles[replaced] = obstacles[replaced] or f"{name} takes its place"
    return obstacles


def without_tokens(vector: np.ndarray) -> Reading:
    """Return a reading that has only the vector `(dim,)` of a text, without tokens."""
    return Reading(vector, np.zeros((0, 0), dtype=np.float32), ())
