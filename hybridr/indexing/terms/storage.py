"""Stores term tables: in parts in a hidden index for each source, with a copy on this machine.

The record of an index names its table by fingerprint, the sha256 of all parts: other writers of the hidden
index can delete a table but not change it. Rights to one source's hidden index are no rights to another's.
"""

from __future__ import annotations

import binascii
import hashlib
import json
import re
import time
from base64 import b64decode, b64encode
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...cluster.connection import Cluster, hidden_index_body, make_index, path_of
from ...cluster.destinations import has_readable_record, write_record
from ...cluster.record import IndexInfo
from ...cluster.record_parts import FittedTable
from ...cluster.writing import bulk_action
from ...encoders.contract import Vectors
from ...errors import AccessDenied, ClusterError, DataError, DownloadError, ModelError, NotFound
from ...files.local import (
    child_path,
    data_folder,
    delete_child,
    read_manifest,
    read_within,
    sha256_of,
    write_manifest,
)
from ...files.staging import staged_folder

FILE = "term_table.safetensors"
MAX_BYTES = 10_000_000
ROUNDING = 0.01
MIN_TERMS = 300  # with fewer, even the 30th nearest term is too near to compare with
FREQUENT = 200  # terms
AGAIN = "fit it again: hybridr tune NAME"
HOME = ".hybridr-terms-"
BODY = hidden_index_body({"index_uuid": {"type": "keyword"}})
PART_BYTES = 1_000_000
MISSING_S = 1.0
"""Seconds before a missing table is requested again: the record names it before it is written."""
MAX_OPEN_TABLES = 8
FINGERPRINT = re.compile(r"[0-9a-f]{64}")
PART = re.compile(r"[0-9a-f]{64}-[0-9]+")
"""Form of a part's id. Other writers of the hidden index can choose any id: such documents are ignored."""
MAX_PARTS = 10_000
_open: dict[str, TermTable] = {}
_missing: dict[tuple[str, str], float] = {}


@dataclass(frozen=True, eq=False)
class TermTable:
    """The terms of an index and their mean encoder states `(terms, width)`, float16 of length 1.

    `own_cosine` is the mean cosine of an occurrence's state with the mean of the term's other occurrences.
    `encoder` is the encoder's fingerprint; `origin` says what the table was made from.
    """

    terms: tuple[str, ...]
    vectors: NDArray[np.float16]
    own_cosine: float
    encoder: str
    origin: Mapping[str, Any]

    @property
    def width(self) -> int:
        """Return the dimension of a state."""
        return int(self.vectors.shape[1])

    @property
    def shortcoming(self) -> str:
        """Return why searches cannot use the table; empty if they can."""
        is_small = len(self.terms) < MIN_TERMS
        return f"the index has too few words, {len(self.terms)}" if is_small else ""

    @cached_property
    def places(self) -> Mapping[str, int]:
        """Return the row of each term."""
        return {term: row for row, term in enumerate(self.terms)}

    @cached_property
    def fingerprint(self) -> str:
        """Return the sha256 of the packed table, 64 hex digits."""
        return hashlib.sha256(self.packed()).hexdigest()

    @cached_property
    def rows(self) -> Vectors:
        """Return the vectors as float32."""
        return self.vectors.astype(np.float32)

    def near(self, term: str, count: int) -> list[tuple[str, float]]:
        """Return the `count` nearest terms with cosines, the term itself first; empty for an unknown term."""
        if term not in self.places:
            return []
        cosines = self.rows @ self.rows[self.places[term]]  # (terms,)
        place = min(count, len(cosines))
        near = np.flatnonzero(cosines >= np.partition(cosines, -place)[-place])
        best = near[np.argsort(-cosines[near], kind="stable")][:count]
        return [(self.terms[place], float(cosines[place])) for place in best]

    def usual_cosine(self, count: int) -> float:
        """Return the mean cosine of a frequent term with its `count`-th nearest term."""
        cosines, place = self.rows[:FREQUENT] @ self.rows.T, min(count, len(self.terms))
        return float(np.partition(cosines, -place, axis=1)[:, -place].mean())

    def packed(self) -> bytes:
        """Return the table as the bytes of one safetensors file; equal tables give equal bytes."""
        from safetensors.numpy import save

        metadata = {"terms": list(self.terms), "own_cosine": self.own_cosine}
        metadata |= {"encoder": self.encoder, "origin": self.origin}
        # In a tensor: safetensors writes its own metadata in no fixed order.
        text = np.frombuffer(json.dumps(metadata, sort_keys=True).encode(), dtype=np.uint8)
        vectors = np.ascontiguousarray(self.vectors, dtype=np.float16)
        return save({"about": text, "vectors": vectors})

    def save(self, folder: Path) -> Path:
        """Write the table as a folder with a manifest, atomically replacing a former one; return it."""
        with staged_folder(folder) as new:
            (new / FILE).touch(mode=0o600)  # private: it holds words of documents
            (new / FILE).write_bytes(self.packed())
            origin = {name: self.origin.get(name, {}) for name in ("settings", "inputs")}
            write_manifest(new, stage="term table", **origin, outputs=[FILE])
        return folder


def load_term_table(folder: Path | str) -> TermTable:
    """Return the table in a folder. Raises ModelError if it is missing, damaged or no table."""
    folder = Path(folder)
    file = folder / FILE
    if not file.is_file() or file.stat().st_size > MAX_BYTES:
        raise ModelError(f"there is no term table {folder}", hint=AGAIN)
    try:
        outputs = (read_manifest(folder) or {}).get("outputs", {})
    except DataError as error:
        raise ModelError(f"the term table {folder} is damaged: {error.message}", hint=AGAIN) from error
    if sha256_of(file) != outputs.get(FILE):
        raise ModelError(
            f"the term table {folder} is damaged: {FILE} is not the file that was written", hint=AGAIN
        )
    return unpacked(read_within(file, MAX_BYTES))


def unpacked(data: bytes) -> TermTable:
    """Return the table in the bytes of `packed`, from any source. Raises ModelError if they are no table."""
    from safetensors import SafetensorError
    from safetensors.numpy import load

    if len(data) > MAX_BYTES:
        raise ModelError(f"{len(data):,} bytes are no term table: {MAX_BYTES:,} are the most", hint=AGAIN)
    try:
        tensors = load(data)
        metadata = json.loads(tensors["about"].tobytes())
        metadata |= {"terms": tuple(metadata["terms"]), "vectors": tensors["vectors"]}
        table = TermTable(**metadata)
    except (SafetensorError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise ModelError(f"the term table is damaged: {error}", hint=AGAIN) from error
    if wrong := flaw(table):
        raise ModelError(f"the term table is damaged: {wrong}", hint=AGAIN)
    return table


def flaw(table: TermTable) -> str:
    """Return what is wrong with a table; empty if it is sound."""
    kinds = {type(term) for term in table.terms}
    if kinds != {str} or len(set(table.terms)) != len(table.terms):
        return "its terms are no different strings"
    shape = table.vectors.shape
    if table.vectors.dtype != np.float16 or len(shape) != 2 or shape[0] != len(table.terms):
        return f"its vectors are {table.vectors.dtype} {table.vectors.shape}"
    if not np.isfinite(table.vectors).all():
        return "it holds numbers that are not finite"
    if np.abs(np.linalg.norm(table.rows, axis=1) - 1).max() > ROUNDING:
        return "its vectors are not of length 1"
    if not isinstance(table.own_cosine, float) or not -1 <= table.own_cosine <= 1:
        return f"its own cosine is {table.own_cosine!r}"
    if not isinstance(table.encoder, str) or not isinstance(table.origin, dict):
        return "it does not say where it is from"
    return ""


def open_term_table(cluster: Cluster, info: IndexInfo) -> TermTable | None:
    """Return the term table that the record of an index names, from memory, this machine or the cluster; None
    if there is none.

    Raises AccessDenied, ClusterError.
    """
    if (named := info.record.term_table) is None:
        return None
    key = (cluster.url, named.fingerprint)
    if named.fingerprint not in _open and time.monotonic() >= _missing.get(key, 0.0):
        opened = local_table(named.fingerprint) or fetched_table(cluster, info, named)
        if opened is None:
            _missing[key] = time.monotonic() + MISSING_S
        else:
            remember_open(opened)
    table = _open.get(named.fingerprint)
    return table if table is not None and table.encoder == info.record.encoder else None


def remember_open(table: TermTable) -> None:
    """Keep a table in memory; beyond `MAX_OPEN_TABLES` tables the one opened first is dropped."""
    _open[table.fingerprint] = table
    while len(_open) > MAX_OPEN_TABLES:
        del _open[next(iter(_open))]


def folder_of_table(fingerprint: str) -> Path:
    """Return the folder of a table's copy on this machine. Raises DataError for an invalid fingerprint."""
    if not FINGERPRINT.fullmatch(fingerprint):
        raise DataError(f"{fingerprint[:100]!a} is no fingerprint of a term table")
    return child_path(data_folder() / "term-tables", fingerprint[:16])


def local_table(fingerprint: str) -> TermTable | None:
    """Return the copy of a table on this machine; None if it is missing or damaged."""
    try:
        table = load_term_table(folder_of_table(fingerprint))
    except ModelError:
        return None
    return table if table.fingerprint == fingerprint else None


def hidden_index(info: IndexInfo) -> str:
    """Return the name of the hidden index for the term table of an index."""
    return HOME + info.record.source


def fetched_table(cluster: Cluster, info: IndexInfo, named: FittedTable) -> TermTable | None:
    """Read a table from the cluster and keep a copy on this machine; None if it is missing or changed.

    Raises AccessDenied if this user may not read it, ClusterError: without the table, searches would rank
    differently.
    """
    home = hidden_index(info)
    try:
        data = b"".join(read_part(cluster, home, named.fingerprint, number) for number in range(named.parts))
        if hashlib.sha256(data).hexdigest() != named.fingerprint:
            return None
        table = unpacked(data)
    except AccessDenied as error:
        raise AccessDenied(
            f"the table of terms of '{info.name}' may not be read, and without it searches rank otherwise: "
            f"{error.message}",
            hint=f"give this user's role indices:data/read/mget* on {home}, as opensearch/roles/search.json "
            "does; or --signals phrases",
            status=error.status,
        ) from None
    except (NotFound, ModelError):
        return None
    with suppress(DownloadError):  # the copy only saves the next process a request
        table.save(folder_of_table(named.fingerprint))
    return table


def read_part(cluster: Cluster, home: str, fingerprint: str, number: int) -> bytes:
    """Return the bytes of a table's part. Raises NotFound, ClusterError, ModelError if not of hybridr."""
    path, request = path_of(home, "_mget"), {"ids": [f"{fingerprint}-{number}"]}
    answer = cluster.request("POST", path, request, every_shard=True)
    with cluster.reading_answer(path):
        data = answer["docs"][0].get("_source", {}).get("data")
    try:
        if isinstance(data, str) and len(data) <= 2 * PART_BYTES:
            return b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        pass
    raise ModelError(f"part {number} of the term table {fingerprint[:12]} is not what was written")


def keep_term_table(cluster: Cluster, info: IndexInfo, table: TermTable) -> tuple[FittedTable, str]:
    """Store a table on this machine and in the cluster, name it in the index's record, delete the former
    tables.

    Returns the entry of the record, and a note where the table is missing ("" if the cluster took it). The
    record is written first, so that no process deletes the parts as unused while they are being written.
    """
    with suppress(DownloadError):
        table.save(folder_of_table(table.fingerprint))
    remember_open(table)
    named, data = table_entry(table), table.packed()
    if info.record.term_table != named:
        write_record(cluster, info.name, term_table=named)
    home = hidden_index(info)
    try:
        if not cluster.exists(home):
            make_index(cluster, home, BODY)
        for number in range(named.parts):
            part = data[number * PART_BYTES : (number + 1) * PART_BYTES]
            source = {"index": info.name, "index_uuid": info.uuid, "data": b64encode(part).decode()}
            cluster.request("PUT", path_of(home, "_doc", f"{named.fingerprint}-{number}"), source)
    except AccessDenied as error:
        return named, f"kept on this machine only: {error.message}"
    drop_term_tables(cluster, [info], used=named.fingerprint)
    return named, ""


def table_entry(table: TermTable) -> FittedTable:
    """Return the entry by which a record names a table."""
    return FittedTable(
        fingerprint=table.fingerprint,
        terms=len(table.terms),
        documents=table.origin["documents"],
        parts=-(-len(table.packed()) // PART_BYTES),
    )


def is_in_cluster(cluster: Cluster, info: IndexInfo) -> bool:
    """Return whether the cluster has every part of the index's table, as far as this user may see."""
    if (named := info.record.term_table) is None:
        return False
    ids = [{"_id": f"{named.fingerprint}-{number}", "_source": False} for number in range(named.parts)]
    try:
        documents = cluster.request("POST", path_of(hidden_index(info), "_mget"), {"docs": ids})["docs"]
    except (AccessDenied, NotFound):
        return False
    return all(document.get("found") for document in documents)


def drop_term_tables(cluster: Cluster, infos: Sequence[IndexInfo], used: str = "") -> list[str]:
    """Delete the tables made for these indices that no index names any more; return their fingerprints.

    The table `used` stays. A copy of an index may name the same table. A hidden index is deleted with its
    last part. Nothing is deleted if this user cannot see all indices.
    """
    recorded = {info.record.term_table.fingerprint for info in infos if info.record.term_table}
    parts = part_ids_by_home(cluster, infos)
    fingerprints = recorded | {part.partition("-")[0] for parts in parts.values() for part in parts}
    fingerprints.discard(used)
    if not fingerprints:
        return []
    named = set()
    try:
        for info in cluster.indices("*"):
            if has_readable_record(info) and (table := info.record.term_table):
                named.add((hidden_index(info), table.fingerprint))
    except ClusterError:  # no right, or a block of any index
        return []
    unnamed = fingerprints - {table for _, table in named}
    for fingerprint in unnamed:
        _open.pop(fingerprint, None)
        folder = folder_of_table(fingerprint)
        delete_child(folder.parent, folder.name)
    for home, part_ids in parts.items():
        unused = [part for part in part_ids if (home, part.partition("-")[0]) not in named]
        if not unused:
            continue
        body = b"".join(bulk_action("delete", part).body for part in unused)
        with suppress(AccessDenied, NotFound):
            cluster.request("POST", path_of(home, "_bulk"), body, {"refresh": "true"})
            if cluster.count(home) == 0:
                cluster.request("DELETE", path_of(home))
    return sorted(unnamed)


def part_ids_by_home(cluster: Cluster, infos: Sequence[IndexInfo]) -> dict[str, list[str]]:
    """Return the ids of the stored parts written for these indices, by hidden index."""
    homes = sorted({HOME + info.record.source for info in infos})
    return {home: stored_parts(cluster, home, {info.uuid for info in infos}) for home in homes}


def stored_parts(cluster: Cluster, home: str, uuids: Collection[str]) -> list[str]:
    """Return the ids of the stored parts written for indices with these uuids; empty without the right to
    look.

    A deleted index has the uuid "", which selects all parts of the hidden index.
    """
    by_uuid: dict[str, Any] = {"terms": {"index_uuid": sorted(uuids)}}
    query = {"match_all": {}} if "" in uuids else by_uuid
    request = {"size": MAX_PARTS, "_source": False, "query": query}
    try:
        if not cluster.exists(home):
            return []
        with suppress(AccessDenied):
            cluster.refresh(home)
        part_ids = [hit["_id"] for hit in cluster.search(home, request)["hits"]["hits"]]
    except (AccessDenied, NotFound):
        return []
    return [part for part in part_ids if PART.fullmatch(part)]
