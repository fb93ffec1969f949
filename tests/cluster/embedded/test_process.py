from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from hybridr.cluster.embedded import process, state
from hybridr.cluster.embedded import state as state_module
from support.node_states import FAMILY, STUBBORN, state_of
from support.waiting import wait_until


def test_stop_ends_the_process_and_its_children_once(spawned: Callable[..., psutil.Popen]) -> None:
    parent = spawned(FAMILY, state_module.data_argument("/data/mine"))
    (child,) = parent.children()
    state.write_state(state_of("mine", parent.pid, parent.create_time()))
    assert state_module.node_states()[0].running
    assert state_module.running_node().url == "http://127.0.0.1:9"
    assert process.stop("mine")
    assert not psutil.pid_exists(child.pid) or child.status() == psutil.STATUS_ZOMBIE
    assert not parent.is_running()
    assert not process.stop("mine")
    assert state_module.running_node() is None


def test_stop_kills_a_process_that_does_not_listen(spawned: Callable[..., psutil.Popen], monkeypatch) -> None:
    monkeypatch.setattr(process, "STOP_S", 0.5)
    stubborn = spawned(STUBBORN, state_module.data_argument("/data/mine"))
    state.write_state(state_of("mine", stubborn.pid, stubborn.create_time()))
    assert process.stop("mine")
    assert not stubborn.is_running()


def test_a_stale_pid_never_ends_a_stranger(spawned: Callable[..., psutil.Popen]) -> None:
    stranger = spawned(FAMILY, state_module.data_argument("/data/another"))
    state.write_state(state_of("mine", stranger.pid, stranger.create_time()))
    reused = spawned(FAMILY, state_module.data_argument("/data/other"))
    state.write_state(state_of("other", reused.pid, reused.create_time() - 3600))
    assert [each.running for each in state_module.node_states()] == [False, False]
    assert not process.stop("mine")
    assert not process.stop("other")
    assert stranger.is_running()
    assert reused.is_running()


def test_an_ended_process_is_not_running(spawned: Callable[..., psutil.Popen]) -> None:
    parent = spawned(FAMILY, state_module.data_argument("/data/mine"))
    state.write_state(state_of("mine", parent.pid, parent.create_time()))
    parent.kill()  # a zombie, until its parent asks
    wait_until(lambda: not state_module.node_states()[0].running)


@pytest.mark.attack(79)
def test_a_node_whose_start_was_killed_is_found_by_its_data(spawned: Callable[..., psutil.Popen]) -> None:
    lost = spawned(FAMILY, state_module.data_argument("/data/lost"))
    assert [each.pid for each in state.find_strays(Path("/data/lost"))] == [lost.pid]
    assert state.find_strays(Path("/data/none")) == []


def test_a_node_finds_the_native_libraries_of_its_home(tmp_path: Path) -> None:
    process.spawn(["/usr/bin/env"], tmp_path, tmp_path / "log").wait(30)
    assert f"LD_LIBRARY_PATH={tmp_path}/plugins/opensearch-knn/lib" in (tmp_path / "log").read_text()
