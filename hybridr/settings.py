"""Base of all settings: one frozen pydantic model a stage, with values from flags, environment and file.

Precedence: flag > environment (`HYBRIDR_<STAGE>_<FIELD>`, for the connection `HYBRIDR_<FIELD>`) >
`hybridr.toml` (`[stage]`) > default. `./hybridr.toml` may come with a folder that somebody else made. So it
is read only if the user owns it, and credentials from elsewhere are never sent to an address that it sets.
The command line makes an option of each field from its name, type, default and description, in which "None:"
or "empty:" says what happens by default.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, NamedTuple, TypeVar, get_args, get_origin

from pydantic import BaseModel, BeforeValidator, ConfigDict, SecretStr, ValidationError

from .errors import SettingsError, without_password
from .files.local import read_toml

CONFIG_FILE = "hybridr.toml"
TRUSTED_OWNERS = (0,)  # whoever runs the machine
T = TypeVar("T")
TABLES = tuple("cluster node load mcp adapt dam rem reindex search deploy tune serve assessor".split())
"""The tables of `hybridr.toml`, one a stage."""


class Option(NamedTuple):
    """The name of a field's command-line option, if it differs from the field's name; None for no option."""

    name: str | None


NoOption = Annotated[T, Option(None)]
"""A field that is set by file or environment; only commands that name it have it as an option."""


def read_pairs(value: Any) -> Any:
    """Return the text `name=value,name=value` as a dictionary; return other values unchanged.

    Raises ValueError for a part without a name or an equals sign.
    """
    if not isinstance(value, str):
        return value
    pairs = [part.partition("=") for part in value.split(",") if part.strip()]
    if not all(name.strip() and equals for name, equals, _ in pairs):
        raise ValueError("is written NAME=VALUE,NAME=VALUE")
    return {name.strip(): value.strip() for name, _, value in pairs}


OwnSettings = Annotated[dict[str, Any], BeforeValidator(read_pairs)]
"""Settings of a family's member; the member's own stage checks them."""


class Stage(BaseModel):
    """Base of the settings of one stage; unknown names and values out of range raise SettingsError."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)
    table: ClassVar[str] = ""

    addresses: ClassVar[tuple[str, ...]] = ()
    """Fields that say where credentials are sent, and how safely."""
    credentials: ClassVar[tuple[str, ...]] = ()
    alternatives: ClassVar[tuple[str, ...]] = ()
    """Fields that exclude each other: a layer (such as flags) that sets one hides all of them in lower
    layers."""

    @classmethod
    def prefix(cls) -> str:
        """Return the prefix of the stage's environment variables."""
        return f"HYBRIDR_{cls.table.upper()}_"

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise settings_error(type(self), error) from None

    def record(self) -> dict[str, Any]:
        """Return the values as JSON for a manifest; secrets, and passwords inside addresses, are masked."""
        values = self.model_dump(mode="json")
        addresses = {name: values[name] for name in self.addresses if isinstance(values[name], str)}
        return values | {name: without_password(address) for name, address in addresses.items()}


class NoSettings(Stage):
    """The settings of a member of a family that has none."""

    table: ClassVar[str] = "own settings"


S = TypeVar("S", bound=Stage)


def settings_error(stage: type[Stage], error: ValidationError) -> SettingsError:
    """Return pydantic's error as a SettingsError that lists each problem; unknown names get a suggestion."""
    lines = []
    for problem in error.errors():
        name = ".".join(str(part) for part in problem["loc"])
        if problem["type"] == "extra_forbidden":
            near = difflib.get_close_matches(name, stage.model_fields, n=1)
            lines.append(f"unknown setting '{name}'" + (f", did you mean '{near[0]}'?" if near else ""))
        elif problem["type"] == "missing":
            lines.append(f"{name}: must be given")
        else:
            message = f"{name}: {problem['msg'][0].lower()}{problem['msg'][1:]}"
            field = stage.model_fields.get(name)
            is_secret = field is not None and SecretStr in get_args(field.annotation)
            lines.append(
                message if is_secret else f"{message}, got {without_password(repr(problem['input']))}"
            )
    return SettingsError(
        f"[{stage.table}] " + "; ".join(lines), hint="hybridr settings   lists every setting"
    )


def read_config(path: Path | None) -> dict[str, dict[str, Any]]:
    """Return the tables of `path` or of the user's own `./hybridr.toml`. Raises SettingsError."""
    file = path or Path(CONFIG_FILE)
    if not file.is_file():
        if path is not None:
            raise SettingsError(f"no settings file at {path}")
        return {}
    if path is None and foreign_config_warning() is not None:
        return {}
    try:
        tables = read_toml(file)
    except (OSError, ValueError, RecursionError) as error:
        raise SettingsError(f"{file}: {error}") from error
    for name in tables:
        if name not in TABLES:
            raise SettingsError(
                f"{file}: unknown table [{name}]", hint=f"tables: {', '.join(sorted(TABLES))}"
            )
    return tables


def foreign_config_warning() -> str | None:
    """Return a warning that `./hybridr.toml` is ignored because another user owns it; None if it is read."""
    file = Path(CONFIG_FILE)
    if not (hasattr(os, "geteuid") and file.is_file()):
        return None
    owners = {file.lstat().st_uid, file.stat().st_uid} - {*TRUSTED_OWNERS, os.geteuid()}
    if not owners:
        return None
    return (
        f"{file.absolute()} belongs to another user ({min(owners)}) and is ignored; --config {file} takes it"
    )


def resolve_stage(
    stage: type[S], flags: Mapping[str, Any], *, config: Path | None = None
) -> tuple[S, dict[str, str]]:
    """Return the settings of a stage, merged from flags (None = not given), environment, file and defaults,
    and the origin of each value.

    Raises SettingsError for invalid values, and as `check_credentials`.
    """
    values, origin = merge_values(stage, flags, config)
    if config is None:
        check_credentials(stage, values, origin)
    return stage(**values), origin


def merge_values(
    stage: type[Stage], flags: Mapping[str, Any], config: Path | None
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the values that are set, and for each field where its value comes from ("default", "file",
    "environment" or "flag").
    """
    variables = {name: os.environ.get(f"{stage.prefix()}{name.upper()}") for name in stage.model_fields}
    layers: list[tuple[str, Mapping[str, Any]]] = [
        ("file", read_config(config).get(stage.table, {})),
        ("environment", {name: value for name, value in variables.items() if value}),
        ("flag", {name: value for name, value in flags.items() if value is not None}),
    ]
    values: dict[str, Any] = {}
    origin = dict.fromkeys(stage.model_fields, "default")
    for source, layer in layers:
        if any(name in layer for name in stage.alternatives):
            for name in stage.alternatives:
                values.pop(name, None)
                origin[name] = "default"
        for name, value in layer.items():
            field = stage.model_fields.get(name)
            listed = isinstance(value, str) and field is not None and get_origin(field.annotation) is tuple
            values[name] = tuple(part.strip() for part in value.split(",")) if listed else value
            origin[name] = source
    return values, origin


def check_credentials(stage: type[Stage], values: Mapping[str, Any], origin: Mapping[str, str]) -> None:
    """Raise SettingsError if `./hybridr.toml` sets an address and credentials come from elsewhere.

    Otherwise a folder from somebody else could send the user's password to that person. For the same reason a
    credentials file that it names must be in the same folder.
    """
    addresses = [name for name in stage.addresses if origin[name] == "file"]
    credentials = [name for name in stage.credentials if origin[name] != "default"]
    foreign = [name for name in credentials if origin[name] != "file" or is_outside(name, values[name])]
    if addresses and foreign:
        raise SettingsError(
            f"./{CONFIG_FILE} sets {' and '.join(addresses)} of [{stage.table}], but {foreign[0]} is from "
            "elsewhere and is not sent there",
            hint=f"--config {CONFIG_FILE}   says that the file is trusted",
        )


def is_outside(name: str, value: Any) -> bool:
    """Return whether a credential in `./hybridr.toml` refers to something outside the current folder: a path,
    or the account's AWS keys.
    """
    if name == "aws_region":  # the keys are in this account's own files
        return True
    return name in ("password_file", "client_key") and not Path(str(value)).resolve().is_relative_to(
        Path.cwd().resolve()
    )


def resolved_values(stage: type[Stage], *, config: Path | None = None) -> list[tuple[str, Any, str]]:
    """Return a stage's settings as (name, value, origin); a value that must be given by flag is None."""
    missing = {name: "(flag)" for name, field in stage.model_fields.items() if field.is_required()}
    values, origin = merge_values(stage, missing, config)
    record = stage(**values).record()
    return [(f"{stage.table}.{name}", value, origin[name]) for name, value in record.items()]
