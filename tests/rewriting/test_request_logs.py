"""Logs of requests are read whatever their form, and nothing in them does harm."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hybridr.errors import DataError
from hybridr.rewriting import request_logs
from hybridr.rewriting.request_logs import RequestLog, read_requests

SCARF = {"match": {"title": {"query": 'red "scarf" ö]\n source[{', "operator": "OR", "boost": 1.0}}}
BODY = {"size": 3, "query": SCARF, "stats": ["a", "source[{x"]}
TYPED = json.dumps('red "scarf" ö]\n source[{', ensure_ascii=False)
NAMES = {"shop", "products-v1"}
GOLDEN = Path(__file__).parent.parent / "golden" / "logs"
PLAIN = (  # as OpenSearch 3.6.0 writes it, for each phase and shard, and once for the whole search
    "[2026-11-24T12:55:12,118][WARN ][i.s.s.query              ] [node] [products-v1][1] took[41.4ms], "
    "took_millis[41], total_hits[0 hits], stats[a,source[{x], search_type[QUERY_THEN_FETCH], "
    "total_shards[2], source[{body}], id[shop-7], request_id[], ",
    "[2026-11-24T12:55:12,649][WARN ][c.s.r.slowlog            ] [node] took[1s], took_millis[1023], "
    "phase_took_millis[{expand=0, query=541}], total_hits[1 hits], search_type[QUERY_THEN_FETCH], "
    "shards[{total:2, successful:2}], indices[shop], source[{body}], id[shop-7]request_id[]",
)


def escaped(body: Any) -> str:
    """As OpenSearch puts a body into its JSON log: written as a string within what becomes one."""
    return json.dumps(json.dumps(body, ensure_ascii=False), ensure_ascii=False)[1:-1]


def slow_json(body: Any, **besides: str) -> dict[str, Any]:
    kind = {"type": "index_search_slowlog", "took_millis": "41", "total_hits": "0 hits"}
    return {**kind, "message": "[products-v1][1]", "source": escaped(body), **besides}


def audited(path: str, body: Any, **params: str) -> dict[str, Any]:
    found = {
        "audit_category": "AUTHENTICATED",
        "audit_request_layer": "REST",
        "audit_rest_request_path": path,
        "audit_rest_request_params": params,
    }
    return {**found, "audit_request_body": body} if body is not None else found


def transported(body: Any, index: str = "shop") -> dict[str, Any]:
    return {
        "audit_category": "GRANTED_PRIVILEGES",
        "audit_request_layer": "TRANSPORT",
        "audit_transport_request_type": "SearchRequest",
        "audit_trace_indices": [index],
        "audit_request_body": json.dumps(body),
    }


def har(*requests: tuple[str, str]) -> dict[str, Any]:
    entries = [
        {"request": {"method": "POST", "url": url, "postData": {"text": text}}, "response": {"status": 200}}
        for url, text in requests
    ]
    return {"log": {"version": "1.2", "entries": entries}}


def lines(*values: Any) -> str:
    return "".join(f"{one if isinstance(one, str) else json.dumps(one)}\n" for one in values)


@pytest.fixture
def read(tmp_path: Path) -> Callable[..., RequestLog]:
    def reading(content: str, name: str = "requests.log") -> RequestLog:
        (tmp_path / name).write_text(content, encoding="utf-8")
        return read_requests(tmp_path / name, NAMES)

    return reading


def bodies(log: RequestLog) -> list[Any]:
    return [one.request and one.request.get("body") for one in log.requests]


def params(log: RequestLog) -> list[Any]:
    return [one.request and one.request["params"] for one in log.requests]


@pytest.mark.parametrize(
    ("content", "repeated"),
    [
        (lines(*(line.replace("{body}", json.dumps(BODY, ensure_ascii=False)) for line in PLAIN)), 1),
        (lines(slow_json(BODY), slow_json(BODY, message="[products-v1][0]"), slow_json(BODY)), 2),
        ("\ufeff" + lines(slow_json(BODY)) + "\r\n", 0),
    ],
)
def test_a_slow_log_tells_each_search_once_whatever_a_client_wrote_in_it(
    read: Callable[..., RequestLog], content: str, repeated: int
) -> None:
    log = read(content)
    assert (log.form, bodies(log), log.unreadable) == ("slow log", [BODY], ())
    assert log.repeated == repeated


def test_logs_that_opensearch_3_6_0_wrote_are_read() -> None:
    """Two searches and an `_msearch`; plain and JSON slow log, and the audit log with all categories."""
    for name in ("slow.log", "slow.json", "audit.log"):
        log = read_requests(GOLDEN / name, NAMES)
        queries = [body.get("query", {}) for body in bodies(log)]
        assert next(iter(queries[0])) == "match", name
        assert TYPED in json.dumps(queries[0]["match"], ensure_ascii=False), name
        assert (log.unreadable, log.others) == ((), 1 if name == "audit.log" else 0), name
    assert queries[1:] == [{}, {"match": {"title": "one"}}, {"match": {"title": "two"}}]
    assert params(log)[:2] == [{"size": "3", "index": "shop"}, {"q": "title:scarf", "index": "shop"}]


def test_searches_of_other_indices_and_other_requests_are_counted(read: Callable[..., RequestLog]) -> None:
    log = read(lines(slow_json(BODY, message="[payroll][0]"), slow_json(BODY), slow_json({"size": 0})))
    assert (bodies(log), log.others) == ([BODY, {"size": 0}], 1)
    only_others = read(lines(slow_json(BODY, message="[payroll][0]")))
    assert (only_others.requests, only_others.others) == ((), 1)


def test_an_audit_log_tells_what_clients_sent_not_what_was_made_of_it(
    read: Callable[..., RequestLog],
) -> None:
    several = "\n".join(map(json.dumps, [{"index": "shop"}, {"query": SCARF}, {}, {"size": 1}]))
    written = [
        audited("/shop/_search", json.dumps(BODY), size="3"),
        audited("/shop/_search", None, q="scarf"),
        audited("/shop/_msearch", several),
        audited("/payroll/_search", json.dumps(BODY)),
        audited("/shop/_doc/1", "{}"),
        transported(BODY | {"from": 0}),
    ]
    log = read(lines(*written))
    assert log.form == "audit log"
    assert bodies(log) == [BODY, {}, {"query": SCARF}, {"size": 1}]
    assert [one.request and one.request["params"] for one in log.requests][:2] == [
        {"size": "3"},
        {"q": "scarf"},
    ]
    assert [one.place for one in log.requests] == [1, 2, 3, 3]
    assert (log.others, log.repeated) == (2, 1)
    below = read(lines(transported(BODY), transported(BODY, "payroll"), {"audit_category": "LOGIN"}))
    assert (bodies(below), below.others) == ([BODY], 2)
    prefixed = read(f"[2026-11-24T12:55:12,118][INFO ][audit     ] [node] {json.dumps(written[0])}\n")
    assert bodies(prefixed) == [BODY]


def test_a_har_file_tells_what_a_browser_asked(read: Callable[..., RequestLog]) -> None:
    urls = ["https://s.example/api/shop/_search?from=10", "https://s.example/logo.png", "/products-*/_count"]
    found = har(*((url, json.dumps(BODY)) for url in urls), (f"/shop/_search?source={json.dumps(BODY)}", ""))
    for written in (json.dumps(found), json.dumps(found, indent=2)):
        log = read(written, "shop.har")
        assert (log.form, bodies(log), log.others) == ("HAR", [BODY] * 3, 1)
        assert params(log) == [{"from": "10"}, {}, {}]


@pytest.mark.parametrize("end", ["\u2028", "\x85", "\x0b", "\x1c"])
def test_what_ends_a_line_of_text_ends_none_of_msearch(read: Callable[..., RequestLog], end: str) -> None:
    body = {"query": {"match": {"title": f"red{end}scarf"}}}
    text = "".join(f"{json.dumps(line, ensure_ascii=False)}\n" for line in ({"index": "shop"}, body))
    log = read(json.dumps(har(("/_msearch", text))), "shop.har")
    assert bodies(log) == [body]


def test_bodies_are_kept_one_by_one_in_each_of_their_forms(
    read: Callable[..., RequestLog], tmp_path: Path
) -> None:
    given = [BODY, {"path": "/other/_search", "body": {}}, BODY]
    for content in (lines(*given), json.dumps(given, indent=1), "\n".join(map(json.dumps, given))):
        log = read(content)
        assert [one.request for one in log.requests] == given
        assert (log.form, log.repeated, log.others) == ("search bodies", 0, 0)
    (tmp_path / "old.log.gz").write_bytes(gzip.compress(lines(*given).encode()))
    assert len(read_requests(tmp_path / "old.log.gz", NAMES).requests) == 3


DEEP = '{"query":' * 100_000
ODD = [
    "what is this",
    "[3]",
    '{"took_millis": "1", "source": 5}',
    '{"took_millis": "1", "source": "{\\\\"}',
    '{"audit_category": 1, "audit_rest_request_path": 7}',
    '{"audit_category": 1, "audit_rest_request_path": "/shop/_search", "audit_request_body": "[1]"}',
    '{"audit_category": 1, "audit_rest_request_path": "/shop/_msearch", "audit_request_body": "{}"}',
    '{"request": {"url": 5}}',
    '{"request": {"url": "http://[x/shop/_search"}}',
    f"[2026-11-24T12:55:12,118][WARN ] took_millis[1], source[{DEEP}",
    "[2026-11-24T12:55:12,118][WARN ] took_millis[1]," + " source[{" * 1000,
    DEEP,
    "\x1b]0;title\x07",
    "\ufffd\udce4".encode("utf-8", "surrogatepass").decode("utf-8", "replace"),
]


@pytest.mark.parametrize("odd", ODD, ids=range(len(ODD)))
def test_what_cannot_be_read_is_counted_and_the_rest_goes_on(
    read: Callable[..., RequestLog], odd: str
) -> None:
    log = read(lines(slow_json(BODY), odd, BODY))
    assert (len(log.requests), log.unreadable) == (2, (2,))
    with pytest.raises(DataError, match="cannot be read: no request is in it"):
        read(odd)


def test_bytes_that_are_no_text_spoil_their_own_line_only(tmp_path: Path) -> None:
    (tmp_path / "latin.log").write_bytes(lines(slow_json(BODY)).encode() + b'{"caf\xe9\n' + b"\x00\x01\n")
    log = read_requests(tmp_path / "latin.log", NAMES)
    assert (bodies(log), log.unreadable) == ([BODY], (2, 3))


def test_a_line_too_long_a_crowd_of_requests_and_no_file_are_refused(
    read: Callable[..., RequestLog], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_logs, "MOST_REQUESTS", 3)
    with pytest.raises(DataError, match="more than 3 requests, take a part") as caught:
        read(lines(*({"size": size} for size in range(5))))
    assert "slow log" in str(caught.value.hint)
    monkeypatch.setenv("HYBRIDR_LINE_MB", "0.0001")
    with pytest.raises(DataError, match="a line of more than 100 characters"):
        read(lines({"query": "x" * 200}))
    with pytest.raises(DataError, match="cannot be read"):
        read_requests(tmp_path / "nothing", NAMES)
    with pytest.raises(DataError, match="cannot be read"):
        read_requests(tmp_path, NAMES)
