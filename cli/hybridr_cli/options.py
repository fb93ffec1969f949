"""Makes command-line options from settings: name, type, default and help of an option are those of the field.

A verb's parameter becomes one option, or several: the fields of a settings class (a stage), or of a
dataclass. Settings are resolved (flag > environment > file > default), dataclasses are as given.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin

import typer

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

    from hybridr.families import OneOf
    from hybridr.settings import Stage

NUMBERS_AND_PATHS = (bool, int, float, Path)
KEYWORD = inspect.Parameter.KEYWORD_ONLY


class Only:
    """Marks a settings parameter of a verb that takes only some fields: `Annotated[SearchSettings,
    Only("depth")]`.

    Keyword arguments say what the verb does without a field, for its help: `Only("precision", precision="as
    before")`.
    """

    def __init__(self, *names: str, **unset: str) -> None:
        self.names = names
        self.unset = unset


def signature_of(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """Return the parameters of a verb function without its session, with evaluated annotations."""
    from .stages import STAGES

    # A verb's module imports stages for the type checker only, so that `--help` does not wait for them.
    return list(inspect.signature(function, eval_str=True, locals=STAGES).parameters.values())[1:]


def options_of(parameter: inspect.Parameter, *, members: bool = True) -> list[inspect.Parameter]:
    """Return the typer options for one parameter of a verb.

    Without `members` their help leaves out the members of families, which are read from their files.
    """
    kind, only = plain(parameter.annotation)
    if is_stage(kind):
        return [
            stage_option(name, kind.model_fields[name], only.unset.get(name), members)
            for name in option_names(parameter)
        ]
    if is_group(kind):
        return [
            parameter.replace(kind=KEYWORD)
            for parameter in inspect.signature(kind, eval_str=True).parameters.values()
        ]
    return [parameter.replace(kind=KEYWORD)]


def option_names(parameter: inspect.Parameter) -> Sequence[str]:
    """Return the names of the options for one parameter of a verb."""
    kind, only = plain(parameter.annotation)
    if is_stage(kind):
        return only.names or listed(kind)
    return [field.name for field in dataclasses.fields(kind)] if is_group(kind) else [parameter.name]


def value_of(parameter: inspect.Parameter, values: Mapping[str, Any], resolve: Callable[..., Any]) -> Any:
    """Return the value of a verb's parameter, made from the options on the command line."""
    kind, _ = plain(parameter.annotation)
    flags = {name: values[name] for name in option_names(parameter)}
    if is_stage(kind):
        return resolve(kind, **unused(kind, flags), **flags)
    return kind(**flags) if is_group(kind) else flags[parameter.name]


def unused(stage: type[Stage], flags: Iterable[str]) -> dict[str, Any]:
    """Return placeholder values for required fields of a stage that the verb has no option for."""
    return {
        name: "-" for name, field in stage.model_fields.items() if field.is_required() and name not in flags
    }


def plain(annotation: Any) -> tuple[Any, Only]:
    """Return the type in an annotation and its `Only` mark (without one: all fields)."""
    kind, *marks = get_args(annotation) if get_origin(annotation) is Annotated else (annotation,)
    return kind, next((mark for mark in marks if isinstance(mark, Only)), Only())


def is_stage(kind: Any) -> bool:
    """Return whether a parameter's type is a settings class."""
    from hybridr.settings import Stage

    return isinstance(kind, type) and issubclass(kind, Stage)


def is_group(kind: Any) -> bool:
    """Return whether a parameter's type is a dataclass of options."""
    return isinstance(kind, type) and dataclasses.is_dataclass(kind)


def listed(stage: type[Stage]) -> list[str]:
    """Return the names of a settings class's fields that are options by default."""
    from hybridr.settings import Option

    return [name for name, field in stage.model_fields.items() if Option(None) not in field.metadata]


def stage_option(name: str, field: FieldInfo, unset: str | None, members: bool) -> inspect.Parameter:
    """Return the typer option of a settings field; its value is None if it is not given."""
    help, default = described(field, members)
    option = typer.Option(
        *spellings(name, field),
        help=help,
        show_default=unset or default or False,
        metavar=metavar(field) if members else None,
    )
    # Typer reads choices and lists as text, which the stage checks and splits.
    kind = next((kind for kind in alternatives(field.annotation) if kind in NUMBERS_AND_PATHS), str)
    return inspect.Parameter(name, KEYWORD, default=None, annotation=Annotated[kind | None, option])


def spellings(name: str, field: FieldInfo) -> list[str]:
    """Return the option's names: `--field-name` or the field's own, with `--no-…` if the default is True."""
    from hybridr.settings import Option

    own = next((mark.name for mark in field.metadata if isinstance(mark, Option) and mark.name), None)
    flag = own or "--" + name.replace("_", "-")
    return [f"{flag}/--no-{flag[2:]}" if field.default is True else flag]


def alternatives(annotation: Any) -> list[Any]:
    """Return the types in a union other than None."""
    unions = (Union, UnionType)
    kinds = get_args(annotation) if get_origin(annotation) in unions else (annotation,)
    return [kind for kind in kinds if kind is not type(None)]


def metavar(field: FieldInfo) -> str | None:
    """Return the placeholder of an option's value in the help: its choices, or a list; None leaves it to
    typer.
    """
    kind = alternatives(field.annotation)[0]
    several, marks = get_origin(kind) is tuple, marks_of(field)
    if marks:
        return f"<{(',' if several else '|').join(marks[0].choices)}>"
    if get_origin(kind) is Literal:
        return f"<{'|'.join(get_args(kind))}>"
    return f"<{','.join(get_args(get_args(kind)[0]) or 'abc')}>" if several else None


def marks_of(field: FieldInfo) -> list[OneOf]:
    """Return the families of which a field's value, or each of its values, must be a member."""
    from hybridr.families import OneOf

    inner = (mark for kind in get_args(field.annotation) for mark in getattr(kind, "__metadata__", ()))
    return [mark for mark in (*field.metadata, *inner) if isinstance(mark, OneOf)]


def described(field: FieldInfo, members: bool) -> tuple[str, str]:
    """Return the help of an option and its default as text, from the field's description."""
    said, *unset = re.split(r"(?:^|; )(?:None|empty): ", field.description or "", maxsplit=1)
    helps = [mark.help for mark in marks_of(field)] if members else []
    said = "; ".join(filter(None, [said, *helps]))
    sentence = f"{said[:1].upper()}{said[1:]}." if said else ""
    return sentence, unset[0] if unset else help_text(field)


def help_text(field: FieldInfo) -> str:
    """Return the default of a field as text for the help; "" if it is not worth showing."""
    value = field.default
    if field.is_required() or value is None or value is False or value == ():
        return ""
    if isinstance(value, float):
        return f"{value:g}"
    return "yes" if value is True else ",".join(value) if isinstance(value, tuple) else str(value)
