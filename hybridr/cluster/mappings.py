"""Compares the mapping of an index with that of its copy, and adds fields that appeared in the source to the
copy.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from ..errors import ClusterError
from .connection import Cluster, path_of
from .limits import properties_of, raised_limits
from .record import IndexInfo

Fields = Mapping[str, Mapping[str, Any]]
INNER = ("properties", "fields")
WHOLE = ("dynamic", "dynamic_templates", "date_detection", "numeric_detection", "dynamic_date_formats")
"""What a mapping says of fields that it does not have yet."""
CHANGEABLE = frozenset(
    "properties fields boost coerce copy_to dynamic eager_global_ordinals fielddata "
    "fielddata_frequency_filter ignore_above ignore_malformed max_input_length meta search_analyzer "
    "search_quote_analyzer split_queries_on_whitespace".split()
)
"""Parameters of a field that OpenSearch changes in an index that has documents."""
UNSAID = {"analyzer": "default"}  # told only where the search analyser is another one
ANALYSIS = "index.analysis"


def carry_over(cluster: Cluster, source: IndexInfo, copy: IndexInfo) -> None:
    """Add to a copy's mapping what its source's mapping has more, as far as the copy can take it (see
    `unlike`).
    """
    # Limits are raised to those of the source, with room for the copy's own fields.
    more = {name: field for name, field in properties_of(copy).items() if name not in properties_of(source)}
    passages = copy.record.passages
    if raised := raised_limits(source, copy, more, passages.most if passages else 0):
        cluster.request("PUT", path_of(copy.name, "_settings"), raised)
    fields = additions(properties_of(source), properties_of(copy))
    whole = {
        name: source.mappings[name]
        for name in WHOLE
        if name in source.mappings and source.mappings[name] != copy.mappings.get(name)
    }
    if not (fields or whole):
        return
    if put_mapping(cluster, copy, whole | {"properties": fields}):
        return
    # One field that is refused, as for an analyser that the copy lacks, refuses the whole request.
    each = ({"properties": {name: field}} for name, field in fields.items())
    for part in [*({name: value} for name, value in whole.items()), *each]:
        put_mapping(cluster, copy, part)


def add_missing_fields(
    cluster: Cluster, target: IndexInfo, info: IndexInfo, ignored: Collection[str]
) -> None:
    """Add to the mapping of the index `info` the fields that `target` has and it lacks, except the ignored
    ones.
    """
    missing = {name: field for name, field in properties_of(target).items() if name not in ignored}
    if fields := missing_fields(missing, properties_of(info)):
        if raised := raised_limits(info, None, fields):
            cluster.request("PUT", path_of(info.name, "_settings"), raised)
        for name, field in fields.items():
            put_mapping(cluster, info, {"properties": {name: field}})


def missing_fields(needed: Fields, there: Fields) -> dict[str, Any]:
    """Return the fields of `needed` that `there` lacks; for an object that exists, those inside that are
    lacking.
    """
    missing: dict[str, Any] = {}
    for name, field in needed.items():
        mapping = there.get(name)
        if mapping is None:
            missing[name] = field
        elif inner := missing_fields(field.get("properties", {}), mapping.get("properties", {})):
            missing[name] = own(mapping) | {"properties": inner}
    return missing


def put_mapping(cluster: Cluster, info: IndexInfo, mapping: dict[str, Any]) -> bool:
    """Add to the mapping of an index; return False if the cluster refuses the change."""
    try:
        cluster.request("PUT", path_of(info.name, "_mapping"), mapping)
    except ClusterError as error:
        if error.status != 400:
            raise
        return False
    return True


def additions(needed: Fields, there: Fields) -> dict[str, Any]:
    """Return the fields of `needed` that `there` lacks or maps otherwise, without those that cannot be
    changed.
    """
    added: dict[str, Any] = {}
    for name, field in needed.items():
        mapping = there.get(name)
        if mapping is None:
            added[name] = field
        elif is_changeable(field, mapping):
            inner = {part: additions(field.get(part, {}), mapping.get(part, {})) for part in INNER}
            more = {part: fields for part, fields in inner.items() if fields}
            if more or own(field) != own(mapping):
                added[name] = own(field) | more
    return added


def unlike(source: IndexInfo, copy: IndexInfo) -> tuple[str, ...]:
    """Return the names of fields that a copy lacks or maps otherwise than its source; also
    `index.analysis`.
    """
    fields = tuple(sorted(unlike_fields(properties_of(source), properties_of(copy))))
    return fields if analysis_of(source) == analysis_of(copy) else (*fields, ANALYSIS)


def unlike_fields(needed: Fields, there: Fields, below: str = "") -> Iterator[str]:
    """Yield the dotted names of fields of `needed` that `there` lacks or maps otherwise."""
    for name, field in needed.items():
        mapping = there.get(name)
        if mapping is None or own(field) != own(mapping):
            yield below + name
        else:
            for part in INNER:
                yield from unlike_fields(field.get(part, {}), mapping.get(part, {}), f"{below}{name}.")


def is_beyond_change(source: IndexInfo, copy: IndexInfo) -> bool:
    """Return whether no change of its mapping can make a copy index documents as its source does."""
    return analysis_of(source) != analysis_of(copy) or clashes(properties_of(source), properties_of(copy))


def clashes(needed: Fields, there: Fields) -> bool:
    """Return whether `there` has a field of `needed` in a form that cannot be changed into the needed one."""
    return any(
        name in there
        and (
            not is_changeable(field, there[name])
            or any(clashes(field.get(part, {}), there[name].get(part, {})) for part in INNER)
        )
        for name, field in needed.items()
    )


def is_changeable(field: Mapping[str, Any], mapping: Mapping[str, Any]) -> bool:
    """Return whether OpenSearch can change a field's mapping into `field` (only changeable parameters
    differ).
    """
    fixed = (field.keys() | mapping.keys()) - CHANGEABLE
    return all(field.get(name, UNSAID.get(name)) == mapping.get(name, UNSAID.get(name)) for name in fixed)


def own(field: Mapping[str, Any]) -> dict[str, Any]:
    """Return the mapping of a field without the fields inside it (`properties`, `fields`)."""
    return {name: value for name, value in field.items() if name not in INNER}


def analysis_of(info: IndexInfo) -> dict[str, Any]:
    """Return the analysis settings of an index (analysers, tokenisers, filters)."""
    return {name: value for name, value in info.settings.items() if name.startswith(f"{ANALYSIS}.")}
