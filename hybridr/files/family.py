"""Families: a folder whose every file is one member, found by its file and loaded when it is asked for.

A member is the class of its file that bears the file's name as `name`; a new member is one new file. Other
plain lines of that class (`on = "documents"`) say what it is for, and are read without importing it.
"""

from __future__ import annotations

import ast
from functools import cache
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from ..errors import SettingsError


def names_of(family: str, **stated: Any) -> tuple[str, ...]:
    """Name the members of a family such as `search.fusions`, in alphabetical order; none is imported.

    With `stated`, those whose class states just that, such as `on="documents"`; files without a member fall
    out then.
    """
    found = {
        module.name: Path(folder) / f"{module.name}.py"
        for folder in import_module(f"hybridr.{family}").__path__
        for module in iter_modules([folder])
    }
    return tuple(name for name in sorted(found) if stated.items() <= statements(found[name], stated).items())


def statements(file: Path, wanted: Any) -> dict[str, Any]:
    """Read the plain constants of the member's class without importing it; nothing when none is wanted."""
    text = file.read_text(encoding="utf-8") if wanted else ""
    if f'name = "{file.stem}"' not in text:
        return {}
    for node in ast.parse(text).body:
        if isinstance(node, ast.ClassDef):
            found = {
                target.id: line.value.value
                for line in node.body
                if isinstance(line, ast.Assign) and isinstance(line.value, ast.Constant)
                for target in line.targets
                if isinstance(target, ast.Name)
            }
            if found.get("name") == file.stem:
                return found
    return {}


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


class OneOf:
    """Marks a setting that names a member, or one of `others`; None passes.

    `Annotated[str, OneOf("search.fusions", "auto")]`
    """

    def __init__(self, family: str, *others: str, **stated: Any) -> None:
        self.family, self.others, self.stated = family, others, stated

    @property
    def choices(self) -> tuple[str, ...]:
        """The names that the folder gives now, after the others."""
        return (*self.others, *names_of(self.family, **self.stated))

    def checked(self, value: Any) -> Any:
        """Give the value back; another one is refused as pydantic refuses a wrong literal."""
        if value is not None and value not in self.choices:
            named = [f"'{name}'" for name in self.choices]
            expected = " or ".join(filter(None, [", ".join(named[:-1]), named[-1]]))
            raise PydanticCustomError("literal_error", "Input should be {expected}", {"expected": expected})
        return value

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self.checked, handler(source))
