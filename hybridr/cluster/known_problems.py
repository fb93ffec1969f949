"""Known bugs of OpenSearch and Elasticsearch by version: which of them a cluster or an index has.

The rows with their sources are in `known_problems.toml`; docs/measured/known-problems.md shows them.
"""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

import orjson
from pydantic import BaseModel, ConfigDict

from ..errors import DataError
from ..files.local import read_toml
from .connection import Cluster
from .record import IndexInfo

ANY_PRODUCT = "any"
ROWS = Path(__file__).with_suffix(".toml")


class TablePart(BaseModel):
    """Base of the models of the table; an unknown key in the table is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class FieldCondition(TablePart):
    """The condition by which a field has a problem: patterns for its properties, None for any."""

    type: str
    name: str | None = None
    nested: bool | None = None
    excluded: bool | None = None
    """Whether `_source` excludes the field."""
    method: str | None = None
    """Pattern of the mapping's `method`, which names the engine."""
    options: str | None = None
    """Pattern of the field's whole mapping."""


class KnownProblem(TablePart):
    """One known bug: versions, symptom, remedy, source, and conditions of the indices that it affects."""

    name: str
    product: str
    since: str
    happens: str
    remedy: str
    source: str
    fixed: str | None = None
    lucene: bool = False
    field: FieldCondition | None = None
    settings: dict[str, str] = {}
    mapping: str | None = None
    loses: bool = False

    @property
    def of_indices(self) -> bool:
        """Return whether the problem also depends on an index's fields, settings or mapping."""
        return bool(self.field or self.settings or self.mapping)

    @property
    def versions(self) -> str:
        """Return the affected versions in words, such as `OpenSearch 3.6.0 to before 3.7.0`."""
        product = "Lucene" if self.lucene else self.product
        return f"{product} {self.since} " + (f"to before {self.fixed}" if self.fixed else "and later")

    @property
    def line(self) -> str:
        """Return a line that says what happens and in which versions."""
        return f"{self.happens} (known problem {self.name}, {self.versions})"

    def is_in_cluster(self, cluster: Cluster) -> bool:
        """Return whether the cluster's product and version have the problem."""
        if self.product not in (ANY_PRODUCT, cluster.dialect.product):
            return False
        version = cluster.info["version"]
        number = version_numbers(version.get("lucene_version", "0") if self.lucene else version["number"])
        return version_numbers(self.since) <= number and (
            self.fixed is None or number < version_numbers(self.fixed)
        )


def known_problems(cluster: Cluster) -> list[KnownProblem]:
    """Return the problems of a cluster's version, in all indices or in some."""
    return [problem for problem in all_problems() if problem.is_in_cluster(cluster)]


def problems_of_index(cluster: Cluster, info: IndexInfo) -> list[KnownProblem]:
    """Return the problems that an index has because of its fields, mapping or settings."""
    mapping = orjson.dumps({**info.mappings, "_meta": None}).decode()
    return [
        problem
        for problem in known_problems(cluster)
        if problem.of_indices
        and all(matches(part, str(info.settings.get(name, ""))) for name, part in problem.settings.items())
        and matches(problem.mapping, mapping)
        and (problem.field is None or affected_fields(problem.field, info))
    ]


def require_no_loss(cluster: Cluster, info: IndexInfo) -> None:
    """Raise DataError if a known bug would lose data when documents of the index are copied or updated."""
    for problem in problems_of_index(cluster, info):
        if problem.loses:
            fields = affected_fields(problem.field, info) if problem.field else []
            names = f" ({', '.join(fields)})" if fields else ""
            raise DataError(
                f"index '{info.name}' has the known problem {problem.name}{names} of {problem.versions}: "
                f"{problem.happens}",
                hint=f"{problem.remedy}; {problem.source}",
            )


def affected_fields(condition: FieldCondition, info: IndexInfo) -> list[str]:
    """Return the names of the fields of an index that meet a condition."""
    excludes = info.mappings.get("_source", {}).get("excludes", ())
    fields = [
        (field, info.mapping_of(field.name))
        for field in info.mapped_fields
        if re.fullmatch(condition.type, field.type)
    ]
    return [
        field.name
        for field, mapping in fields
        if matches(condition.name, field.name)
        and condition.nested in (None, field.nested)
        and condition.excluded in (None, any(fnmatchcase(field.name, pattern) for pattern in excludes))
        and matches(condition.method, str(mapping.get("method", "")))
        and matches(condition.options, str(mapping))
    ]


@cache
def all_problems() -> tuple[KnownProblem, ...]:
    """Read all rows of `known_problems.toml`."""
    rows = read_toml(ROWS)["problem"]
    return tuple(KnownProblem.model_validate(row) for row in rows)


def matches(pattern: str | None, text: str) -> bool:
    """Return whether a text contains a match of a regular expression, or none after a leading `!`.

    None matches every text.
    """
    if pattern is None:
        return True
    if pattern.startswith("!"):
        return re.search(pattern[1:], text) is None
    return re.search(pattern, text) is not None


def version_numbers(version: str) -> tuple[int, ...]:
    """Return the first three numbers of a version such as `3.6.0-SNAPSHOT`."""
    return tuple(int(number) for number in re.findall(r"\d+", version)[:3])
