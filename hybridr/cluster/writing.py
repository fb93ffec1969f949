"""Writes documents by bulk requests of limited size, and checks the result of every document.

Documents that the engine refuses are written to a file on this machine, and named in the index's record.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from ..errors import ClusterError, DataError, Unreachable, quantity
from ..files.local import append_private, max_model_bytes, parsed_json, read_within, replacing, storing
from ..files.remembered import REJECTS, file_of_index
from .connection import Cluster, json_bytes, path_of
from .failures import FORBIDDEN, NO_INDEX, error_from_answer, shortened
from .record import IndexInfo

Item = dict[str, Any]
BULK_BYTES = 5_000_000  # of a request body
T = TypeVar("T")
MAX_REFUSED, MAX_CHARACTERS, MAX_ID = 1000, 16_000, 512
"""Limits on the refused documents named in a record, which is part of the cluster state: their number, the
characters of all ids, the characters of one id."""
STORAGE = re.compile("No space left|i_o_exception|already_closed|translog|no_such_file")
"""Matches messages of items that failed because of the disk, not the document."""
EMBEDDED_TOGETHER = re.compile("semantic field at path|remote service|empty docs")
"""Matches messages that all items of a request get if a document has no text for a semantic field."""


class Action(NamedTuple):
    """One action of a bulk request (index, update, delete) as encoded lines."""

    doc_id: str
    body: bytes


@dataclass
class Outcome:
    """Results of bulk actions: the numbers written and rejected, and the ids of version conflicts (409)."""

    written: int = 0
    conflicts: list[str] = field(default_factory=list)
    rejected: int = 0


def id_in_line(line: str) -> str | None:
    """Return the id in a line about a refused document; None for a damaged line."""
    try:
        record = parsed_json(line)
    except ValueError:
        return None
    doc_id = record.get("_id") if isinstance(record, dict) else None
    return doc_id if isinstance(doc_id, str) else None


class Rejects:
    """The file of documents that an index refused: one JSON object a line, readable by its owner only."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self._noted: set[str] = set()
        self._written: set[str] | None = None
        self._is_new_run = False

    def clear(self) -> None:
        """Start a new run. Lines of earlier runs stay in the file until `save`, in case it is killed."""
        self._noted, self._is_new_run = set(), True

    def save(self) -> None:
        """Write only the lines noted since `clear`; delete the file without any. Raises DownloadError."""
        if not self._noted:
            self.delete()
            return
        with storing(self.file), replacing(self.file, private=True) as temporary:
            temporary.write_text("".join(f"{line}\n" for line in sorted(self._noted)), encoding="utf-8")

    def delete(self) -> None:
        """Delete the file, if it exists. Raises DownloadError."""
        if self.file.is_file():  # a folder that is not writable raises only if it holds the file
            with storing(self.file):
                self.file.unlink(missing_ok=True)

    def lines(self) -> set[str]:
        """Return the file's lines except those that a killed writer cut off; none without a file."""
        if not self.file.is_file():
            return set()
        lines = read_within(self.file, max_model_bytes()).decode(errors="replace").splitlines()
        return {line for line in lines if id_in_line(line) is not None}

    def add(self, action: Action, reason: str) -> None:
        """Note a refused document with the server's reason; the same id, reason and body are noted once.

        Raises DataError if the file cannot be written.
        """
        body = action.body.partition(b"\n")[2].decode(errors="replace").strip()
        record = {"_id": action.doc_id, "reason": reason, "source": body}
        try:
            self.note(json.dumps(record, ensure_ascii=True))
        except OSError as error:
            raise DataError(
                f"{self.file}, the file of refused documents, cannot be written: {error.strerror}",
                hint="free space or make the file writable, then run it again; "
                f"'{action.doc_id}' was refused because of: {shortened(reason)}",
            ) from None

    def note(self, line: str) -> None:
        """Note the JSON line of a refused document; workers send such lines. Raises OSError."""
        self._noted.add(line)
        self._written = self.lines() if self._written is None else self._written
        if line not in self._written:
            self._written.add(line)
            append_private(self.file, line)

    def take_lines(self) -> tuple[str, ...]:
        """Return the lines that are only in memory, and clear them; this class has none."""
        return ()

    def ids(self) -> list[str]:
        """Return the ids of the refused documents; after `clear` only those noted later."""
        lines = self._noted if self._is_new_run else self._noted | self.lines()
        return sorted({doc_id for line in lines if (doc_id := id_in_line(line)) is not None})


class MemoryRejects(Rejects):
    """Refused documents kept in memory instead of a file, for a worker on another machine."""

    def __init__(self) -> None:
        super().__init__(Path())

    def note(self, line: str) -> None:
        """Keep a JSON line in memory until `take_lines`."""
        self._noted.add(line)

    def take_lines(self) -> tuple[str, ...]:
        """Return the lines noted since the last call, and clear them."""
        lines, self._noted = tuple(sorted(self._noted)), set()
        return lines


def rejects_of(info: IndexInfo) -> Rejects:
    """Return the rejects file of an index on this machine."""
    return Rejects(file_of_index(REJECTS, info.name, info.uuid))


def refused_ids(info: IndexInfo) -> list[str]:
    """Return the ids of the documents that an index refused.

    If the record of a complete index names all of them, only those are returned, since the file on this
    machine may be older. Otherwise the ids of record and file are joined.
    """
    record = info.record
    if record.state == "complete" and len(record.refused) >= record.rejected:
        return sorted(record.refused)
    return sorted({*info.record.refused, *rejects_of(info).ids()})


def accepted_ids(info: IndexInfo) -> frozenset[str]:
    """Return the refused documents that `--accept-rejects` allows to be missing.

    If the record has no room for all of them, all refused documents are returned.
    """
    accepted = info.record.accepted
    is_full = len(accepted) >= MAX_REFUSED or sum(map(len, accepted)) > MAX_CHARACTERS - MAX_ID
    return frozenset(refused_ids(info) if is_full else accepted)


def refusal_changes(info: IndexInfo, refused: Collection[str], accepted: Collection[str]) -> dict[str, Any]:
    """Return the values to change in an index's record, given its `refused` documents.

    The `accepted` ones among them may be missing from the index.
    """
    values = {"rejected": len(refused), "refused": cut_to_room(refused), "accepted": cut_to_room(accepted)}
    return {name: value for name, value in values.items() if value != getattr(info.record, name)}


def cut_to_room(refused: Collection[str]) -> tuple[str, ...]:
    """Return as many of the refused ids, in sorted order, as a record has room for."""
    doc_ids = sorted(refused)[:MAX_REFUSED]
    sizes = accumulate(map(len, doc_ids))
    return tuple(doc_id for doc_id, size in zip(doc_ids, sizes, strict=True) if size <= MAX_CHARACTERS)


def bulk_action(kind: str, doc_id: str, body: Any = None, **options: Any) -> Action:
    """Return the bulk action "index", "update" (`body` holds `doc` or `script`) or "delete" (without body).

    `options` belong to the action line; those that are None are left out.
    """
    set_options = {name: value for name, value in options.items() if value is not None}
    lines = [{kind: {"_id": doc_id, **set_options}}, *([] if kind == "delete" else [body])]
    return Action(doc_id, b"".join(json_bytes(line) + b"\n" for line in lines))


def group_by_bytes(actions: Iterable[Action], max_bytes: int) -> Iterator[list[Action]]:
    """Yield groups of actions of at most `max_bytes` each; a larger action forms its own group."""
    return group_by_size(actions, lambda action: len(action.body), max_bytes)


def group_by_size(items: Iterable[T], size_of: Callable[[T], float], limit: float) -> Iterator[list[T]]:
    """Yield groups of neighbouring items whose sizes sum to at most `limit`; a larger item stands alone."""
    group: list[T] = []
    size = 0.0
    for item in items:
        if group and size + size_of(item) > limit:
            yield group
            group, size = [], 0.0
        group.append(item)
        size += size_of(item)
    if group:
        yield group


def write(
    cluster: Cluster,
    index: str,
    actions: list[Action],
    *,
    rejects: Rejects,
    patience_s: float = 300.0,
    params: dict[str, str] | None = None,
) -> Outcome:
    """Send bulk actions until each is written, in conflict or rejected, and return the counts.

    While items are refused as busy, or the cluster is unreachable, the request is repeated with growing waits
    for `patience_s` seconds. Then Unreachable is raised. Raises at once: ClusterError if the index is blocked
    or the disk is full, NotFound without the index, AccessDenied without the right to write, DataError if the
    rejects file cannot be written.
    """
    outcome, unfinished = Outcome(), actions

    def send() -> Outcome:
        """Send the unfinished actions. Raises Unreachable if the cluster was too busy for some."""
        nonlocal unfinished
        unfinished = send_once(cluster, index, unfinished, outcome, rejects, patience_s, params or {})
        if unfinished:
            busy = quantity(len(unfinished), "document")
            raise Unreachable(
                f"'{index}' was too busy for {busy} for {patience_s:.0f} s",
                hint="run the same command again later; documents already written stay",
            )
        return outcome

    return cluster.patiently(send, patience_s)


def write_past_pipelines(
    cluster: Cluster, index: str, actions: Iterable[Action], rejects: Rejects, *, patience_s: float = 300.0
) -> Iterator[Outcome]:
    """Send bulk actions past ingest pipelines, at most `BULK_BYTES` a request; yield the counts."""
    for group in group_by_bytes(actions, BULK_BYTES):
        params = {"pipeline": "_none"}
        yield write(cluster, index, group, rejects=rejects, patience_s=patience_s, params=params)


def send_once(
    cluster: Cluster,
    index: str,
    actions: list[Action],
    outcome: Outcome,
    rejects: Rejects,
    patience_s: float,
    params: dict[str, str],
) -> list[Action]:
    """Send one bulk request, count its items in `outcome`, and return the actions to try again.

    A request that is too large (413), or whose items failed together, is split. Raises as `write`.
    """
    body = b"".join(action.body for action in actions)
    try:
        answer = cluster.request("POST", path_of(index, "_bulk"), body, params, patience_s=patience_s)
    except ClusterError as error:
        if error.status == 413 and len(actions) > 1:
            middle = len(actions) // 2
            retry = send_once(cluster, index, actions[:middle], outcome, rejects, patience_s, params)
            return retry + send_once(cluster, index, actions[middle:], outcome, rejects, patience_s, params)
        if error.status in (400, 413) and len(actions) == 1:
            return count_item(outcome, rejects, actions[0], error.status, {"reason": error.message})
        raise
    with cluster.reading_answer("_bulk"):
        busy, failed_together = [], list[Action]()
        for action, entry in zip(actions, answer["items"], strict=True):
            [item] = entry.values()  # its key is the name of the action
            status, reason = int(item["status"]), item.get("error")
            if status == 400 and len(actions) > 1 and EMBEDDED_TOGETHER.search(json.dumps(reason)):
                failed_together.append(action)
            else:
                busy += count_item(outcome, rejects, action, status, reason)
    middle = len(failed_together) // 2
    for part in filter(None, (failed_together[:middle], failed_together[middle:])):
        busy += send_once(cluster, index, part, outcome, rejects, patience_s, params)
    return busy


def count_item(
    outcome: Outcome, rejects: Rejects, action: Action, status: int, error: Item | None
) -> list[Action]:
    """Count the result of one bulk item in `outcome`; return a list with its action if it must be repeated.

    Raises ClusterError for a block and a full disk, AccessDenied for a missing right, NotFound for a missing
    index. Deleting a document that does not exist (404) counts as written.
    """
    error = error or {}
    if error.get("type") == "cluster_block_exception":
        raise ClusterError(
            f"the index takes no writes: {error.get('reason')}",
            hint="free disk space or lift the block, then run the same command again",
            status=status,
            kind="cluster_block_exception",
        )
    if status in (429, 503):
        return [action]
    if error.get("type") == FORBIDDEN:
        raise error_from_answer(403, error)
    if error.get("type") == NO_INDEX:
        raise error_from_answer(404, error)
    if status >= 500 and STORAGE.search(json.dumps(error)):
        raise ClusterError(
            f"the cluster cannot store documents: {shortened(error.get('reason'))}",
            hint="free disk space on its nodes, then run the same command again",
            status=status,
        )
    if status == 409:
        outcome.conflicts.append(action.doc_id)
    elif status < 300 or status == 404:
        outcome.written += 1
    else:
        outcome.rejected += 1
        cause = error.get("caused_by", {}).get("reason")
        rejects.add(action, shortened(error.get("reason")) + (f": {shortened(cause)}" if cause else ""))
    return []
