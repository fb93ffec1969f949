"""Several hosts, the name of who asks, one more try of what only reads, and `Retry-After`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import pytest

import hybridr_cli
from hybridr.cluster.connection import Cluster
from hybridr.cluster.embedded.process import free_port
from hybridr.cluster.failures import ASKED_BY
from hybridr.cluster.settings import ClusterSettings
from hybridr.errors import ClusterError, SettingsError, Unreachable
from hybridr.serving.doorway import opaque_id
from hybridr.serving.search_threads import SearchThreads
from support.servers import Quiet, serving

VERSION = {"number": "3.6.0", "distribution": "opensearch"}
INFO = json.dumps({"version": VERSION, "cluster_uuid": "u", "hits": {"hits": []}}).encode()


class Host:
    """A host of a cluster that answers all with one status, and remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, str | None]] = []
        self.status, self.headers = 200, {"Content-Type": "application/json"}
        self.url = ""

    def answer(self, handler: Quiet) -> None:
        handler.rfile.read(int(handler.headers.get("Content-Length", 0)))
        self.asked.append((handler.command, handler.path, handler.headers.get("X-Opaque-Id")))
        handler.send_response(self.status if handler.path != "/" else 200)
        for name, value in {**self.headers, "Content-Length": str(len(INFO))}.items():
            handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(INFO)


@pytest.fixture
def hosts() -> Iterator[tuple[Host, Host]]:
    both = Host(), Host()
    with ExitStack() as running:
        for host in both:
            verbs = dict.fromkeys(("do_GET", "do_POST", "do_PUT"), lambda of, host=host: host.answer(of))
            host.url = running.enter_context(serving(type("Handler", (Quiet,), verbs)))
        yield both


@pytest.fixture
def nobody() -> str:
    """An address at which nothing listens."""
    return f"http://127.0.0.1:{free_port()}"


def connected(*urls: str, **given: Any) -> Cluster:
    return Cluster.connect(ClusterSettings(url=", ".join(urls)), **given)


def test_a_host_that_is_down_is_passed_over_by_reads_and_writes(hosts, nobody):
    cluster = connected(nobody, hosts[0].url)
    for number in range(4):
        cluster.request("PUT", f"/docs/_doc/{number}", {})
    assert [path for _, path, _ in hosts[0].asked if "_doc" in path] == [f"/docs/_doc/{n}" for n in range(4)]
    with pytest.raises(Unreachable, match="nothing answers at"):
        connected(nobody, nobody.replace("127.0.0.1", "localhost"))
    with pytest.raises(SettingsError, match="is not a cluster address"):
        connected(nobody, "host:9200")


def test_a_search_is_asked_once_more_elsewhere_and_a_write_is_not(hosts: tuple[Host, Host]) -> None:
    one, other = hosts
    cluster = connected(one.url, other.url)
    for ill, well in ((one, other), (other, one)):
        ill.status, well.status = 503, 200
        for host in hosts:
            host.asked.clear()
        for _ in range(3):
            cluster.request("POST", "/docs/_search", {})
        assert len(well.asked) == 3
        assert len(ill.asked) <= 2, "it is left alone for a while"
    one.status = other.status = 503
    one.asked.clear()
    other.asked.clear()
    with pytest.raises(Unreachable):
        cluster.request("POST", "/docs/_search", {})
    assert len(one.asked) + len(other.asked) == 2
    with pytest.raises(Unreachable):
        cluster.request("POST", "/docs/_bulk", {})
    assert len(one.asked) + len(other.asked) == 3


def test_the_cluster_says_how_long_it_wants_to_be_left_alone(hosts: tuple[Host, Host]) -> None:
    one, _ = hosts
    cluster = connected(one.url)
    one.status, one.headers["Retry-After"] = 429, "7"
    with pytest.raises(ClusterError) as busy:
        cluster.request("POST", "/docs/_search", {})
    assert busy.value.wait_s == 7
    waited: list[float] = []

    def well_again(seconds: float) -> bool:
        waited.append(seconds)
        one.status = 200
        return False

    patient = cluster.with_patience(60)
    patient.stop = SimpleNamespace(wait=well_again)  # type: ignore[assignment]
    patient.request("POST", "/docs/_bulk", {})
    assert waited == [7]
    one.status = 429
    with pytest.raises(ClusterError):
        cluster.with_patience(5).request("POST", "/docs/_bulk", {})
    one.headers["Retry-After"] = "Fri, 31 Dec 1999 23:59:59 GMT"
    with pytest.raises(ClusterError) as busy:
        cluster.request("POST", "/docs/_search", {})
    assert busy.value.wait_s == 0


def test_requests_carry_the_name_of_who_asks(hosts: tuple[Host, Host]) -> None:
    one, _ = hosts
    cluster = connected(one.url, asked_by="hybridr/test")
    with ThreadPoolExecutor(1) as pool:
        pool.submit(cluster.with_patience(1).request, "GET", "/docs").result()
    assert {name for *_, name in one.asked} == {"hybridr/test"}
    one.asked.clear()
    hybridr_cli.main(["status", "docs", "--url", one.url, "--quiet"])
    assert {name for *_, name in one.asked} == {"hybridr/status"}


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("given", "kept"),
    [(b"shop-42", "shop-42"), (b"", None), (b"two words", None), (b"x" * 201, None), (b"a\x00b", None)],
)
async def test_the_server_hands_on_the_name_that_a_client_gave(hosts, given, kept):
    assert opaque_id({"headers": [(b"x-opaque-id", given)]}) == kept
    cluster = connected(hosts[0].url, asked_by="hybridr/serve")
    ASKED_BY.set(opaque_id({"headers": [(b"x-opaque-id", given)]}))
    await SearchThreads(2).run(lambda: cluster.request("POST", "/docs/_search", {}))
    assert hosts[0].asked[-1][2] == (kept or "hybridr/serve")
