"""Families: a folder whose every file is one member, found by its file and loaded when it is asked for.

A member is the class of its file that bears the file's name as `name`; a new member is one new file.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

from ..errors import SettingsError

ROOT = Path(__file__).resolve().parents[1]


def names_of(family: str) -> tuple[str, ...]:
    """Name the members of a family such as `search.fusions`, in alphabetical order; none is imported."""
    folder = ROOT.joinpath(*family.split("."))
    return tuple(sorted(found.name for found in iter_modules([str(folder)])))


@cache
def member_of(family: str, name: str) -> Any:
    """Load the class of one member. Raises SettingsError for a name that no file of the folder bears."""
    if name not in names_of(family):
        raise SettingsError(f"no {family} '{name}': {', '.join(names_of(family))}")
    module = import_module(f"hybridr.{family}.{name}")
    for value in vars(module).values():
        if (
            isinstance(value, type)
            and value.__module__ == module.__name__
            and vars(value).get("name") == name
        ):
            return value
    raise SettingsError(f"{module.__name__} has no class with name = '{name}'")
