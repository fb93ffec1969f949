"""The lines for nginx, in a real one, while the server is killed under 60 clients. `make test-nginx`."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from hybridr.cluster.connection import Cluster, path_of
from hybridr.cluster.embedded.process import free_port
from hybridr.indexing.reindexing import reindex
from support.deployed import TEXT, fill_library
from support.places import ROOT

pytestmark = [pytest.mark.node, pytest.mark.elastic, pytest.mark.model]
CONF = ROOT / "opensearch" / "proxies" / "nginx.conf"
NAME, CLIENTS, SECONDS = "library", 60, 12.0
BODY = {"query": {"match": {"contents": TEXT}}, "size": 10, "_source": False}
NEEDED = "apt-get install nginx-light"


@pytest.fixture(scope="module", params=["cluster", "elastic"])
def library(request: pytest.FixtureRequest, minilm_encoder_folder: Path) -> Iterator[Cluster]:
    cluster: Cluster = request.getfixturevalue(request.param)
    fill_library(cluster, NAME, "contents", 300)
    reindex(cluster, NAME, minilm_encoder_folder)
    yield cluster
    for info in cluster.indices(f"{NAME}*"):
        cluster.request("DELETE", path_of(info.name))


@contextmanager
def nginx(folder: Path, server: str, cluster: str) -> Iterator[str]:
    """Run the shipped lines with these addresses in the place of theirs."""
    if (program := shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")) is None:
        pytest.fail(NEEDED)
    port, lines = free_port(), CONF.read_text()
    for old, new in ((":8080", f":{server}"), (":9200", f":{cluster}"), ("listen 9201", f"listen {port}")):
        assert lines.count(old) == 1
        lines = lines.replace(old, new)
    main = f"pid {folder}/pid; error_log {folder}/errors; events {{ worker_connections 512; }}"
    conf = folder / "nginx.conf"
    conf.write_text(f"{main}\nhttp {{ access_log off; {lines} }}")
    with subprocess.Popen([program, "-c", str(conf), "-p", str(folder), "-g", "daemon off;"]) as process:
        url, until = f"http://127.0.0.1:{port}", time.monotonic() + 10
        while True:
            try:
                httpx.get(url)
                break
            except httpx.HTTPError:
                assert time.monotonic() < until
                time.sleep(0.1)
        yield url
        process.terminate()


@contextmanager
def serving(cluster: Cluster) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    command = [sys.executable, "-m", "hybridr_cli", "serve", "--index", NAME, "--proxy", "lexical"]
    where = ["--port", "0", "--url", cluster.url, "--json"]
    pipe = subprocess.PIPE
    with subprocess.Popen([*command, *where], stdout=pipe, stderr=subprocess.DEVNULL) as process:
        url = json.loads(process.stdout.readline())["url"]  # type: ignore[union-attr]
        while httpx.get(f"{url}/healthz").status_code != 200:
            time.sleep(0.1)
        yield process, url
        process.kill()


def ids(answer: Any) -> tuple[str, ...]:
    return tuple(hit["_id"] for hit in answer["hits"]["hits"])


def ask_on(client: Callable[[], httpx.Client], path: str, until: float, seen: list[Any]) -> None:
    with client() as asking:
        while time.monotonic() < until:
            try:
                answer = asking.post(path, json=BODY)
                seen.append((time.monotonic(), answer.status_code, ids(answer.json())))
            except (httpx.HTTPError, KeyError, ValueError) as error:
                seen.append((time.monotonic(), 0, repr(error)))


def test_no_answer_fails_when_the_server_is_killed(library: Cluster, tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    path = f"/{NAME}-hybridr/_search"
    with (
        serving(library) as (process, url),
        nginx(tmp_path, url.rpartition(":")[2], library.url.rpartition(":")[2]) as front,
    ):
        plain = ids(httpx.post(f"{library.url}{path}", json=BODY).json())
        ranked = ids(httpx.post(f"{url}{path}", json=BODY).json())
        assert ids(httpx.post(f"{front}{path}", json=BODY).json()) == ranked != plain
        assert httpx.get(f"{front}/{NAME}-hybridr/_count").json()["count"] == 300
        large = {**BODY, "stats": ["x" * 2_200_000]}
        assert httpx.post(f"{front}{path}", json=large, timeout=60).status_code == 200
        seen: list[Any] = []
        until = time.monotonic() + SECONDS
        client = lambda: httpx.Client(base_url=front, timeout=30)  # noqa: E731
        threads = [threading.Thread(target=ask_on, args=(client, path, until, seen)) for _ in range(CLIENTS)]
        for one in threads:
            one.start()
        time.sleep(SECONDS / 2)
        process.send_signal(signal.SIGKILL)
        killed = time.monotonic()
        for one in threads:
            one.join()
    assert [one for one in seen if one[1] != 200] == []
    before = [found for at, _, found in seen if at < killed]
    after = [found for at, _, found in seen if at > killed + 1]
    assert len(before) > CLIENTS
    assert ranked in before
    assert set(after) == {plain}
