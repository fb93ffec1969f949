"""States of nodes, and what is refused before one starts."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from hybridr.cluster.embedded import process, state
from hybridr.cluster.embedded import state as state_module
from hybridr.cluster.embedded.state import with_address
from hybridr.cluster.settings import ClusterSettings, NodeSettings
from hybridr.errors import NodeError, SettingsError
from hybridr_cli import main
from support.node_states import FAMILY, state_of


def test_running_url_prefers_the_default_and_guesses_only_a_single_one(spawned):
    for name, port in (("a", 1), ("b", 2), ("default", 3)):
        each = spawned(FAMILY, state_module.data_argument(f"/data/{name}"))
        url = f"http://127.0.0.1:{port}"
        state.write_state(state_of(name, each.pid, each.create_time(), url=url))
    assert state_module.running_node().url == "http://127.0.0.1:3"
    process.stop("default")
    assert state_module.running_node() is None
    with pytest.raises(SettingsError, match="called 'default': a at http://.*:1, b at http://127.0.0.1:2"):
        with_address(ClusterSettings())
    process.stop("b")
    assert state_module.running_node().url == "http://127.0.0.1:1"


def test_delete_data_forgets_only_that_node(tmp_path: Path) -> None:
    for name in ("mine", "other"):
        (state.node_folder(name) / "data").mkdir(parents=True)
        state.write_state(state_of(name, 1, 0.0))
    assert main(["node", "stop", "--name", "mine", "--delete-data"]) == 0
    assert [each.name for each in state_module.node_states()] == ["other"]
    assert not state.node_folder("mine").exists()
    assert state.node_folder("other").exists()


@pytest.mark.parametrize("name", ["../other", "", "a/b", "UPPER"])
def test_a_name_that_is_none_is_refused(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["node", "stop", "--name", name, "--delete-data"]) == 2
    assert "name: string should match pattern" in capsys.readouterr().err
    with pytest.raises(SettingsError):
        process.stop(name, delete_data=True)


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        (["--secure"], "the security plugin is available for 2.19.1 only", "--version 2.19.1 --secure"),
        (["--version", "2.19.1", "--with-ml"], "ml-commons is available for 3.6.0 only", "--version 3.6.0"),
        (["--heap", "100000g"], "heap: 100000g is more than this machine's", "omit --heap"),
        (["--heap", "1x"], "heap: string should match pattern", "hybridr settings"),
        (["--version", "1.0"], "version: input should be '3.6.0' or '2.19.1'", "hybridr settings"),
        (["--port", "80"], "port: input should be greater than or equal to 1024", "hybridr settings"),
    ],
)
def test_settings_that_no_node_can_have(arguments: list[str], message: str, hint: str, capsys) -> None:
    assert main(["node", "start", *arguments]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert hint in said


def test_a_taken_port_is_named_before_anything_is_fetched(tmp_path, capsys) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert main(["node", "start", "--port", str(port)]) == 1
    assert f"port {port} is taken" in capsys.readouterr().err
    assert not (tmp_path / "cache").exists()


def test_data_of_another_version_are_not_opened(capsys: pytest.CaptureFixture[str]) -> None:
    state.write_state(state_of("mine", 1, 0.0, version="2.19.1"))
    assert main(["node", "start", "--name", "mine"]) == 1
    said = capsys.readouterr().err
    assert "node 'mine' has data with version 2.19.1, not version 3.6.0" in said
    assert "--delete-data   or choose another --name" in said


def test_a_running_node_keeps_its_settings(spawned: Callable[..., psutil.Popen]) -> None:
    each = spawned(FAMILY, state_module.data_argument("/data/mine"))
    state.write_state(state_of("mine", each.pid, each.create_time()))
    with pytest.raises(NodeError, match="node 'mine' runs with heap 1g, not heap 2g") as caught:
        process.start(NodeSettings(name="mine", heap="2g"))
    assert str(caught.value.hint).startswith("hybridr node stop --name mine   or")


def test_logs_of_no_node(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["node", "logs", "--name", "none"]) == 1
    assert "there is no node 'none'" in capsys.readouterr().err


def test_stop_without_a_node_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["node", "stop", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"stopped": []}
    assert main(["node", "stop"]) == 0
    assert capsys.readouterr().out == "node 'default' was not running\n"


@pytest.mark.attack(78)
def test_a_clock_that_is_set_makes_no_stranger_of_a_node(spawned: Callable[..., psutil.Popen]) -> None:
    mine = spawned(FAMILY, state_module.data_argument("/data/mine"))
    began = state.seconds_since_boot(mine.pid)
    for step in (-6, 6, 86_400):
        written = state_of("mine", mine.pid, mine.create_time() + step, since_boot=began)
        assert state.find_process(written) is not None
        assert state.find_process(replace(written, since_boot=began + step)) is None
    assert state.find_process(state_of("other", mine.pid, mine.create_time())) is None


@pytest.mark.attack(77)
@pytest.mark.parametrize("damage", ["", "[]", "null", '{"name": "bad"}', '{"pid": "x"}', "\x00", '{"a": 1'])
def test_one_damaged_state_leaves_the_others(damage: str, capsys: pytest.CaptureFixture[str]) -> None:
    state.write_state(state_of("good", 1, 0.0))
    whole = json.loads(state.state_file("good").read_text())
    wrong = json.dumps({**whole, **json.loads(damage)}) if damage == '{"pid": "x"}' else damage
    state.state_file("bad").write_text(wrong)
    assert [one.name for one in state_module.node_states()] == ["good"]
    assert state_module.running_node() is None
    assert main(["node", "status", "--json"]) == 0
    shown = capsys.readouterr()
    assert [one["name"] for one in json.loads(shown.out)["nodes"]] == ["good"]
    assert f"{state.state_file('bad')} cannot be used" in shown.err
    assert f"delete it: rm '{state.state_file('bad')}'" in shown.err
    with pytest.raises(NodeError):
        state.read_state("bad")


def test_status_of_a_name_is_of_that_node_alone(capsys: pytest.CaptureFixture[str]) -> None:
    for number, name in enumerate(("first", "second"), 1):
        state.write_state(state_of(name, number, 0.0))
    assert main(["node", "status", "--name", "second", "--json"]) == 0
    assert [one["name"] for one in json.loads(capsys.readouterr().out)["nodes"]] == ["second"]
    assert main(["node", "status", "--name", "third"]) == 1
    told = capsys.readouterr().err
    assert "there is no node 'third'; nodes: first, second" in told
    assert "hybridr node start --name third" in told
