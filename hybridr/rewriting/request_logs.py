"""Request logs: what an application asked of OpenSearch, read from the forms in which that is kept.

These are search bodies (JSON lines or one list), the slow log of searches (plain or JSON), the audit log of
the security plugin, and HAR files of browsers and proxies. Which one a file is, it shows itself.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

from ..errors import DataError
from ..files.foreign import numbered_lines, parsed_json, text_within

MOST_REQUESTS = 20_000
BODIES, SLOW, AUDIT, BELOW, HAR = "search bodies", "slow log", "audit log", "audit log of transport", "HAR"
FORMS = "search bodies as JSON lines or one list, a slow log, an audit log with audit_request_body, or HAR"
DATED = re.compile(r"\[\d{4}-\d\d-\d\d")
SLOW_SOURCE = re.compile(r" source\[(?=\{)")
SLOW_INDEX = re.compile(r"\] \[([^]\[]+)\]\[\d+\] took\[|, indices\[([^]\[]*)\], source\[")
MOST_PLACES = 8
"""In how many places of a line its body is looked for: `stats`, which clients name, stand before it."""
SEARCHES = re.compile(r"/_(search(?:/template)?|msearch|count)$")
ODD = (ValueError, TypeError, AttributeError, KeyError, RecursionError)
"""What reading an entry raises that is not what it seems."""


class Logged(NamedTuple):
    """A request as a file has it: of which form, itself, and at which place, a line or an entry.

    It is a search body, or `{"path": …, "params": …, "body": …}`; None for what is no search.
    """

    form: str
    request: Mapping[str, Any] | None
    place: int = 0

    @property
    def key(self) -> str:
        """Tell it from others, whatever name of an index it asks: shards log by another than clients."""
        if self.form == BODIES:
            return str(self.place)
        given = self.request or {}
        return json.dumps([self.form, SEARCHES.findall(given["path"]), given["params"], given["body"]])


@dataclass(frozen=True)
class RequestLog:
    """The requests of a file, each one once, and what else it holds.

    `unreadable` are the places of what could not be read. Of a log, those that are there again, and `others`
    (no searches, or of other indices) are counted.
    """

    form: str
    requests: tuple[Logged, ...]
    unreadable: tuple[int, ...]
    repeated: int
    others: int


def read_requests(file: Path, names: Collection[str]) -> RequestLog:
    """Read the requests of a file, plain or gzip; of a log those that ask an index by one of these names.

    Raises DataError for a file in which nothing can be read, or with more than MOST_REQUESTS.
    """
    found: dict[str, Logged] = {}
    unreadable, count, others = [], 0, 0
    try:
        for place, entry in entries_of(file):
            try:
                read = [one._replace(place=place) for one in logged_in(entry)]
                asked = {one.key: one for one in read if asks(one, names)}
            except ODD:
                unreadable.append(place)
                continue
            count, others = count + len(asked), others + len(read) - len(asked)
            for key, one in asked.items():
                found.setdefault(key, one)
            if len(found) > MOST_REQUESTS:
                raise ValueError(f"it holds more than {MOST_REQUESTS:,} requests, take a part of it")
        if not count + others:
            raise ValueError("no request is in it")
    except (OSError, ValueError) as error:
        raise DataError(f"{file} cannot be read: {error}", hint=f"needed are {FORMS}") from None
    kept = once_of_each_layer(list(found.values()))
    form = kept[0].form if kept else "log"
    return RequestLog(form, tuple(kept), tuple(unreadable), count - len(kept), others)


def once_of_each_layer(found: list[Logged]) -> list[Logged]:
    """Leave out what an audit log says again of requests below the layer at which clients ask."""
    above = any(one.form == AUDIT for one in found)
    return [one for one in found if not (above and one.form == BELOW)]


def entries_of(file: Path) -> Iterator[tuple[int, Any]]:
    """Yield the lines of a file, or the entries of one that is a single list or HAR, numbered from 1."""
    whole = whole_of(file)
    if whole is not None:
        yield from enumerate(whole, 1)
        return
    for number, line in numbered_lines(file, "utf-8-sig", errors="replace"):
        if line.strip():
            yield number, line


def whole_of(file: Path) -> list[Any] | None:
    """Give the entries of a file that is one JSON value; None of one that is to be read by lines."""
    lines = numbered_lines(file, "utf-8-sig", errors="replace")
    first = next((line for _, line in lines if line.strip()), "").strip()
    if first[:1] not in ("{", "[") or DATED.match(first):
        return None
    try:
        if isinstance(value := parsed_json(first), dict) and "log" not in value:
            return None  # a line of several
    except ValueError:
        pass
    try:
        value = parsed_json(text_within(file))
    except ValueError:
        return None
    if isinstance(value, dict) and isinstance(value.get("log"), dict):
        value = value["log"].get("entries")
    return value if isinstance(value, list) else [value]


def logged_in(entry: Any) -> list[Logged]:
    """Read what one entry says was asked. Raises one of ODD."""
    if isinstance(entry, str):
        line = entry.strip()
        if "took_millis[" in line.partition(" source[")[0]:
            return in_slow_line(line)
        entry = parsed_json(line[max(line.find("{"), 0) :] if DATED.match(line) else line)
    if not isinstance(entry, Mapping):
        raise TypeError("an entry is an object")
    if "audit_category" in entry:
        return in_audit(entry)
    if "took_millis" in entry and "source" in entry:
        return searches(SLOW, slow_path(str(entry.get("message", ""))), {}, unescaped(entry["source"]))
    if isinstance(request := entry.get("request"), Mapping) and "url" in request:
        return in_har(request)
    return [Logged(BODIES, entry)]


def in_slow_line(line: str) -> list[Logged]:
    """Read a line of the slow log: its body is the first JSON object that stands as `source[…]`."""
    named = SLOW_INDEX.search(line)
    path = f"/{named[1] or named[2]}/_search" if named else "/_search"
    for place in list(SLOW_SOURCE.finditer(line))[:MOST_PLACES]:
        try:
            body, end = json.JSONDecoder().raw_decode(line, place.end())
        except (ValueError, RecursionError):
            continue
        if line.startswith("], id[", end):
            return searches(SLOW, path, {}, body)
    raise ValueError("no body stands in it")


def slow_path(message: str) -> str:
    """Give the path of a search by the message of its line in a slow log, `[docs][0]`; empty without one."""
    return f"/{message[1:].partition(']')[0]}/_search" if message.startswith("[") else "/_search"


def unescaped(source: str) -> str:
    """Give the body of a JSON slow log, which OpenSearch escapes twice."""
    return source if source.startswith('{"') or source == "{}" else str(parsed_json(f'"{source}"'))


def in_audit(entry: Mapping[str, Any]) -> list[Logged]:
    """Read a line of the audit log: a request of a client, or a search that was made of one."""
    body = entry.get("audit_request_body") or ""
    if path := entry.get("audit_rest_request_path"):
        return searches(AUDIT, path, entry.get("audit_rest_request_params") or {}, body)
    if entry.get("audit_transport_request_type") != "SearchRequest":
        return [Logged(BELOW, None)]
    return searches(BELOW, f"/{','.join(entry.get('audit_trace_indices', ()))}/_search", {}, body)


def in_har(request: Mapping[str, Any]) -> list[Logged]:
    """Read a request of a HAR file."""
    address = urlsplit(request["url"])
    params = dict(parse_qsl(address.query))
    body = (request.get("postData") or {}).get("text") or params.pop("source", "")
    return searches(HAR, unquote(address.path), params, body)


def searches(form: str, path: str, params: Mapping[str, Any], body: Any) -> list[Logged]:
    """Give the searches of one request, as `fate_of` takes them: those of `_msearch` one by one."""
    found = SEARCHES.search(path)
    if found is None:
        return [Logged(form, None)]
    if found[1] == "msearch":
        lines = [parsed_json(line) for line in body.split("\n") if line.strip()]
        index = path[: found.start()].strip("/")
        heads = [f"/{head.get('index') or index}/_search" for head in lines[::2]]
        both = zip(heads, lines[1::2], strict=True)
        return [Logged(form, {"path": head, "params": {}, "body": one}) for head, one in both]
    if isinstance(body, str):
        body = parsed_json(body) if body.strip() else {}
    if not isinstance(body, Mapping):
        raise TypeError("a body is an object")
    return [Logged(form, {"path": path, "params": params, "body": body})]


def asks(one: Logged, names: Collection[str]) -> bool:
    """Tell whether a request is a search, and in a log one of an index that goes by one of the names."""
    if one.form == BODIES or one.request is None:
        return one.request is not None
    index = SEARCHES.sub("", one.request["path"]).rpartition("/")[2]
    patterns = ["*"] if index in ("", "_all") else index.split(",")
    return any(fnmatchcase(name, pattern) for pattern in patterns for name in names)
