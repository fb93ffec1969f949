"""What answers in a cluster's place is read within bounds, and is a ClusterError when it is no answer."""

from __future__ import annotations

import gc
import json
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest

import hybridr_cli
from hybridr import connect
from hybridr.cluster import client
from hybridr.cluster.client import Bounds, BoundsExceeded, Client, check_address, read_answer
from hybridr.cluster.connection import Cluster, path_of
from hybridr.cluster.failures import MAX_REASON_CHARACTERS, TOO_LARGE
from hybridr.cluster.reading import SourceDocument, read_documents
from hybridr.cluster.record import IndexInfo
from hybridr.cluster.settings import ClusterSettings
from hybridr.cluster.writing import MemoryRejects, bulk_action, write
from hybridr.errors import AccessDenied, ClusterError, NotFound, SettingsError
from hybridr.indexing.job import stored_states
from support.hostile_cluster import DEEP, INDEX, ROOT, Given, bomb, hostile
from support.waiting import within


@pytest.mark.attack(62)
@pytest.mark.parametrize(
    "given", [bomb(50_000_000), Given(b" " * 100_000, endless=True)], ids=["gzip", "endless"]
)
def test_an_answer_is_read_up_to_its_bound(given: Given, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "MAX_ANSWER_BYTES", 4_000_000)
    tracemalloc.start()
    with hostile({"/": given}) as (url, _), pytest.raises(ClusterError, match="too many bytes") as caught:
        connect(url)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 40_000_000
    assert caught.value.kind == TOO_LARGE


@pytest.mark.attack(62)
def test_an_answer_that_never_ends_is_left() -> None:
    class Slow:
        closed = False

        def read1(self, _: int) -> bytes:
            return b" "

        def close(self) -> None:
            self.closed = True

    answer = Slow()
    with pytest.raises(BoundsExceeded, match="seconds"):
        read_answer(answer, Bounds(10**9, 0.0))
    assert answer.closed


@pytest.mark.attack(137)
@pytest.mark.parametrize("headers", [{}, {"Content-Length": "1000"}], ids=["to the end", "of a length"])
def test_a_cluster_that_sends_a_byte_now_and_then_is_left(headers: dict[str, str], monkeypatch) -> None:
    monkeypatch.setattr(client, "MAX_READING_TIMEOUTS", 1)
    slow = Given(b" " * 1_000, headers=headers, drips=True)
    with hostile({"/": slow}) as (url, _):
        with within(15), pytest.raises(ClusterError):
            connect(url, timeout_s=1.0)


NO_OPENSEARCH = [b"null", b"[]", b"3", b'"text"', b"{}", b"not json", b"\xff\xfe", DEEP]
NO_VERSION: list[Any] = ["3.6.0", {}, None, {"number": {}}]
NO_VERSION += [{"distribution": "opensearch"}]
NO_VERSION += [{"distribution": "opensearch", "number": number} for number in (3, "x", None, [3, 6])]
NO_OPENSEARCH += [json.dumps({"version": version}).encode() for version in NO_VERSION]


@pytest.mark.attack(63)
def test_what_is_no_opensearch_is_said_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    gc.collect()  # what other tests left would be told of when it is collected deep inside the parser
    answers: dict[str, Given] = {}
    with hostile(answers) as (url, _):
        for body in NO_OPENSEARCH:
            answers["/"] = Given(body)
            with pytest.raises(ClusterError):
                connect(url)
            assert hybridr_cli.main(["status", "docs", "--url", url]) == 1
            said = capsys.readouterr().err
            assert said.startswith("error: ")
            assert len(said) < 1_500


ODD: list[Any] = [None, 3, [], "text", {"hits": None}, {"hits": {"hits": [None]}}]
ODD += [{"hits": {"hits": [{"_id": 3}]}}, {"hits": {"hits": 3}}, {"responses": [None]}]
ODD += [{"responses": [{}, {}]}, {"pit_id": None}, {"docs": [3]}]
ODD += [{"docs": {}}, {"items": [{}]}, {"items": [3]}, {"items": []}, {"items": None}, {"_shards": 3}]
ODD += [{"docs": [{"found": True}]}, {"docs": None}, {"error": 3}, {"nodes": 3}, {"nodes": {"a": None}}]
ODD += [{"indices": 3}, {"docs": {"settings": None, "mappings": 3}}, DEEP]
ASKED = SourceDocument("1", {}, 1, 0, 1, None)
WAYS: dict[str, Callable[[Cluster], object]] = {
    "search": lambda cluster: cluster.search("docs", {}),
    "msearch": lambda cluster: cluster.msearch("docs", [{}]),
    "count": lambda cluster: cluster.count("docs"),
    "read": lambda cluster: list(read_documents(cluster, "docs")),
    "look up": lambda cluster: stored_states(cluster, "docs", [ASKED]),
    "write": lambda cluster: write(
        cluster, "docs", [bulk_action("index", "1", {})], rejects=MemoryRejects(), patience_s=0
    ),
}


@pytest.mark.attack(63)
@pytest.mark.parametrize("way", WAYS)
def test_answers_of_wrong_shape_are_a_cluster_error(way: str) -> None:
    # One server for all answers: `*` is put anew for each.
    answers = {"/": Given(ROOT), "/docs": Given(INDEX)}
    with hostile(answers) as (url, _):
        cluster = connect(url)
        for body in ODD:
            answers["*"] = Given(body)
            if way == "look up" and body == {"docs": {}}:
                continue  # nothing was looked up, and nothing found
            with pytest.raises(ClusterError):
                WAYS[way](cluster)


UNMAPPED: list = [{"docs": INDEX["docs"] | {"mappings": {"properties": one}}} for one in (5, {"text": 5})]
UNMAPPED.append({"docs": INDEX["docs"] | {"mappings": {"properties": {"text": {"fields": [1]}}}}})


@pytest.mark.attack(63)
@pytest.mark.parametrize(
    "odd", [None, 3, [], {"docs": None}, {"docs": {}}, {"docs": {"settings": []}}, DEEP, *UNMAPPED]
)
def test_an_index_of_wrong_shape_is_a_cluster_error(odd: Any) -> None:
    with hostile({"/": Given(ROOT), "/docs": Given(odd)}) as (url, _):
        cluster = connect(url)
        with pytest.raises(ClusterError):
            cluster.index_info("docs")


@pytest.mark.parametrize("settings", [{}, {"index.uuid": 5, "index.number_of_shards": None}])
def test_an_index_without_what_every_index_has_is_a_cluster_error(settings: dict[str, Any]) -> None:
    info = IndexInfo("docs", settings, {}, {})
    for ask in (lambda: info.uuid, lambda: info.shards):
        with pytest.raises(ClusterError, match="the cluster does not tell index"):
            ask()


@pytest.mark.attack(64)
@pytest.mark.parametrize("status", [400, 403, 404, 429, 500, 503])
@pytest.mark.parametrize(
    "error",
    [
        "\x1b[2J" + "x" * 100_000,
        {"type": "\x1b]0;x", "reason": "\x1b]52;c;aGk=\x07" + "y" * 100_000},
        {"root_cause": [{"reason": "z" * 100_000}, 3, None], "caused_by": {"reason": "\u202e" * 10_000}},
        {"root_cause": 3, "caused_by": "\x9b31m"},
        {"reason": {"a": ["\x1b"]}},
        [None],
    ],
    ids=range(6),
)
def test_what_a_server_says_is_cut_and_shown_as_text(status: int, error: Any) -> None:
    with hostile({"*": Given({"error": error}, status)}) as (url, _), pytest.raises(ClusterError) as caught:
        Cluster(Client(url, ClusterSettings()), url).index_info("docs")
    said = caught.value.message
    assert len(said) < 4 * MAX_REASON_CHARACTERS
    assert not [sign for sign in said if sign < " " or "\x7f" <= sign <= "\x9f" or sign == "\u202e"]


def test_the_version_is_not_guessed_for_who_may_not_ask() -> None:
    refused = Given({"error": {"type": "security_exception", "reason": "no permissions"}}, 403)
    with (
        hostile({"/": refused, "/docs": Given(INDEX)}) as (url, _),
        pytest.raises(AccessDenied, match="does not tell this user its version") as caught,
    ):
        connect(url, api_key="aWQ6a2V5")
    assert "cluster:monitor/main" in str(caught.value.hint)


@pytest.mark.attack(61)
def test_a_redirect_is_not_followed() -> None:
    with hostile({"*": Given(ROOT)}) as (elsewhere, asked):
        away = Given("", 302, {"Location": f"{elsewhere}/"})
        with hostile({"*": away}) as (url, _), pytest.raises(ClusterError):
            connect(url, user="me", password="hunter2")
        assert asked == []


def test_a_name_of_half_characters_is_no_traceback() -> None:
    assert path_of("a\udcffb") == "/a%3Fb"


def test_a_name_with_a_slip_is_guessed() -> None:
    aliases = {"manuals-v1": {"aliases": {"manuals": {}}}, ".hidden": {"aliases": {}}}
    answers = {"/": Given(ROOT), "/_all/_alias": Given(aliases)}
    with hostile(answers) as (url, _):
        cluster = connect(url)
        for name, hint in (("manuls", "did you mean manuals?"), ("elsewhere", "hybridr load FOLDER --index")):
            with pytest.raises(NotFound, match=f"no index or alias '{name}'") as caught:
                cluster.index_info(name)
            assert str(caught.value.hint).startswith(hint)


@pytest.mark.attack(105)
@pytest.mark.parametrize(
    "url",
    [
        *("http://h\n:9200", "http://h:9200\r\nX: y", "http://h:99999", "http://h:x", "http://h:9200 "),
        *(
            "http://",
            "http://h:9200/#",
            "http://h:9200/a#/b",
            "http://h:9200/?a",
            "http://h:9200#",
            "http://h\\x:9200",
        ),
    ],
)
def test_an_address_with_a_line_break_or_an_odd_port_is_refused(url: str) -> None:
    with pytest.raises(SettingsError, match="is not a cluster address") as refused:
        check_address(url)
    assert "\n" not in refused.value.message
