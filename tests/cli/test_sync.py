"""How `hybridr sync --every` is stopped."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import pytest

BEGIN = """
import signal, sys, time
from hybridr_cli.commands import sync
sync.END_S = 1
stops = sync.stop_by_signals()
"""
LOST = """
class Finalizer:
    def __del__(self):
        print("ready", flush=True)
        time.sleep(10)
Finalizer()
sys.exit(130 if stops else 1)
"""
HELD = """
class Held:
    def __del__(self):
        print("ready", flush=True)
        while True:
            try:
                time.sleep(10)
            except KeyboardInterrupt:
                pass
Held()
"""


@pytest.mark.parametrize(
    ("work", "code", "number"),
    [(LOST, 130, signal.SIGINT), (LOST, 130, signal.SIGTERM), (HELD, -signal.SIGALRM, signal.SIGTERM)],
    ids=["lost", "lost by SIGTERM", "held"],
)
def test_a_signal_stops_what_loses_or_holds_its_exception(work, code, number):
    running = subprocess.Popen([sys.executable, "-c", BEGIN + work], stdout=subprocess.PIPE, text=True)
    assert running.stdout.readline() == "ready\n"
    time.sleep(0.5)  # until it sleeps
    running.send_signal(number)
    assert running.wait(20) == code
