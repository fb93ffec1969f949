"""Checks of a user's own index that takes the vectors itself, and the marks in its documents.

The fields of an existing index cannot be hidden from `_source`, so a client's partial update keeps a vector
whose text has changed. A mark beside each vector therefore names its encoder and text.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from shlex import quote
from typing import Any, NamedTuple

from ..cluster.connection import IndexView
from ..cluster.destinations import destinations, is_copy, is_destination
from ..cluster.field_values import DERIVED, require_whole_source, text_of
from ..cluster.known_problems import require_no_loss
from ..cluster.mappings import IN_PLACE_BLOCKS, block_obstacles, require_no_obstacle
from ..cluster.reading import SourceDocument
from ..cluster.record import MARK_FIELD, IndexInfo
from ..errors import ClusterError, DataError, SettingsError
from ..files.local import fingerprint
from .final_pipelines import NO_SCRIPTS, final_pipeline
from .planning import Proposal
from .representations import fields_of, name_conflict_hints, representations_in
from .settings import ReindexSettings

PAINLESS = "lang-painless"
ENCODER_DIGITS, TEXT_DIGITS = 16, 32  # 64 bits tell encoders apart, 128 bits texts
CHANGE = "for (name in params.drop) { ctx._source.remove(name) } ctx._source.putAll(params.set)"

UNFIT = {
    DERIVED: "has a derived source, which takes no vectors",
    "index.append_only.enabled": "takes no updates of its documents",
}
"""Settings of an index that cannot take vectors in place, each with the reason."""


class Marks(NamedTuple):
    """Inputs of an index's marks: the encoder's fingerprint, its input limit, the text fields."""

    encoder: str
    max_tokens: int | None
    fields: tuple[str, ...]

    @classmethod
    def of_index(cls, info: IndexInfo) -> Marks:
        """Return the inputs of an index's marks, from its record."""
        return cls(info.record.encoder, info.record.max_tokens, tuple(info.record.fields))

    @property
    def encoder_part(self) -> str:
        """Return the first part of all marks of this encoder."""
        return fingerprint([self.encoder, self.max_tokens])[:ENCODER_DIGITS] + "-"

    @property
    def read_fields(self) -> tuple[str, ...]:
        """Return the fields that must be read to decide whether a document's mark fits."""
        return (*self.fields, MARK_FIELD)

    def of(self, text: str) -> str:
        """Return the mark for a text; a document with an empty text has a mark and no vector."""
        digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
        return self.encoder_part + digest[:TEXT_DIGITS]

    def fits(self, source: dict[str, Any]) -> bool:
        """Return whether the document bears the mark of its present text."""
        return bool(source.get(MARK_FIELD) == self.of(text_of(source, self.fields)))

    def by_encoder(self, source: dict[str, Any]) -> bool:
        """Return whether the document has a mark of this encoder, for its present text or an earlier one."""
        return str(source.get(MARK_FIELD, "")).startswith(self.encoder_part)


def marked_query(marks: Marks) -> dict[str, Any]:
    """Return a query for documents with a mark of this encoder, for their present text or an earlier one."""
    return {"prefix": {MARK_FIELD: marks.encoder_part}}


def inconsistent_query(marks: Marks, fields: Sequence[str]) -> dict[str, Any]:
    """Return a query for documents whose mark says that they have a vector and they have none, or the
    reverse.

    `fields` are those of all representations that an `exists` query can match.
    """
    no_text: dict[str, Any] = {"term": {MARK_FIELD: marks.of("")}}
    has_all = {"bool": {"filter": [{"exists": {"field": name}} for name in fields]}}
    lacking = {"bool": {"must_not": [has_all, no_text]}}
    needless = {"bool": {"filter": [any_field_query(fields), no_text]}}
    either = {"bool": {"should": [lacking, needless]}}
    return {"bool": {"filter": [marked_query(marks), either]}}


def any_field_query(fields: Iterable[str]) -> dict[str, Any]:
    """Return a query for documents that hold at least one of these fields."""
    exists: list[dict[str, Any]] = [{"exists": {"field": name}} for name in fields]
    return {"bool": {"should": exists, "minimum_should_match": 1}}


def scripted_update(added: dict[str, Any], drop: list[str]) -> dict[str, Any]:
    """Return the body of an update by script, because a partial document cannot remove a field."""
    return {"script": {"lang": "painless", "source": CHANGE, "params": {"set": added, "drop": drop}}}


def check_in_place_settings(settings: ReindexSettings) -> None:
    """Raise SettingsError for settings that need a new index, and for a vector field with dots."""
    if settings.alias:
        raise SettingsError("--alias has no meaning with --in-place: there is one index, and its name stays")
    if settings.replace_semantic:
        raise SettingsError("--replace-semantic makes a new index: leave --in-place out")
    if settings.semantic:
        raise SettingsError("--semantic makes a new index: leave --in-place out")
    for kind in representations_in(settings):
        if not kind.works_in_place:
            raise SettingsError(f"{kind.option()} needs a new index: leave --in-place out")
    if "." in (name := settings.vector_field):
        raise SettingsError(f"--vector-field {name}: in place it must be a name without dots")


def check_index(view: IndexView, info: IndexInfo) -> None:
    """Raise ClusterError or DataError for an index that cannot take vectors, or is damaged by updates."""
    way = f"without --in-place a new index is made: hybridr reindex {quote(info.name)}"
    if is_destination(info) and not info.record.in_place:
        raise ClusterError(
            f"'{info.name}' was made by hybridr and holds the vectors of '{info.record.source}'",
            hint="name an index of your own",
        )
    if generations := destinations(view, info):
        raise ClusterError(
            f"'{info.name}' has its vectors in '{generations[-1].name}' already",
            hint=f"go on there: hybridr reindex {quote(info.name)}   or take that away: "
            f"hybridr remove {quote(info.name)}",
        )
    require_no_obstacle(block_obstacles(info, IN_PLACE_BLOCKS), f"writing into '{info.name}'")
    require_whole_source(info)
    require_no_loss(view.cluster, info)
    # The remaining reasons do not prevent a new index beside it.
    if (modules := view.cluster.installed_parts("modules")) and PAINLESS not in modules:
        raise ClusterError(
            f"no document could be freed of its vector again: a node lacks the module {PAINLESS}",
            hint=NO_SCRIPTS if final_pipeline(info) else way,
        )
    if info.settings.get("index.knn") != "true":
        raise ClusterError(
            f"index '{info.name}' was made without index.knn, which cannot be switched on later, even closed",
            hint=f"{way} (--alias NAME moves yours)   or clone it with index.knn as docs/reindex.md says",
        )
    for setting, problem in UNFIT.items():
        if str(info.settings.get(setting)).lower() == "true":
            raise ClusterError(f"index '{info.name}' {problem} ({setting})", hint=way)


def check_same_job(info: IndexInfo, job: str, fields_change: str) -> None:
    """Raise ClusterError if the vectors in the index were made by another encoder, of other fields or with
    other settings than this job's. Raise it too if the index is a copy of one with vectors in place.
    """
    if is_copy(info):
        raise ClusterError(
            f"'{info.name}' is a copy of '{info.record.source}', with its record",
            hint=f"hybridr sync {quote(info.name)}   looks at every document and makes the record its own",
        )
    if info.record.job != job:
        encoder, field = info.record.encoder[:12], info.record.vector_field
        difference = fields_change or "made from other settings or by another encoder"
        raise ClusterError(
            f"'{info.name}' holds vectors of encoder {encoder} in '{field}', {difference}",
            hint=f"hybridr remove {quote(info.name)}   takes them away; their field stays mapped, so another "
            "form of vectors then needs --vector-field NAME",
        )


def check_fields_free(proposal: Proposal, added: dict[str, dict[str, Any]]) -> None:
    """Raise DataError if hybridr's fields are mapped differently, or hold what hybridr did not write."""
    info, settings = proposal.info, proposal.settings
    properties = info.properties

    def as_text(mapping: dict[str, Any]) -> str:
        # The server returns `byte` as `BYTE`.
        return json.dumps(mapping, sort_keys=True).lower()

    existing = {name: properties[name] for name in added if name in properties}
    conflicting = [name for name, mapping in existing.items() if as_text(mapping) != as_text(added[name])]
    if existing and not conflicting:
        # `remove` leaves the fields in the mapping, where they may be used again. If `_meta` was
        # overwritten, our record is lost, but the marks still prove which values are ours.
        marks = Marks(proposal.encoder.fingerprint, settings.max_tokens, proposal.fields)
        fields = (*fields_of(settings, visible=True), MARK_FIELD)
        foreign = {"bool": {"filter": [any_field_query(fields)], "must_not": [marked_query(marks)]}}
        answer = proposal.cluster.search(info.name, {"query": foreign, "size": 0, "terminate_after": 1})
        conflicting = list(added) if answer["hits"]["total"]["value"] else []
    if conflicting:
        kind = properties.get(conflicting[0], {}).get("type", "object")
        raise DataError(
            f"index '{info.name}' already has a field '{conflicting[0]}' ({kind}) that hybridr did not make",
            hint=name_conflict_hints(settings).get(conflicting[0]),
        )


def require_own_versions(index: str, documents: list[SourceDocument]) -> None:
    """Raise DataError for a document whose writer numbers its versions (`version_type=external`).

    An update raises the version by one, and the writer's next one may then be refused as not newer: a lost
    update. Only a version above the shard's number of operations proves such numbering.
    """
    versioned = next((document for document in documents if document.version > document.seq_no + 1), None)
    if versioned is not None:
        raise DataError(
            f"'{index}' has documents with versions of their own (version_type=external), such as "
            f"'{versioned.doc_id}' with {versioned.version}: writing in place raises them, and the next "
            "version of their writer could be refused",
            hint=f"without --in-place the index stays as it is: hybridr reindex {quote(index)}",
        )
