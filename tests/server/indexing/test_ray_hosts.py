"""Reindex on a Ray of three hosts, of which one is cut off and one is killed.

Beside it: `test_ray.py`, on one machine. Here hosts are made by network namespaces, which takes root, and
each starts a Ray, which takes longer than all else here: `make test-hosts`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from hybridr import connect
from hybridr.cluster.connection import Cluster
from hybridr.cluster.embedded import process
from hybridr.cluster.embedded.configuration import node_settings
from hybridr.cluster.settings import NodeSettings
from support.corpus import fill_index, sources, text_number, vectors
from support.hashing import HashingEncoder
from support.hosts import Host, Hosts
from support.places import ROOT, SUPPORT
from support.waiting import wait_until
from support.workers import told_in

pytestmark = [pytest.mark.node, pytest.mark.timeout(900)]
HOSTS = bool(os.environ.get("HYBRIDR_HOSTS"))
RAY = [sys.executable, "-m", "ray.scripts.scripts", "start", "--disable-usage-stats"]
SMALL = ["--object-store-memory", "80000000"]
DOCUMENTS, HELD = 160, range(60, 80)  # the share in which a worker waits


class Stage(NamedTuple):
    """A cluster that all hosts reach, and three of them with a Ray: the driver is on the first."""

    cluster: Cluster
    hosts: dict[str, Host]

    def driver(self, index: str, folder: Path) -> subprocess.Popen[str]:
        """Begin a reindex whose workers tell in a folder what they do; the first one waits at a text."""
        words = [
            str(SUPPORT / "workers.py"),
            self.cluster.url,
            index,
            address(self.hosts["one"]),
            str(folder),
        ]
        return self.hosts["one"].start(sys.executable, *words, "once")


def address(head: Host) -> str:
    return f"{head.address}:6379"


def join_ray(host: Host, head: Host) -> None:
    """Start Ray: on the head without a worker, so that each of the others has one."""
    role = ["--head", "--port", "6379", "--num-cpus", "0", "--include-dashboard", "false"]
    worker = ["--address", address(head), "--num-cpus", "1"]
    place = ["--node-ip-address", host.address, "--temp-dir", f"{host.own}/ray"]
    host.environment |= {"PYTHONPATH": f"{ROOT / 'tests'}:{ROOT}", "OMP_NUM_THREADS": "1"}
    host.run(*RAY, *SMALL, *(role if host is head else worker), *place, timeout=120)


@pytest.fixture(scope="module")
def stage(own_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    own = tmp_path_factory.mktemp("h")  # a socket's path has room for 107 characters
    network = Hosts(own, ["one", "two", "three"])

    def reached(settings: NodeSettings, folder: Path, port: int) -> dict[str, Any]:
        return node_settings(settings, folder, port) | {"http.host": ["127.0.0.1", network.gateway]}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(process, "node_settings", reached)
        state = process.start(NodeSettings(name="hosts", heap="512m"))
    try:
        for host in network.all:
            join_ray(host, network.all[0])
        url = state.url.replace("127.0.0.1", network.gateway)
        yield Stage(connect(url), {host.name: host for host in network.all})
    finally:
        process.stop("hosts")
        network.end()


def restart(host: Host, stage: Stage) -> None:
    """Boot a host, and start its Ray."""
    host.boot()
    join_ray(host, stage.hosts["one"])


def who_waits(folder: Path) -> str:
    """Name the host whose worker waits in the middle of its share."""
    return next((file.name.removeprefix("waits-") for file in folder.glob("waits-*")), "")


def check_whole(cluster: Cluster, index: str) -> None:
    """Everything is there, exactly."""
    expected = HashingEncoder().encode_documents([text_number(n) for n in range(DOCUMENTS)]).tolist()
    assert vectors(cluster, f"{index}-hybridr") == {f"d{n}": vector for n, vector in enumerate(expected)}
    assert sources(cluster, f"{index}-hybridr") == sources(cluster, index)


def check_a_lost_host(stage: Stage, index: str, folder: Path, lose: Callable[[Host], None]) -> Host:
    """Lose the host whose worker holds a share: the other does that again, whole, and no other."""
    fill_index(stage.cluster, index, DOCUMENTS)
    driver = stage.driver(index, folder)
    try:
        wait_until(lambda: who_waits(folder) or driver.poll() is not None)
        lost = stage.hosts[who_waits(folder)]
        lose(lost)
        assert driver.wait(timeout=300) == 0
    finally:
        driver.kill()
    check_whole(stage.cluster, index)
    told = Counter(text for name in ("two", "three") for text in told_in(folder / name))
    assert set(told) == {text_number(n) for n in range(DOCUMENTS)}
    assert {text for text, times in told.items() if times > 1} <= {text_number(n) for n in HELD}
    return lost


if HOSTS:

    def test_a_host_that_is_cut_off_loses_nothing(stage, tmp_path):
        index = "t-hosts-cut"
        lost = check_a_lost_host(stage, index, tmp_path, Host.cut)
        (tmp_path / "go").touch()  # its worker wakes up, without a network, and with one
        lost.join()
        wait_until(lambda: not lost.holds("ray::Worker"))
        check_whole(stage.cluster, index)
        lost.kill()  # its Ray ended when it heard that it was given up
        restart(lost, stage)

    def test_a_host_that_is_killed_loses_nothing(stage, tmp_path):
        lost = check_a_lost_host(stage, "t-hosts-killed", tmp_path, Host.kill)
        restart(lost, stage)
