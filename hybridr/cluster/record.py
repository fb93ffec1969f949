"""The description of one index, and hybridr's record of it in the mapping's `_meta`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import AfterValidator, Field, ValidationError

from ..errors import ClusterError, DataError
from ..files.local import is_file_name
from ..records import Windows
from .record_parts import (
    VERSION,
    Calibrated,
    Cosines,
    Deployment,
    Experiment,
    Fingerprint,
    FittedTable,
    KeptRules,
    Load,
    Part,
    Ranking,
    Remembered,
    SemanticModels,
    Tuned,
)
from .semantic import SemanticField, plain_mappings

ROLE = "vectors"
ENCODER_FIELD = "hybridr_encoder"
SEQ_NO_FIELD = "hybridr_seq_no"
MARK_FIELD = "hybridr_mark"  # with vectors in the user's own index
BITS_FIELD = "hybridr_tokens"
TEXT_TYPES = frozenset({"text", "match_only_text", "annotated_text", "search_as_you_type"})
RESULT_WINDOW, USUAL_RESULT_WINDOW = "index.max_result_window", 10_000
MARKS = "hybridr_writes"  # next to the record in `_meta`
PASSAGE_VECTOR = "vector"  # inside the nested field, next to `start` and `end`
NEEDED = ("source", "source_uuid", "job", "state", "encoder", "similarity", "vector_field", "fields")


def require_event_keys(event: dict[str, Any]) -> dict[str, Any]:
    """Return an event of the history unchanged. Raises ValueError unless it has a time and a name."""
    if not all(isinstance(event.get(name), str) for name in ("at", "event")):
        raise ValueError("an event lacks its time or name")
    return event


HistoryEvent = Annotated[dict[str, Any], AfterValidator(require_event_keys)]
"""An event of the history."""
Name = Annotated[str, AfterValidator(lambda name: require_name(name))]
"""The name of an index or alias, or "". It becomes part of URL paths and file names."""
Uuid = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{0,64}$")]
NO_NAME = re.compile(r"""^[-_+]|[ ,:#*?"<>|]""")
Event = Literal[
    "filled",
    "filled in place",
    "switched",
    "rolled back",
    "tuned",
    "untuned",
    "learnt",
    "forgotten",
    "experiment began",
    "experiment ended",
    "promoted",
    "promotion undone",
]
"""Events in the history of an index with vectors."""


class Record(Part):
    """The state that hybridr keeps in an index's `_meta`; empty for an index that hybridr never wrote to.

    The record of an index with vectors (`role` "vectors") names their `source` index, their `encoder` (its
    fingerprint), their `fields`, and how they are compared. `aliases` were created or moved by hybridr.
    `original` holds the index settings to restore after the fill, `synced` the last position read in each
    shard of the source. `token_bits` is the mean state from which the bits of tokens are computed
    (`encoders/derived.py`); empty without bits. `refused` names documents that the engine rejected and that
    every run tries again; the user allows the `accepted` ones to be missing. `target` says where the vectors
    are if neither in place nor next to the source. In the record of a source, `destinations` lists the uuids
    of the indices with its vectors (`is_destination_of` in `destinations.py`). `warning` names a problem that
    the user chose to ignore.
    """

    role: Literal["source", "vectors"] | None = None
    in_place: bool = False
    target: str | None = None
    source: Name = ""
    source_uuid: Uuid = ""
    source_lineage: str | None = None
    """The `lineage` of the source's `IndexInfo`; None if it could not be determined."""
    job: str = ""
    state: Literal["", "filling", "complete", "removing"] = ""
    alias: Name = ""
    aliases: dict[Name, str] = {}
    previous: Name = ""
    encoder: Fingerprint = ""
    dim: int = 0
    similarity: Literal["", "ip", "cosine"] = ""
    precision: Literal["fp32", "bf16", "int8"] | None = None
    backend: Literal["onnx", "openvino", "torch"] | None = None
    arithmetic: str = ""
    """The measurements that decided precision and backend; empty without measurements."""
    vector_field: str = ""
    fields: tuple[str, ...] = ()
    fields_named: bool = False
    """Whether the user named the `fields`; else the contents of documents decided them."""
    lexical_fields: tuple[str, ...] = ()
    text_fields: tuple[str, ...] = ()
    language: str | None = None
    warning: str = ""
    max_tokens: int | None = None
    passages: Windows | None = None
    cosines: Cosines | None = None
    token_bits: str = ""
    representations: dict[str, str] = {}
    """Further representations stored in each document: name -> its state, as JSON."""
    engine: Literal["lucene", "faiss"] = "lucene"
    vectors: Literal["float", "byte", "sq", "on_disk"] = "float"
    compression: str | None = Field(None, pattern=r"^[0-9]{1,2}x$")
    original: dict[str, Any] = {}
    synced: dict[int, int] | None = None
    carried: dict[int, int] | None = None
    """In a replaced index: the position up to which clients' writes were carried over or discarded."""
    carried_into: Uuid = ""
    """The uuid of the index that got these writes; "" if the source got them or they were discarded."""
    not_carried: tuple[str, ...] = ()
    """Documents before `carried` that were not carried over, because they also changed elsewhere."""
    taken: dict[int, tuple[tuple[int, int], ...]] = {}
    """Operations of the source after `synced` that came from this index by a rollback: shard -> ranges."""
    rejected: int = 0
    refused: tuple[str, ...] = ()
    accepted: tuple[str, ...] = ()
    history: tuple[HistoryEvent, ...] = ()
    """The last 50 events, each with `at` and `event`: see `Event`."""
    load: Load | None = None
    semantic: SemanticModels | None = None
    deployment: Deployment | None = None
    tuning: Tuned | None = None
    term_table: FittedTable | None = None
    memory: Remembered | None = None
    rules: KeptRules | None = None
    experiment: Experiment | None = None
    answers: Calibrated | None = None
    destinations: tuple[str, ...] = ()

    @property
    def ranking(self) -> Ranking:
        """Return how searches rank: the tuned search settings and chain, and the memory of learnt queries."""
        tuned = self.tuning or Tuned()
        return Ranking(search=tuned.search, chain=tuned.chain, memory=self.memory)

    def with_ranking(self, ranking: Ranking) -> Record:
        """Return the record with this ranking; other tuned values stay."""
        tuned = self.tuning or Tuned()
        values = {name: getattr(tuned, name) for name in tuned.model_fields_set - {"search", "chain"}}
        values |= {name: value for name in ("search", "chain") if (value := getattr(ranking, name))}
        return self.changed(tuning=Tuned(**values) if values else None, memory=ranking.memory)

    @property
    def running_experiment(self) -> Experiment | None:
        """Return the running experiment; None if it ended, or its variant `a` is no longer the ranking."""
        experiment = self.experiment
        return (
            experiment if experiment and not experiment.ended and experiment.a.is_as(self.ranking) else None
        )

    @property
    def remembers(self) -> bool:
        """Return whether the memory of learnt queries was made by the encoder of the vectors."""
        return self.memory is not None and self.memory.encoder == self.encoder

    def changed(self, **changes: Any) -> Record:
        """Return the record with some values changed. Raises DataError for unknown names and wrong values."""
        if unknown := sorted(changes.keys() - type(self).model_fields.keys()):
            raise DataError(f"a record has no field '{unknown[0]}'")
        set_fields = {name: getattr(self, name) for name in self.model_fields_set}
        return parse_record({**set_fields, **changes}, "the new record")

    def without(self, name: str) -> Record:
        """Return the record with one value unset."""
        return Record(**{field: getattr(self, field) for field in self.model_fields_set if field != name})

    def load_only(self) -> Record:
        """Return the record with only the values of `load`, for an index whose vectors are removed."""
        if self.load is None:
            return Record()
        fields = {"text_fields": self.text_fields, "language": self.language, "load": self.load}
        return Record(role="source", lexical_fields=self.lexical_fields, **fields)

    def to_json(self) -> dict[str, Any]:
        """Return the record as JSON for `_meta`: all values ever set, and the version; `{}` without any."""
        values = self.model_dump(mode="json", exclude_unset=True)
        return {**values, "version": VERSION} if values else {}


def require_name(name: str) -> str:
    """Return the name of an index or alias unchanged; "" passes. Raises ValueError for an impossible name."""
    if name and not can_be_name(name):
        raise ValueError("no index or alias can have this name")
    return name


def can_be_name(name: str) -> bool:
    """Return whether an index or alias can have this name, so it is not a pattern, list or path."""
    return is_file_name(name) and not NO_NAME.search(name)


def parse_record(value: Any, whose: str) -> Record:
    """Return the record with these values. Raises DataError about `whose` record for wrong values."""
    try:
        record = Record(**value)
    except TypeError as error:
        raise DataError(f"{whose} cannot be read: {error}", hint=FOREIGN_RECORD) from None
    except ValidationError as error:
        problem = error.errors()[0]
        name, message = ".".join(map(str, problem["loc"])), problem["msg"].lower()
        raise DataError(f"{whose} holds a wrong '{name}': {message}", hint=FOREIGN_RECORD) from None
    missing = [name for name in NEEDED if record.role == ROLE and not getattr(record, name)]
    if missing:
        raise DataError(f"{whose} lacks {', '.join(missing)}", hint=FOREIGN_RECORD)
    return record


FOREIGN_RECORD = "hybridr did not write this: look at `_meta` in GET /INDEX/_mapping"
OTHER_VERSION = "hybridr remove NAME with the version that wrote it, then hybridr reindex NAME with this one"


@dataclass(frozen=True)
class Scope:
    """The part of an index that an alias shows: documents that match `filter`, on the shards of `routing`.

    Without both it is the whole index. The server applies filter and routing only if a request names the
    alias. hybridr's requests name the index, so each request for documents adds the scope of `IndexInfo`.
    """

    filter: Mapping[str, Any] | None = None
    routing: str | None = None

    def __bool__(self) -> bool:
        return self != WHOLE

    @property
    def params(self) -> dict[str, str]:
        """Return the URL parameters of a search in this scope (the routing)."""
        return {"routing": self.routing} if self.routing else {}

    def body(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return a search body that finds only documents in this scope; scores stay."""
        if self.filter is None:
            return dict(body)
        query = body.get("query", {"match_all": {}})
        if "hybrid" not in query:
            return {**body, "query": {"bool": {"must": [query], "filter": [self.filter]}}}
        # A hybrid query must be the top-level query, so each of its queries is filtered.
        parts = [{"bool": {"must": [part], "filter": [self.filter]}} for part in query["hybrid"]["queries"]]
        return {**body, "query": {"hybrid": {**query["hybrid"], "queries": parts}}}

    def combined_filter(self, filter: dict[str, Any] | None) -> dict[str, Any] | None:
        """Return one query for a search's own filter and the scope's; None if there is neither."""
        filters = [dict(clause) for clause in (self.filter, filter) if clause]
        return {"bool": {"filter": filters}} if len(filters) > 1 else next(iter(filters), None)


WHOLE = Scope()


class MappedField(NamedTuple):
    """A leaf field of a mapping; `subfields` are its multi-fields such as `keyword`."""

    name: str
    type: str
    analyzer: str
    subfields: tuple[str, ...]
    nested: bool


@dataclass(frozen=True)
class IndexInfo:
    """The description of one index: flat settings, mappings and alias definitions as the server gives them.

    `scope` is the part of the index that the requested name shows. In `mappings` the `semantic` fields are
    text, as in documents that hybridr reads. `turns` holds the aliases of `writing_turn`.
    """

    name: str
    settings: dict[str, Any] = field(repr=False)
    mappings: dict[str, Any] = field(repr=False)
    aliases: dict[str, Any] = field(repr=False)
    scope: Scope = WHOLE
    semantic: Mapping[str, SemanticField] = field(default_factory=dict, repr=False)
    turns: tuple[str, ...] = field(default=(), repr=False, compare=False)

    @property
    def uuid(self) -> str:
        """Return the uuid of the index; a later index of the same name has another one."""
        return self._required_setting("index.uuid")

    @property
    def lineage(self) -> str:
        """Return the history uuid: restoring over the index changes it and all `_seq_no`, but not `uuid`."""
        return str(self.settings.get("index.history.uuid", ""))

    @property
    def shards(self) -> int:
        """Return the number of primary shards."""
        return int(self._required_setting("index.number_of_shards"))

    @property
    def result_window(self) -> int:
        """Return how many hits one search may return or skip."""
        return int(self.settings.get(RESULT_WINDOW, USUAL_RESULT_WINDOW))

    def _required_setting(self, setting: str) -> str:
        """Return an index setting. Raises ClusterError if the server's answer lacks it."""
        if not isinstance(value := self.settings.get(setting), str):
            raise ClusterError(f"the cluster does not tell {setting} of '{self.name}'")
        return value

    @cached_property
    def record(self) -> Record:
        """Return hybridr's record in the index; empty without one. Raises DataError for a damaged record."""
        stored = self.other_meta.get("hybridr", {})
        whose = f"hybridr's record in '{self.name}'"
        if not isinstance(stored, Mapping):
            raise DataError(f"{whose} is {type(stored).__name__}, not an object", hint=FOREIGN_RECORD)
        values = dict(stored)
        version = values.pop("version", None)
        if values and version != VERSION:
            raise DataError(
                f"{whose} is of version {version}, this hybridr reads {VERSION}", hint=OTHER_VERSION
            )
        return parse_record(values, whose)

    @property
    def properties(self) -> dict[str, Any]:
        """Return name -> mapping of the index's top-level fields, each with its inner fields."""
        properties: dict[str, Any] = self.mappings.get("properties", {})
        return properties

    @cached_property
    def mapped_fields(self) -> list[MappedField]:
        """Return the leaf fields of the mapping by dotted name, each with its analyser."""
        default = self.settings.get("index.analysis.analyzer.default.type", "standard")
        return sorted(leaf_fields(self.properties, "", default, nested=False))

    @cached_property
    def types(self) -> dict[str, str]:
        """Return field name -> type for all fields and multi-fields; an alias has the type of its target."""
        types = dict[str, str]()
        for mapped in self.mapped_fields:
            names = [mapped.name, *(f"{mapped.name}.{part}" for part in mapped.subfields)]
            types |= {name: self.mapping_of(name).get("type", "") for name in names}
        aliases = [name for name, kind in types.items() if kind == "alias"]
        return types | {name: types.get(self.mapping_of(name).get("path", ""), "alias") for name in aliases}

    def mapping_of(self, field: str) -> dict[str, Any]:
        """Return the mapping of a field by its dotted name; empty if there is none."""
        mapping, parts = self.mappings, field.split(".")
        while parts:
            inner = mapping.get("properties") or mapping.get("fields") or {}
            # With `subobjects: false` a dotted name is a key, so the full name is tried first.
            lengths = [len(parts), *range(1, len(parts))]
            length = next((length for length in lengths if ".".join(parts[:length]) in inner), None)
            if length is None:
                return {}
            mapping, parts = inner[".".join(parts[:length])], parts[length:]
        return mapping

    @property
    def other_meta(self) -> dict[str, Any]:
        """Return the mapping's whole `_meta`, including the values of applications."""
        meta = self.mappings.get("_meta", {})
        return dict(meta) if isinstance(meta, Mapping) else {}

    @property
    def marks(self) -> list[Any]:
        """Return the random marks of the last writes of the record, oldest first (see `rewrite_in_view`)."""
        marks = self.other_meta.get(MARKS)
        return marks if isinstance(marks, list) else []

    def with_record(self, record: Record) -> IndexInfo:
        """Return a copy of the description with this record; nothing is written."""
        return replace(self, mappings={**self.mappings, "_meta": self.meta_with(record)})

    def meta_with(self, record: Record) -> dict[str, Any]:
        """Return `_meta` with this record and without marks; other applications' values stay."""
        values = {name: value for name, value in self.other_meta.items() if name not in ("hybridr", MARKS)}
        return values | meta_of(record)


def leaf_fields(
    properties: Mapping[str, Any], prefix: str, default: str, *, nested: bool
) -> Iterator[MappedField]:
    """Yield the fields without inner fields; `default` is the analyser of text fields that name none."""
    for name, mapping in properties.items():
        if inner := mapping.get("properties"):
            is_nested = nested or mapping.get("type") == "nested"
            yield from leaf_fields(inner, f"{prefix}{name}.", default, nested=is_nested)
        elif "type" in mapping:
            analyzer = mapping.get("analyzer", default) if mapping["type"] in TEXT_TYPES else ""
            subfields = tuple(mapping.get("fields", ()))
            yield MappedField(prefix + name, mapping["type"], analyzer, subfields, nested)


def parse_index_info(name: str, index: Mapping[str, Any]) -> IndexInfo:
    """Return the description of an index from the cluster's answer.

    Raises AttributeError, KeyError, TypeError or ValueError for an unexpected form.
    """
    settings, mappings = dict(index["settings"]), index["mappings"]
    require_fields(mappings.get("properties", {}))
    mappings, semantic = plain_mappings(mappings)
    aliases = dict(index.get("aliases", {}))
    turns = {alias: aliases.pop(alias) for alias in list(aliases) if alias.startswith(turn_prefix(name))}
    return IndexInfo(require_name(name), settings, mappings, aliases, semantic=semantic, turns=tuple(turns))


def turn_prefix(name: str) -> str:
    """Return the prefix of the aliases through which a source's record is written (`writing_turn`)."""
    return f"{name}-hybridr_turn_"


def require_fields(properties: Any) -> None:
    """Raise AttributeError unless these are the fields of a mapping: nested objects."""
    for field_mapping in properties.values():
        for inner in ("properties", "fields"):
            require_fields(field_mapping.get(inner, {}))


def scope_of(name: str, info: IndexInfo) -> Scope:
    """Return the part of an index that a name shows. Raises ClusterError if a pattern is ambiguous."""
    scopes = {
        alias: Scope(definition.get("filter"), definition.get("search_routing"))
        for alias, definition in info.aliases.items()
    }
    if name in scopes:
        return scopes[name]
    if any(scopes.values()) and not any(fnmatchcase(info.name, part) for part in name.split(",")):
        raise ClusterError(
            f"'{name}' matches '{info.name}' by aliases, of which some show only a part of it",
            hint=f"name one alias: {', '.join(sorted(scopes))}",
        )
    return WHOLE


def meta_of(record: Record) -> dict[str, Any]:
    """Return the `_meta` that holds only this record; `{}` for an empty record."""
    return {"hybridr": stored} if (stored := record.to_json()) else {}


STREAM = ".ds-"
"""Prefix of the names of a data stream's backing indices."""
CLOSED = "index.verified_before_close"
ROLLOVER = tuple(
    f"index.{whose}.rollover_alias"
    for whose in ("plugins.index_state_management", "opendistro.index_state_management", "lifecycle")
)
SHOWN = 5  # indices
COPY = (
    'copy it into an index first: POST /_reindex {{"source": {{"index": "{}"}}, "dest": {{"index": "NEW"}}}}'
)


def sole_index(name: str, infos: Sequence[IndexInfo]) -> IndexInfo:
    """Return the one index that a name stands for, with its scope. Raises ClusterError for a data stream,
    several indices, a rollover alias, or a closed index.
    """
    if any(info.name.startswith(STREAM) for info in infos):
        problem = f"'{name}' is a data stream, which only takes new documents"
        raise ClusterError(problem, hint=COPY.format(name))
    first, *other_infos = infos
    if other_infos:
        names = ", ".join(info.name for info in infos[:SHOWN]) + (", …" if len(infos) > SHOWN else "")
        raise ClusterError(
            f"'{name}' stands for several indices: {names}", hint=f"name one of them, or {COPY.format(name)}"
        )
    if name in {first.settings.get(setting) for setting in ROLLOVER}:
        raise ClusterError(
            f"'{name}' is a rollover alias: after '{first.name}' it will stand for other indices too",
            hint=f"name the index itself, {first.name}, which is one of them",
        )
    require_not_closed(first)
    return replace(first, scope=scope_of(name, first))


def require_not_closed(info: IndexInfo) -> None:
    """Raise ClusterError for a closed index."""
    if info.settings.get(CLOSED) == "true":
        raise ClusterError(f"index '{info.name}' is closed", hint=f"open it: POST /{info.name}/_open")
