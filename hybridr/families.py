"""Families: folders whose every file is one member (a class), found by file name and loaded on use.

A member is the class of its file whose `name` is the file's name; a new member is one new file. Other plain
constants of that class (`on = "documents"`, `help = "by true scores"`) are read without importing the file,
so a subclass of another member states them itself.
"""

from __future__ import annotations

import ast
import os
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from .errors import SettingsError


def member_names(family: str, **stated: Any) -> tuple[str, ...]:
    """Return the names of a family's members (such as `search.fusions`), in alphabetical order, without
    importing them.

    With `stated`, only members whose class states these constants, such as `on="documents"`.
    """
    files = member_files(family)
    if stated:
        files = {
            name: file for name, file in files.items() if stated.items() <= class_constants(file).items()
        }
    return tuple(sorted(files))


def member_files(family: str) -> dict[str, Path]:
    """Return member name -> file, from all folders of a family."""
    folders = import_module(f"hybridr.{family}").__path__
    return {
        name: file
        for folder in folders
        for name, file in files_in(folder, os.stat(folder).st_mtime_ns).items()
    }


@cache
def files_in(folder: str, changed: int) -> dict[str, Path]:
    """Return member name -> file of a folder; cached per modification time `changed`, because settings look
    this up thousands of times.
    """
    return {file.stem: file for file in Path(folder).glob("*.py") if file.stem != "__init__"}


def class_constants(file: Path) -> dict[str, Any]:
    """Return the plain constants of the member's class without importing it; empty without a member."""
    return constants_in(file, os.stat(file).st_mtime_ns)


@cache
def constants_in(file: Path, changed: int) -> dict[str, Any]:
    """Return the constants of a file; cached per modification time `changed`: parsing the objectives takes
    40 ms, and each settings object of a training needs them several times.
    """
    text = file.read_text(encoding="utf-8")
    if f'name = "{file.stem}"' not in text:
        return {}
    for node in ast.parse(text).body:
        if isinstance(node, ast.ClassDef):
            constants = {
                target.id: line.value.value
                for line in node.body
                if isinstance(line, ast.Assign) and isinstance(line.value, ast.Constant)
                for target in line.targets
                if isinstance(target, ast.Name)
            }
            if constants.get("name") == file.stem:
                return constants
    return {}


@cache
def load_member(family: str, name: str) -> Any:
    """Return the class of one member, imported. Raises SettingsError for an unknown name."""
    if name not in member_names(family):
        raise SettingsError(f"no {family} '{name}': {', '.join(member_names(family))}")
    module = import_module(f"hybridr.{family}.{name}")
    for value in vars(module).values():
        is_own_class = isinstance(value, type) and value.__module__ == module.__name__
        if is_own_class and vars(value).get("name") == name:
            return value
    raise SettingsError(f"{module.__name__} has no class with name = '{name}'")


class OneOf:
    """Type annotation of a setting that names a member, or one of `others`; None passes.

    `Annotated[str, OneOf("search.fusions", "auto")]`; a tuple takes the members of several families.
    """

    def __init__(self, family: str | tuple[str, ...], *others: str, **stated: Any) -> None:
        self.families = (family,) if isinstance(family, str) else family
        self.others, self.stated = others, stated

    @property
    def choices(self) -> tuple[str, ...]:
        """Return the valid names: the others, then the members."""
        members = [name for family in self.families for name in member_names(family, **self.stated)]
        return (*self.others, *members)

    @property
    def help(self) -> str:
        """Return the help texts of the members: "absolute: by their true scores; pipeline: …"."""
        files = [file for family in self.families for file in member_files(family).items()]
        helps = {name: class_constants(file).get("help") for name, file in files}
        return "; ".join(f"{name}: {helps[name]}" for name in self.choices if helps.get(name))

    def checked(self, value: Any) -> Any:
        """Return the value if it is valid; else raise pydantic's error for a wrong literal."""
        if value is not None and value not in self.choices:
            quoted = [f"'{name}'" for name in self.choices]
            expected = " or ".join(filter(None, [", ".join(quoted[:-1]), *quoted[-1:]]))
            if any(value in member_names(family) for family in self.families):
                stated = " and ".join(f'{name} = "{value}"' for name, value in self.stated.items())
                expected += f" ({value}.py is there, but its class does not state {stated})"
            raise PydanticCustomError("literal_error", "Input should be {expected}", {"expected": expected})
        return value

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self.checked, handler(source))
