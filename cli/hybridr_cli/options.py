"""Makes command-line options from settings: name, type, default and help of an option are those of the field;
and the options that several verbs share.

A verb is a command. A parameter of its function becomes one option, or several: the fields of a settings
class (a stage), or of a dataclass. Settings are resolved (flag > environment > file > default), dataclasses
are not.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin

import typer

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

    from hybridr.evaluation.evaluation import JudgedQueries
    from hybridr.families import OneOf
    from hybridr.index import Index

NUMBERS_AND_PATHS = (bool, int, float, Path)
KEYWORD_ONLY = inspect.Parameter.KEYWORD_ONLY
PACKAGES = {
    "ClusterSettings": "cluster",
    "NodeSettings": "cluster",
    "LoadSettings": "cluster",
    "AdaptSettings": "training",
    "DamSettings": "training",
    "RemSettings": "training",
    "ReindexSettings": "indexing",
    "SearchSettings": "search",
    "DeploySettings": "serving",
    "TuneSettings": "relevance",
    "ServeSettings": "serving",
    "AssessorSettings": "serving",
    "McpSettings": "serving",
}
"""The settings classes (stages) in the order of `hybridr settings`; each is declared in the `settings.py` of
this package."""


class Stages(dict[str, Any]):
    """The settings classes by name, each imported when it is read."""

    def __missing__(self, name: str) -> Any:
        if name not in PACKAGES:
            raise KeyError(name)
        self[name] = getattr(import_module(f"hybridr.{PACKAGES[name]}.settings"), name)
        return self[name]


STAGES = Stages()


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
    from hybridr.settings import Option

    kind, only = split_annotation(parameter.annotation)
    if is_stage(kind):
        fields = kind.model_fields.items()
        return only.names or [name for name, field in fields if Option(None) not in field.metadata]
    return [field.name for field in dataclasses.fields(kind)] if is_option_group(kind) else [parameter.name]


def parameter_value(
    parameter: inspect.Parameter, values: Mapping[str, Any], resolve: Callable[..., Any]
) -> Any:
    """Return the value of a verb's parameter, made from the options on the command line."""
    kind, _ = split_annotation(parameter.annotation)
    flags = {name: values[name] for name in option_names(parameter)}
    if is_stage(kind):
        required = (name for name, field in kind.model_fields.items() if field.is_required())
        placeholders = {
            name: "-" for name in required if name not in flags
        }  # the verb has no option for them
        return resolve(kind, **placeholders, **flags)
    return kind(**flags) if is_option_group(kind) else flags[parameter.name]


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


def stage_option(name: str, field: FieldInfo, replacement: str | None, members: bool) -> inspect.Parameter:
    """Return the typer option of a settings field; its value is None if the flag is absent.

    It is called `--field-name` or by the field's own name, and `--no-…` too if the default is True.
    `replacement` replaces the default in the help.
    """
    from hybridr.settings import Option

    names = [mark.name for mark in field.metadata if isinstance(mark, Option) and mark.name]
    flag = names[0] if names else "--" + name.replace("_", "-")
    help, default = help_and_default(field, members)
    option = typer.Option(
        f"{flag}/--no-{flag[2:]}" if field.default is True else flag,
        help=help,
        show_default=replacement or default or False,
        metavar=metavar(field) if members else None,
    )
    # Choices and lists are texts for typer; the stage checks and splits them.
    kind = next((kind for kind in types_without_none(field.annotation) if kind in NUMBERS_AND_PATHS), str)
    return inspect.Parameter(name, KEYWORD_ONLY, default=None, annotation=Annotated[kind | None, option])


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


ReindexedName = Annotated[str, typer.Argument(help="The index that was reindexed.")]
SearchedName = Annotated[str, typer.Argument(help="Index, alias, or the index that was reindexed.")]
EncoderFolder = Annotated[
    Path | None, typer.Option(help="Encoder folder or name.", show_default="the encoder of the index")
]
FieldNames = Annotated[
    str | None, typer.Option(help="Text fields, comma-separated.", show_default="chosen, with reasons")
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Show what would be done, without changing anything.")
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]


@dataclasses.dataclass(frozen=True)
class JudgedOptions:
    """The options that name judged queries; without a folder there are none."""

    beir: Annotated[Path | None, typer.Option(help="BEIR folder with queries.jsonl and qrels/.")] = None
    split: Annotated[str, typer.Option(help="Split of the folder's qrels.")] = "test"
    judgements: Annotated[
        bool, typer.Option("--judgements", help="Use the judgements made in the page of `hybridr serve`.")
    ] = False

    def in_folder(self) -> JudgedQueries:
        """Return the judged queries of the folder and split that the options name.

        Raises SettingsError for a split without a folder.
        """
        from hybridr import JudgedQueries
        from hybridr.errors import SettingsError

        if self.beir is None and self.split != "test":
            raise SettingsError("--split needs --beir or --judgements")
        return JudgedQueries(self.beir, self.split)

    def queries_for(self, index: Index) -> JudgedQueries:
        """Return the judged queries of the folder, or with --judgements those made on the index's page.

        Raises SettingsError if both --judgements and --beir were given.
        """
        from hybridr.errors import SettingsError

        if not self.judgements:
            return self.in_folder()
        if self.beir is not None:
            raise SettingsError("--judgements and --beir exclude each other")
        return index.judgements(self.split)


def split_names(text: str | None) -> list[str]:
    """Return the names in a comma-separated text; an empty list for None."""
    return [name.strip() for name in (text or "").split(",") if name.strip()]
