"""Reads `conditions.toml`: which collections, asked how, what is expected; forms of studies of training."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from hybridr.errors import SettingsError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FILE = Path(__file__).parent / "conditions.toml"
TWELVE = "twelve"
"""The group of the collections whose mean is taken, and that most studies run on."""
WITHOUT_VECTORS = frozenset({"bm25", "rm3"})
ADAPTED = "-adapted"
"""What the name of a system adds to that of `hybridr evaluate`, in this order."""


@dataclass(frozen=True)
class Condition:
    """One collection, the systems that are asked, and what they are expected to reach.

    `queries` is the most that are asked, a random choice by `seed`; `expected` is system -> leading measure;
    `not_run` says why the other systems are not asked.
    """

    name: str
    group: str
    split: str
    queries: int
    seed: int
    measures: list[str]
    systems: list[str]
    tolerance: float
    expected: dict[str, float] = field(default_factory=dict)
    not_run: str = ""

    @property
    def needs_vectors(self) -> bool:
        """Tell whether a system asks more than the words."""
        return not WITHOUT_VECTORS.issuperset(self.systems)

    @property
    def needs_adaptation(self) -> bool:
        """Tell whether a system asks an encoder that is adapted to this collection."""
        return any(ADAPTED in system for system in self.systems)

    def settings(self) -> dict[str, Any]:
        """Give what a result depends on, but the systems."""
        return {name: getattr(self, name) for name in ("split", "queries", "seed", "measures")}


def read_toml(file: Path) -> dict[str, Any]:
    """Read a file of settings. Raises SettingsError."""
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise SettingsError(f"{file.name}: {error}") from error


def read_conditions(file: Path = FILE) -> dict[str, Condition]:
    """Read all conditions by name, in the file's order. Raises SettingsError for what cannot be used."""
    tables = read_toml(file)
    shared = tables.get("collections", {})
    return {
        name: condition_of(name, {**shared, **own}, file)
        for name, own in tables.get("collection", {}).items()
    }


def read_form(study: str, name: str) -> dict[str, Any]:
    """Read one form of a study of training. Raises SettingsError for an unknown one."""
    forms: dict[str, dict[str, Any]] = read_toml(FILE)[study]
    if name not in forms:
        raise SettingsError(f"there is no form '{name}'", hint=f"one of {', '.join(forms)}")
    return forms[name]


def the_twelve() -> list[str]:
    """Name the collections whose mean is taken."""
    return [name for name, condition in read_conditions().items() if condition.group == TWELVE]


def condition_of(name: str, values: Mapping[str, Any], file: Path) -> Condition:
    """Make one condition of its table and the shared one."""
    known = {one.name for one in fields(Condition)} - {"name"}
    if unknown := sorted(values.keys() - known):
        raise SettingsError(
            f"{file.name}: [collection.{name}] has an unknown '{unknown[0]}': {', '.join(sorted(known))}"
        )
    if missing := sorted(known - {"expected", "not_run"} - values.keys()):
        raise SettingsError(f"{file.name}: [collection.{name}] lacks '{missing[0]}'")
    return Condition(name, **values)


def chosen(conditions: Mapping[str, Condition], names: list[str]) -> list[Condition]:
    """Choose conditions by name, all when none is named. Raises SettingsError for an unknown one."""
    if unknown := [name for name in names if name not in conditions]:
        raise SettingsError(f"there is no collection '{unknown[0]}'", hint=f"one of {', '.join(conditions)}")
    return [conditions[name] for name in names or conditions]
