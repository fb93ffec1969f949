"""Reads documents from file formats of other programs, or refuses a format with a command that converts it.

It reads `_bulk` bodies, and JSON lines or a JSON array of plain documents, of hits (`_source`, as written by
elasticsearch-dump) and of mongoexport (`{"$oid": …}` and its other types). Without `_id`, `id` is the id.
"""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

from ..errors import DataError
from .local import parsed_json

MAX_ARRAY_BYTES = 512_000_000
"""Limit on a file that is one JSON array, in characters, since all of it is read into memory."""
ACTIONS = frozenset(("index", "create", "update", "delete"))
ACTION_KEYS = frozenset(
    "_index _type _id routing _routing version version_type if_seq_no if_primary_term pipeline require_alias "
    "op_type dynamic_templates retry_on_conflict".split()
)
HIT_KEYS = frozenset(("sort", "fields", "highlight", "matched_queries", "inner_hits", "ignored_field_values"))
OTHER_IDS = ("docid", "doc_id", "docno", "pid", "objectID", "uuid", "_key", "key", "corpus-id", "document_id")
OTHER_QUERY_IDS = ("qid", "query_id", "query-id", "topic", "number")

CSV_TO_JSON = (
    "python3 -c 'import csv, json, sys; [print(json.dumps(row)) for row in csv.DictReader(sys.stdin{tab})]' "
    "< {file} > documents.jsonl"
)
RESPONSES = {
    ("hits", "hits"): ("an answer of _search", ".hits.hits[]"),
    ("response", "docs"): ("an answer of Solr", ".response.docs[]"),
    ("rows",): ("an answer of CouchDB", ".rows[].doc"),
    ("docs",): ("an answer of _mget", ".docs[]"),
    ("add", "doc"): ("an update of Solr", ".add.doc"),
}
NUMBER_TYPES: Mapping[str, Callable[[Any], float]] = {
    "$numberInt": int,
    "$numberLong": int,
    "$numberDouble": float,
}
TEXT_TYPES = ("$oid", "$uuid", "$symbol", "$numberDecimal")
"""Types of mongoexport's extended JSON that are read as text, which keeps all digits of a decimal."""


def valid_id(value: Any, where: str, name: str = "'_id'") -> str:
    """Return an id, a whole number or a string with a visible character, as text.

    Raises DataError, with the place `where`, for any other value.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str):
        excerpt = json.dumps(value, ensure_ascii=True)[:60]
        raise DataError(
            f"{where}: {name} is {excerpt}, {type_name(value)}; a string or a whole number is needed",
            hint="write ids as strings",
        )
    if not value.strip():
        raise DataError(f"{where}: {name} is empty", hint="give each an id of its own")
    return value


def type_name(value: Any) -> str:
    """Return the type of a JSON value in words."""
    if value is None:
        return "null"
    kinds = {bool: "a truth value", float: "a number with a fraction", list: "a list", dict: "an object"}
    return kinds.get(type(value), type(value).__name__)


def documents_in(file: Path, lines: Iterable[tuple[int, str]]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (line number, document whose `_id` is a string) from the lines of a file in any supported format.

    Raises DataError for a document without id, and for another format, with the command that converts it.
    """
    iterator = iter(lines)
    first = next(iterator, None)
    if first is None:
        return
    start = first[1].lstrip()
    if not start.startswith(("{", "[")):
        raise unread_form_error(file, first[1])
    lines = chain([first], iterator)
    values = array_items(file, lines) if start.startswith("[") else line_items(file, lines)
    for number, value in join_bulk_lines(file, values):
        where = f"{file}:{number}"
        record = unwrap_document(value, where)
        if "_id" not in record:
            if "id" not in record:
                raise DataError(
                    f"{where}: the document has no '_id'", hint=hint_for_id(record, OTHER_IDS, file)
                )
            record = {"_id": record["id"], **record}
        yield number, {**record, "_id": valid_id(record["_id"], where)}


def line_items(file: Path, lines: Iterable[tuple[int, str]]) -> Iterator[tuple[int, Any]]:
    """Yield (line number, value) of JSON lines. Raises DataError."""
    for number, line in lines:
        try:
            yield number, parsed_json(line)
        except ValueError as error:
            if line.strip() in ("{", "["):
                problem, hint = (
                    "a JSON value over several lines; one per line is needed",
                    one_line_each(".", file),
                )
            else:
                problem, hint = f"not JSON: {error}", None
            raise DataError(f"{file}:{number}: {problem}", hint=hint) from None


def array_items(file: Path, lines: Iterable[tuple[int, str]]) -> Iterator[tuple[int, Any]]:
    """Yield (line number, element) of one JSON array that spans the lines. Raises DataError."""
    text, starts, size = [], [], 0
    for number, line in lines:
        starts.append((size, number))
        text.append(line)
        size += len(line) + 1
        if size > MAX_ARRAY_BYTES:
            raise DataError(
                f"{file} is one JSON array of more than {MAX_ARRAY_BYTES // 1_000_000} million characters",
                hint=one_line_each(".[]", file),
            )
    array, decoder = "\n".join(text), json.JSONDecoder()
    position, line_index = array.index("[") + 1, 0
    while True:
        while position < len(array) and array[position] in " \t\n\r,":
            position += 1
        while line_index + 1 < len(starts) and starts[line_index + 1][0] <= position:
            line_index += 1
        number = starts[line_index][1]
        if array[position : position + 1] == "]":
            if array[position + 1 :].strip():
                raise DataError(f"{file}:{number}: something follows the end of the array")
            return
        try:
            value, position = decoder.raw_decode(array, position)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{file}:{number}: not JSON: {error}") from None
        yield number, value


def join_bulk_lines(file: Path, values: Iterable[tuple[int, Any]]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (line number, object); join an action of a `_bulk` body and its document. Raises DataError."""
    action: dict[str, Any] | None = None
    for number, value in values:
        where = f"{file}:{number}"
        if not isinstance(value, dict):
            raise DataError(f"{where}: needed a JSON object, found {type(value).__name__}")
        if action is not None:
            yield number, {**action, "_source": value}
            action = None
            continue
        name = next(iter(value), "")
        target = value.get(name)
        if len(value) == 1 and name in ACTIONS and isinstance(target, dict) and target.keys() <= ACTION_KEYS:
            if name in ("update", "delete"):
                raise DataError(
                    f"{where}: a _bulk body with the action '{name}'; only index and create make documents",
                    hint="send it to a cluster: curl -XPOST URL/_bulk -H 'Content-Type: application/json' "
                    f"--data-binary @{shlex.quote(str(file))}",
                )
            if "_id" not in target:
                raise DataError(f"{where}: an action of a _bulk body without '_id'", hint="give each an id")
            action = {"_id": target["_id"]}
        else:
            yield number, value
    if action is not None:
        raise DataError(f"{file} ends with an action of a _bulk body that no document follows")


def unwrap_document(value: dict[str, Any], where: str) -> dict[str, Any]:
    """Return the document in a search hit or in extended JSON. Raises DataError for a whole response."""
    for path, (name, jq) in RESPONSES.items() if value.keys().isdisjoint(("_id", "id")) else ():
        inner: Any = value
        for key in path:
            inner = inner.get(key) if isinstance(inner, dict) else None
        if isinstance(inner, list if path[-1] != "doc" else dict):
            file = where.rpartition(":")[0]
            raise DataError(f"{where}: {name}, not a document", hint=one_line_each(jq, file))
    source = value.get("_source")
    if isinstance(source, dict) and all(key.startswith("_") or key in HIT_KEYS for key in value):
        identity = {"_id": value["_id"]} if "_id" in value else {}
        value = {**source, **identity}
    return {key: plain_value(inner) for key, inner in value.items()}


def plain_value(value: Any) -> Any:
    """Return a value of mongoexport's extended JSON as plain JSON; other values unchanged."""
    if isinstance(value, list):
        return [plain_value(inner) for inner in value]
    if not isinstance(value, dict):
        return value
    key = next(iter(value), "")
    inner = value[key] if len(value) == 1 else None
    if key in TEXT_TYPES and isinstance(inner, str):
        return inner
    if key == "$date" and isinstance(inner, str | int | dict):
        return plain_value(inner)
    if key in NUMBER_TYPES and isinstance(inner, str | int | float):
        try:
            number = NUMBER_TYPES[key](inner)
        except ValueError:
            return value
        return number if math.isfinite(number) else value
    return {inner: plain_value(part) for inner, part in value.items()}


def hint_for_id(record: Mapping[str, Any], names: tuple[str, ...], file: Path) -> str:
    """Return the command that makes a field the id: the first of `names` in the record, else NAME."""
    name = next((name for name in names if name in record), "NAME")
    fields, quoted = ", ".join(map(str, list(record)[:10])), shlex.quote(str(file))
    return f"fields there: {fields}; jq -c '{{_id: .[\"{name}\"]}} + .' {quoted} > with_ids.jsonl"


def one_line_each(jq: str, file: Path | str) -> str:
    """Return the command that writes each value of a jq filter on a file to a separate line."""
    return f"jq -c '{jq}' {shlex.quote(str(file))} > documents.jsonl"


def unread_form_error(file: Path, line: str) -> DataError:
    """Return the error for a file that is not JSON, with its format (by line 1) and a command that helps."""
    start, columns, quoted = line.lstrip(), line.split("\t"), shlex.quote(str(file))
    if start.startswith("<"):
        return DataError(
            f"{file}:1: XML; JSON lines are needed",
            hint="of Solr: curl 'URL/select?q=*:*&rows=99999' | jq -c '.response.docs[]' > docs.jsonl",
        )
    if len(columns) == 2 and columns[0].strip().lower() not in ("id", "_id"):
        return DataError(
            f"{file}:1: 'id<TAB>text' as in MS MARCO; JSON lines are needed",
            hint=f"jq -Rc 'split(\"\\t\") | {{_id: .[0], text: .[1]}}' {quoted} > documents.jsonl",
        )
    if len(columns) > 1 or line.count(",") or line.count(";"):
        name, tab = ("TSV", ', delimiter="\\t"') if len(columns) > 1 else ("CSV", "")
        return DataError(
            f"{file}:1: {name}; JSON lines are needed", hint=CSV_TO_JSON.format(tab=tab, file=quoted)
        )
    return DataError(
        f"{file}:1: not JSON: it begins with {line[:40]!r}",
        hint='one JSON object a line: {"_id": "1", "title": "…", "text": "…"}',
    )
