"""States of nodes that never ran, and programs that stand in for one."""

from __future__ import annotations

from hybridr.cluster.embedded import state


def state_of(name: str, pid: int, started: float, **changes: object) -> state.NodeState:
    values = {
        "name": name,
        "version": "3.6.0",
        "url": "http://127.0.0.1:9",
        "pid": pid,
        "port": 9,
        "home": "/h",
        "data": f"/data/{name}",
        "log": "/nowhere.log",
        "secure": False,
        "user": None,
        "password_file": None,
        "ca_certs": None,
        "java": "/j",
        "started": started,
        "with_ml": False,
        "heap": "1g",
    }
    return state.NodeState(**{**values, **changes})


FAMILY = """
import subprocess, sys, time
child = subprocess.Popen(["sleep", "300"])
print(child.pid, flush=True)
time.sleep(300)
"""
STUBBORN = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("ready", flush=True)
time.sleep(300)
"""
