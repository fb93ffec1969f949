"""doctor in front of what is no usable OpenSearch: small HTTP servers that answer as others do."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache

import pytest

from hybridr.cluster.settings import ClusterSettings
from hybridr.doctor import diagnosis, health_checks
from hybridr.doctor.diagnosis import diagnose
from hybridr.errors import SettingsError
from hybridr_cli import main
from support.servers import Quiet, serving

THIS_MACHINE = cache(health_checks.machine_checks)
OPENSEARCH = {"version": {"distribution": "opensearch", "number": "3.6.0"}}
HEALTH = {"status": "green", "number_of_nodes": 1}
DISK = {"nodes": {"a": {"fs": {"total": {"total_in_bytes": 100, "available_in_bytes": 50}}}}}


def node_info(*plugins: str) -> dict:
    modules = [{"name": name} for name in ("analysis-common", "lang-painless", "reindex")]
    return {"nodes": {"a": {"plugins": [{"name": name} for name in plugins], "modules": modules}}}


def forbidden(*actions: str) -> dict:
    reason = f"no permissions for [{', '.join(actions)}] and User [name=ann, backend_roles=[]]"
    error = {"type": "security_exception", "reason": reason}
    return {"error": {"root_cause": [error], **error}, "status": 403}


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look at this machine once, by programs that take their time."""
    monkeypatch.setattr(diagnosis, "machine_checks", THIS_MACHINE)


@pytest.fixture
def impostor() -> Iterator[Callable[[dict], str]]:
    """Start a server that answers by (method, start of the path), else 200 and {}; give its url."""
    with ExitStack() as running:

        def start(answers: dict[tuple[str, str], tuple[int, dict]]) -> str:
            def answer(self: Quiet) -> None:
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                found = [one for one in answers if one[0] == self.command and self.path.startswith(one[1])]
                status, body = answers[max(found, key=lambda known: len(known[1]))] if found else (200, {})
                payload = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(payload)))
                self.end_headers()
                self.wfile.write(payload)

            verbs = dict.fromkeys(("do_GET", "do_POST", "do_PUT", "do_DELETE"), answer)
            return running.enter_context(serving(type("Handler", (Quiet,), verbs)))

        yield start


def checks_of(url: str, **settings: object) -> dict:
    return {check.name: check for check in diagnose(ClusterSettings(url=url, **settings))}


def healthy(*plugins: str) -> dict:
    return {
        ("GET", "/"): (200, OPENSEARCH),
        ("GET", "/_cluster/health"): (200, HEALTH),
        ("GET", "/_nodes/stats"): (200, DISK),
        ("GET", "/*-hybridr-*"): (200, {}),
        ("GET", "/*/_mapping"): (200, {}),
        ("GET", "/*,-.*/_mapping"): (403, forbidden("indices:admin/mappings/get")),  # asked after a refusal
        ("GET", "/_nodes/plugins"): (200, node_info(*plugins)),
        ("POST", "/hybridr-doctor"): (200, {"pit_id": "p", "hits": {"hits": [{"_score": 1.0}]}}),
    }


BOTH = ("opensearch-knn", "opensearch-neural-search")


def test_nothing_at_the_address(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--url", "http://127.0.0.1:9", "--quiet"]) == 1
    lines = capsys.readouterr().out.splitlines()
    (line,) = [line for line in lines if line.startswith("FAIL")]
    assert "cluster" in line
    assert "nothing answers at http://127.0.0.1:9" in line
    assert "FIX: hybridr node start" in line
    assert any(" python " in line for line in lines), "the machine is checked all the same"
    assert main(["doctor", "--url", "http://127.0.0.1:9", "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    (failed,) = [check for check in report["checks"] if check["ok"] is False]
    assert (report["ok"], failed["name"]) == (False, "cluster")


def test_no_address_at_all(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--url", "localhost:9200"]) == 2
    said = capsys.readouterr().err
    assert "error: 'localhost:9200' is not a cluster address" in said
    assert "https://host:9200" in said
    with pytest.raises(SettingsError):
        diagnose(ClusterSettings(url="nowhere"))


@pytest.mark.parametrize(
    ("answer", "found", "fix"),
    [
        ((200, {"version": {"number": "8.17.0"}}), "of another product, not OpenSearch", "check --url"),
        ((200, {"hello": "world"}), "it is something else, not OpenSearch", "check --url"),
        (
            (200, {"version": {"distribution": "opensearch", "number": "2.11.1"}}),
            "OpenSearch 2.11.1 at URL; hybridr needs 2.19 or newer",
            "upgrade the cluster",
        ),
        ((401, {"error": "Unauthorized"}), "does not know this user or password (401)", "HYBRIDR_PASSWORD"),
        ((503, {"error": "OpenSearch Security not initialized."}), "not ready yet (503)", "wait a little"),
    ],
)
def test_what_is_no_usable_cluster(impostor, answer, found: str, fix: str, capsys) -> None:
    url = impostor({("GET", "/"): answer})
    check = checks_of(url)["cluster"]
    assert check.ok is False
    assert found.replace("URL", url) in check.found
    assert fix in check.fix
    assert main(["doctor", "--url", url, "--quiet"]) == 1
    assert fix in capsys.readouterr().out


def test_a_healthy_answer_passes(impostor) -> None:
    checks = checks_of(impostor(healthy(*BOTH)))
    assert [name for name, check in checks.items() if check.ok is False] == []
    rights = "create, write, read, describe, point in time, settings, alias, delete"
    assert checks["rights"].found.startswith(rights)
    assert checks["hybrid search"].ok
    assert "lucene; faiss if the k-NN plugin" in checks["engines"].found


def test_a_missing_plugin_fails_with_the_command(impostor) -> None:
    checks = checks_of(impostor(healthy("opensearch-knn")))
    assert checks["plugins"].ok is False
    assert checks["plugins"].found.startswith(
        "missing on some node: opensearch-neural-search; without opensearch-ml"
    )
    assert checks["plugins"].fix == "bin/opensearch-plugin install opensearch-neural-search on every node"
    assert "hybrid search" not in checks


TWO_NODES = {**node_info(*BOTH)["nodes"], "b": node_info("opensearch-knn")["nodes"]["a"]}
WITHOUT_MODULES = {"a": {**node_info(*BOTH)["nodes"]["a"], "modules": []}}
BLOCKED = "index [hybridr] blocked by: [FORBIDDEN/10/cluster create-index blocked (api)];"
BLOCK = {"error": {"type": "cluster_block_exception", "reason": BLOCKED}, "status": 403}
FORBIDDEN = forbidden("indices:admin/delete")


@pytest.mark.parametrize(
    ("request_", "answer", "name", "ok", "found", "fix"),
    [
        (
            *(("GET", "/_nodes/plugins"), (200, {"nodes": TWO_NODES}), "plugins", False),
            *("missing on some node: opensearch-neural-search", "opensearch-plugin install"),
        ),
        (
            *(("GET", "/_nodes/plugins"), (200, {"nodes": WITHOUT_MODULES}), "modules", False),
            *("missing on some node: analysis-common, lang-painless", "complete distribution"),
        ),
        (
            *(("DELETE", "/hybridr-doctor"), (403, FORBIDDEN), "rights", False),
            *("delete: missing indices:admin/delete; the index 'hybridr-doctor-", "grant what is missing"),
        ),
        (
            *(("PUT", "/hybridr-doctor"), (403, BLOCK), "rights", False),
            *("create-index blocked", "solve that on the cluster first"),
        ),
        (
            *(("GET", "/_cluster/health"), (200, {"status": "red", "number_of_nodes": 3}), "health", False),
            *("red, 3 node(s)", "allocation/explain"),
        ),
        (
            *(("POST", "/hybridr-doctor"), (200, {"pit_id": "p", "hits": {"hits": [{"_score": -9.5e9}]}})),
            *("hybrid search", False, "fused score", "opensearch-neural-search"),
        ),
        (
            *(("GET", "/_plugins/_knn/stats"), (200, {"circuit_breaker_triggered": True}), "graph memory"),
            *(False, "evicted", "knn.memory.circuit_breaker.limit"),
        ),
        (
            *(("GET", "/*/_mapping"), (403, forbidden("indices:admin/mappings/get")), "vectors", None),
            *("missing indices:admin/mappings/get", "let an administrator grant"),
        ),
    ],
)
def test_each_fault_is_found_by_its_check(impostor, request_, answer, name, ok, found, fix) -> None:
    check = checks_of(impostor({**healthy(*BOTH), request_: answer}))[name]
    assert check.ok is ok
    assert found in check.found
    assert fix in check.fix


@pytest.mark.parametrize(
    ("request_", "what", "actions"),
    [
        (("PUT", "/hybridr-doctor"), "create", ("indices:admin/create",)),
        (("POST", "/_aliases"), "alias", ("indices:admin/aliases",)),
        (("DELETE", "/_search/point_in_time"), "point in time", ("indices:data/read/point_in_time/delete",)),
    ],
)
def test_a_missing_right_is_named(impostor, request_, what: str, actions) -> None:
    url = impostor({**healthy(*BOTH), request_: (403, forbidden(*actions, "indices:data/write/bulk[s]"))})
    check = checks_of(url)["rights"]
    assert check.ok is False
    assert check.found == f"{what}: missing {actions[0]}, indices:data/write/bulk[s]"
    assert check.fix.startswith("let an administrator grant what is missing on hybridr-doctor-*")


def test_a_user_who_may_not_look_at_the_nodes(impostor) -> None:
    hidden = {
        ("GET", "/_nodes"): (403, forbidden("cluster:monitor/nodes/info")),
        ("GET", "/_cluster/health"): (403, forbidden("cluster:monitor/health")),
    }
    known = {key: value for key, value in healthy().items() if not key[1].startswith("/_nodes")}
    checks = checks_of(impostor({**known, **hidden}))
    assert (checks["plugins"].ok, checks["plugins"].fix) == (None, "grant cluster:monitor/nodes/info")
    assert (checks["health"].ok, checks["health"].found) == (None, "missing cluster:monitor/health")
    assert checks["cluster disk"].ok is None
    assert checks["engines"].ok is None
    assert checks["hybrid search"].ok, "what cannot be seen is tried"


WATCHED = {"cluster.routing.allocation.disk.watermark.flood_stage": "95%"}
UNWATCHED = {**WATCHED, "cluster.routing.allocation.disk.threshold_enabled": "false"}


@pytest.mark.parametrize(
    ("free", "settings", "ok"),
    [
        *((11, WATCHED, True), (8, WATCHED, None), (4, WATCHED, False), (4, {}, False)),
        *((4, UNWATCHED, None), (0, UNWATCHED, False)),
    ],
)
def test_a_full_disk_of_the_cluster(impostor, free: int, settings: dict, ok: bool | None) -> None:
    fullest = {"fs": {"total": {"total_in_bytes": 100, "available_in_bytes": free}}}
    answers = {
        ("GET", "/_nodes/stats"): (200, {"nodes": {"b": fullest, **DISK["nodes"]}}),
        ("GET", "/_cluster/settings"): (200, {"defaults": settings, "persistent": {}, "transient": {}}),
    }
    check = checks_of(impostor({**healthy(*BOTH), **answers}))["cluster disk"]
    assert check.ok is ok
    assert f"({free}%) free on the fullest node" in check.found
