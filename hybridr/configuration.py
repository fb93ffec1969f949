"""The only code that reads `hybridr.toml` and the environment.

Precedence: flag > environment (`HYBRIDR_<STAGE>_<FIELD>`, for the connection `HYBRIDR_<FIELD>`) >
`hybridr.toml` (`[stage]`) > default.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from .errors import SettingsError
from .settings import TABLES, Stage

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

CONFIG_FILE = "hybridr.toml"
S = TypeVar("S", bound=Stage)


def read_config(path: Path | None) -> dict[str, dict[str, Any]]:
    """Read `hybridr.toml` (or `path`); unknown tables raise SettingsError."""
    file = path or Path(CONFIG_FILE)
    if not file.is_file():
        if path is not None:
            raise SettingsError(f"no settings file at {path}")
        return {}
    try:
        tables = tomllib.loads(file.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{file}: {error}") from error
    for name in tables:
        if name not in TABLES:
            raise SettingsError(f"{file}: unknown table [{name}], known are {', '.join(sorted(TABLES))}")
    return tables


def read_environment(stage: type[Stage]) -> dict[str, str]:
    """Collect the stage's variables; empty ones count as not set."""
    names = {field: f"{stage.prefix()}{field.upper()}" for field in stage.model_fields}
    return {field: os.environ[name] for field, name in names.items() if os.environ.get(name)}


def resolve(
    stage: type[S], flags: Mapping[str, Any], *, config: Path | None = None
) -> tuple[S, dict[str, str]]:
    """Merge flags (None = not given), environment, file and defaults; say where each value is from."""
    layers: list[tuple[str, Mapping[str, Any]]] = [
        ("file", read_config(config).get(stage.table, {})),
        ("environment", read_environment(stage)),
        ("flag", {name: value for name, value in flags.items() if value is not None}),
    ]
    values: dict[str, Any] = {}
    origin = dict.fromkeys(stage.model_fields, "default")
    for source, layer in layers:
        for name, value in layer.items():
            listed = isinstance(value, str) and name in stage.model_fields and is_list(stage, name)
            values[name] = tuple(part.strip() for part in value.split(",")) if listed else value
            origin[name] = source
    return stage(**values), origin


def is_list(stage: type[Stage], field: str) -> bool:
    """Tell whether a field takes several names, given as `a,b,c` in a flag or variable."""
    return stage.model_fields[field].annotation == tuple[str, ...]


def resolved_values(stage: type[Stage], *, config: Path | None = None) -> list[tuple[str, Any, str]]:
    """List a stage's settings as (name, value, where from); what must be given by flag shows as None."""
    missing = {name: "(flag)" for name, field in stage.model_fields.items() if field.is_required()}
    settings, origin = resolve(stage, missing, config=config)
    return [(f"{stage.table}.{name}", value, origin[name]) for name, value in settings.record().items()]
