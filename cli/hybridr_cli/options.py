"""Makes command-line options from settings: name, type, default and help of an option are those of the field.

A verb is a command. A parameter of its function becomes one option, or several: the fields of a settings
class (a stage), or of a dataclass. Settings are resolved (flag > environment > file > default), dataclasses
are not.
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
KEYWORD_ONLY = inspect.Parameter.KEYWORD_ONLY


class Only:
    """Marks a settings parameter of a verb that takes only some fields: `Annotated[SearchSettings,
    Only("depth")]`.

    Keyword arguments are defaults to show in the help instead of the fields' own: `Only("precision",
    precision="as exported")`.
    """

    def __init__(self, *names: str, **defaults: str) -> None:
        self.names = names
        self.defaults = defaults


def verb_parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """Return the parameters of a verb function without its session, with evaluated annotations."""
    from .stages import STAGES

    # A verb's module imports stages for the type checker only, so that `hybridr --help` starts fast.
    return list(inspect.signature(function, eval_str=True, locals=STAGES).parameters.values())[1:]


def typer_options(parameter: inspect.Parameter, *, members: bool = True) -> list[inspect.Parameter]:
    """Return the typer options for one parameter of a verb.

    With `members` the help lists the members of families (plug-ins), whose files are then read.
    """
    kind, only = split_annotation(parameter.annotation)
    if is_stage(kind):
        return [
            stage_option(name, kind.model_fields[name], only.defaults.get(name), members)
            for name in option_names(parameter)
        ]
    if is_option_group(kind):
        fields = inspect.signature(kind, eval_str=True).parameters.values()
        return [field.replace(kind=KEYWORD_ONLY) for field in fields]
    return [parameter.replace(kind=KEYWORD_ONLY)]


def option_names(parameter: inspect.Parameter) -> Sequence[str]:
    """Return the names of the options for one parameter of a verb."""
    kind, only = split_annotation(parameter.annotation)
    if is_stage(kind):
        return only.names or default_option_names(kind)
    return [field.name for field in dataclasses.fields(kind)] if is_option_group(kind) else [parameter.name]


def parameter_value(
    parameter: inspect.Parameter, values: Mapping[str, Any], resolve: Callable[..., Any]
) -> Any:
    """Return the value of a verb's parameter, made from the options on the command line."""
    kind, _ = split_annotation(parameter.annotation)
    flags = {name: values[name] for name in option_names(parameter)}
    if is_stage(kind):
        return resolve(kind, **placeholders(kind, flags), **flags)
    return kind(**flags) if is_option_group(kind) else flags[parameter.name]


def placeholders(stage: type[Stage], flags: Iterable[str]) -> dict[str, Any]:
    """Return placeholder values for required fields of a stage that the verb has no option for."""
    return {
        name: "-" for name, field in stage.model_fields.items() if field.is_required() and name not in flags
    }


def split_annotation(annotation: Any) -> tuple[Any, Only]:
    """Return the type in an annotation and its `Only` mark (without one: all fields)."""
    kind, *marks = get_args(annotation) if get_origin(annotation) is Annotated else (annotation,)
    return kind, next((mark for mark in marks if isinstance(mark, Only)), Only())


def is_stage(kind: Any) -> bool:
    """Return whether a parameter's type is a settings class."""
    from hybridr.settings import Stage

    return isinstance(kind, type) and issubclass(kind, Stage)


def is_option_group(kind: Any) -> bool:
    """Return whether a parameter's type is a dataclass of options."""
    return isinstance(kind, type) and dataclasses.is_dataclass(kind)


def default_option_names(stage: type[Stage]) -> list[str]:
    """Return the names of a settings class's fields that are options by default."""
    from hybridr.settings import Option

    return [name for name, field in stage.model_fields.items() if Option(None) not in field.metadata]


def stage_option(name: str, field: FieldInfo, replacement: str | None, members: bool) -> inspect.Parameter:
    """Return the typer option of a settings field; its value is None if the flag is absent.

    `replacement` replaces the default in the help.
    """
    help, default = help_and_default(field, members)
    option = typer.Option(
        *flag_names(name, field),
        help=help,
        show_default=replacement or default or False,
        metavar=metavar(field) if members else None,
    )
    # Choices and lists are texts for typer; the stage checks and splits them.
    kind = next((kind for kind in types_without_none(field.annotation) if kind in NUMBERS_AND_PATHS), str)
    return inspect.Parameter(name, KEYWORD_ONLY, default=None, annotation=Annotated[kind | None, option])


def flag_names(name: str, field: FieldInfo) -> list[str]:
    """Return the option's names: `--field-name` or the field's own, with `--no-…` if the default is True."""
    from hybridr.settings import Option

    names = [mark.name for mark in field.metadata if isinstance(mark, Option) and mark.name]
    flag = names[0] if names else "--" + name.replace("_", "-")
    return [f"{flag}/--no-{flag[2:]}" if field.default is True else flag]


def types_without_none(annotation: Any) -> list[Any]:
    """Return the types in a union other than None."""
    unions = (Union, UnionType)
    kinds = get_args(annotation) if get_origin(annotation) in unions else (annotation,)
    return [kind for kind in kinds if kind is not type(None)]


def metavar(field: FieldInfo) -> str | None:
    """Return the placeholder of an option's value in the help, choices or list; None for typer's own."""
    kind = types_without_none(field.annotation)[0]
    is_list, marks = get_origin(kind) is tuple, family_marks(field)
    if marks:
        return f"<{(',' if is_list else '|').join(marks[0].choices)}>"
    if get_origin(kind) is Literal:
        return f"<{'|'.join(get_args(kind))}>"
    return f"<{','.join(get_args(get_args(kind)[0]) or 'abc')}>" if is_list else None


def family_marks(field: FieldInfo) -> list[OneOf]:
    """Return the families of which a field's value, or each of its values, must be a member."""
    from hybridr.families import OneOf

    inner = (mark for kind in get_args(field.annotation) for mark in getattr(kind, "__metadata__", ()))
    return [mark for mark in (*field.metadata, *inner) if isinstance(mark, OneOf)]


def help_and_default(field: FieldInfo, members: bool) -> tuple[str, str]:
    """Return the help of an option and its default as text, from the field's description."""
    text, *default = re.split(r"(?:^|; )(?:None|empty): ", field.description or "", maxsplit=1)
    helps = [mark.help for mark in family_marks(field)] if members else []
    text = "; ".join(filter(None, [text, *helps]))
    sentence = f"{text[:1].upper()}{text[1:]}." if text else ""
    return sentence, default[0] if default else default_text(field)


def default_text(field: FieldInfo) -> str:
    """Return the default of a field as text for the help; "" if it is not worth showing."""
    value = field.default
    if field.is_required() or value is None or value is False or value == ():
        return ""
    if isinstance(value, float):
        return f"{value:g}"
    return "yes" if value is True else ",".join(value) if isinstance(value, tuple) else str(value)
