"""Loads a BEIR folder or a JSONL file into a new index (`hybridr load`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from shlex import quote
from typing import Any

from ..errors import ClusterError, DataError, SettingsError, quantity
from ..files.formats import read_corpus
from ..files.local import fingerprint, load_asset, sha256_of
from ..languages import ANALYZERS, analyzer_for, guess_language
from ..records import Progress, silent
from .connection import Cluster, path_of
from .destinations import write_record
from .field_values import text_of
from .record import IndexInfo, Record, meta_of
from .record_parts import Load
from .settings import LoadSettings
from .writing import BULK_BYTES, bulk_action, group_by_bytes, rejects_of, write

BEIR_FIELDS = ("title", "text")
CONTENTS = "contents"
LOOKED_AT = 200  # first records, from which fields and language are chosen


@dataclass(frozen=True)
class Loading:
    """The result of `load`; `loaded` is False if the index already held these documents.

    `replaced` counts the documents of the index that was deleted first; None if no index was deleted.
    """

    index: str
    documents: int
    rejected: int
    rejects_file: Path | None
    language: str
    analyzer: str
    loaded: bool
    replaced: int | None = None


def load(
    cluster: Cluster,
    path: Path | str,
    settings: LoadSettings,
    *,
    before_deletion: Callable[[IndexInfo], None] = lambda info: None,
    dry_run: bool = False,
    progress: Progress = silent,
) -> Loading:
    """Create an index and load the documents of a BEIR folder or JSONL file into it.

    Each document keeps its fields and gets `contents`, its text fields joined. The analyser follows the
    language unless the settings name one. With `dry_run` nothing is written.
    A second call with the same file and settings changes nothing. `before_deletion` gets the index that
    `replace` is about to delete, and may raise.
    Raises DataError for unreadable input, an index of that name with other contents, or an alias as the
    name to replace. Raises SettingsError for an analyser that the cluster lacks.
    """
    path = Path(path)
    file = path / "corpus.jsonl" if path.is_dir() else path
    sample = list(islice(read_corpus(path), LOOKED_AT))
    if not sample:
        raise DataError(f"{file} holds no documents")
    fields = text_fields(sample, settings.fields, file)
    language = settings.language or guess_language([text_of(record, fields) for record in sample]).code
    job = fingerprint([sha256_of(file), settings.record(), fields, language])
    total = sum(1 for _ in read_corpus(path))
    analyzer = settings.analyzer or analyzer_for(language)
    values = {"text_fields": fields, "language": language, "load": Load(job=job, state="filling")}
    record = Record(role="source", lexical_fields=(CONTENTS,), **values)
    if is_loaded(cluster, settings, job):
        return Loading(settings.index, cluster.count(settings.index), 0, None, language, analyzer, False)
    replaced = None
    if (old_index := index_to_replace(cluster, settings)) is not None:
        before_deletion(old_index)
        replaced = cluster.count(old_index.name)
    if dry_run:
        return Loading(settings.index, total, 0, None, language, analyzer, True, replaced)
    create_index(cluster, settings, index_body(settings, analyzer, record), old_index)
    if old_index is not None:
        rejects_of(old_index).delete()
    rejects = rejects_of(cluster.index_info(settings.index))
    rejects.clear()
    records = ({**record, CONTENTS: text_of(record, fields)} for record in read_corpus(path))
    actions = (bulk_action("index", record.pop("_id"), record) for record in records)
    stored = processed = 0
    progress("load", 0, total)
    for group in group_by_bytes(actions, BULK_BYTES):
        stored += write(cluster, settings.index, group, rejects=rejects).written
        processed += len(group)
        progress("load", processed, total)
    cluster.refresh(settings.index)
    rejects.save()
    reject_count = total - stored
    write_record(cluster, settings.index, load=Load(job=job, state="complete", rejected=reject_count))
    rejects_path = rejects.file if reject_count else None
    return Loading(settings.index, stored, reject_count, rejects_path, language, analyzer, True, replaced)


def index_body(settings: LoadSettings, analyzer: str, record: Record) -> dict[str, Any]:
    """Return the body that creates the index, with its record."""
    body: dict[str, Any] = load_asset("mappings", "beir.json")
    body["settings"]["index"]["similarity"]["default"].update(k1=settings.k1, b=settings.b)
    body["mappings"]["properties"] = {
        name: {"type": "text", "analyzer": analyzer}
        for name in (*(name for name in record.text_fields if "." not in name), CONTENTS)
    }
    body["mappings"] |= {"_meta": meta_of(record)}
    return body


def text_fields(sample: list[dict[str, Any]], chosen_fields: tuple[str, ...], file: Path) -> tuple[str, ...]:
    """Return the names of the fields joined to `contents`. Raises DataError if the sample lacks one."""
    fields = chosen_fields or tuple(
        name for name in BEIR_FIELDS if any(text_of(record, [name]) for record in sample)
    )
    names = sorted({name for record in sample for name in record} - {"_id"})
    if not fields:
        texts = [name for name in names if any(isinstance(record.get(name), str) for record in sample)]
        names_option = f"--fields {quote(','.join(texts[:3]))}"
        hint = names_option if texts else "--fields NAME.NAME for one inside an object"
        raise DataError(f"{file}: no field 'title' or 'text', found {', '.join(names)}", hint=hint)
    if missing := [name for name in fields if name.split(".")[0] not in names]:
        raise DataError(
            f"{file}: no field '{missing[0]}' in the first {len(sample)} records",
            hint=f"fields there: {', '.join(names)}",
        )
    return fields


def is_loaded(cluster: Cluster, settings: LoadSettings, job: str) -> bool:
    """Return whether this load was finished, whatever its owner changed since; False with `replace`.

    Raises DataError for an index of another load.
    """
    index = settings.index
    if settings.replace or not cluster.exists(index):
        return False
    loading = cluster.index_info(index).record.load
    if loading is None or loading.job != job:
        raise DataError(
            f"index '{index}' exists and holds {quantity(cluster.count(index), 'document')} of another "
            "file or settings",
            hint="--replace deletes it first, or choose another --index",
        )
    return loading.state == "complete"


def index_to_replace(cluster: Cluster, settings: LoadSettings) -> IndexInfo | None:
    """Return the index that `replace` deletes; None if there is none. Raises DataError for an alias, since
    applications may use the index behind it.
    """
    if not settings.replace or not cluster.exists(settings.index):
        return None
    info = cluster.index_info(settings.index)
    if info.name != settings.index:
        raise DataError(
            f"'{settings.index}' is an alias of the index '{info.name}', which holds "
            f"{quantity(cluster.count(info.name), 'document')}",
            hint=f"--index {quote(info.name)} deletes that index and loads it anew, "
            "or choose another --index",
        )
    return info


def create_index(
    cluster: Cluster, settings: LoadSettings, body: dict[str, Any], old_index: IndexInfo | None
) -> None:
    """Delete `old_index`, if given, and create the index, unless an interrupted load has created it.

    Raises SettingsError for an analyser that the cluster lacks.
    """
    index = settings.index
    if old_index is not None:
        cluster.request("DELETE", path_of(old_index.name))
    elif cluster.exists(index):
        return
    try:
        cluster.request("PUT", path_of(index), body)
    except ClusterError as error:
        if settings.analyzer and f"analyzer [{settings.analyzer}]" in error.message:
            analyzers = ", ".join(sorted({"standard", *ANALYZERS.values()}))
            raise SettingsError(
                f"the cluster has no analyser '{settings.analyzer}'", hint=f"built in are {analyzers}"
            ) from None
        raise
    cluster.wait_until_usable(index)
