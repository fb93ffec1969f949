"""Hosts on one machine: each with an address, a name, processes and files of its own, by namespaces of Linux.

Needs root. They share what the machine has on its disk, as the program and its packages are the same on
every host; `own` is where each has a file system that the others do not see, and so is /dev/shm.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

NETWORK = f"10.77.{os.getpid() % 250}"
NAME = f"h{os.getpid()}"  # of what lies in the tables of the machine; a device's has 15 characters at most
INIT = "trap : CHLD; while :; do sleep 1000 & wait $!; done"  # the first process of a host buries the others


class Hosts:
    """A network of hosts, and this process at its end: `gateway` is its address there."""

    gateway = f"{NETWORK}.254"

    def __init__(self, own: Path, names: Sequence[str]) -> None:
        own.mkdir(parents=True, exist_ok=True)
        call("ip", "link", "add", NAME, "type", "bridge")
        call("ip", "addr", "add", f"{self.gateway}/24", "dev", NAME)
        call("ip", "link", "set", NAME, "up")
        self.all = [Host(name, number, own) for number, name in enumerate(names, 1)]

    def end(self) -> None:
        """Take all hosts and the network away."""
        for host in self.all:
            host.kill()
            with suppress(subprocess.CalledProcessError):
                call("ip", "netns", "del", host.space)
        call("ip", "link", "del", NAME)


class Host:
    """One host; `own` is a file system of its own of `megabytes`."""

    def __init__(self, name: str, number: int, own: Path, megabytes: int = 2000) -> None:
        self.name, self.own, self.megabytes = name, own, megabytes
        self.space, self.address, self.link = f"{NAME}-{number}", f"{NETWORK}.{number}", f"{NAME}-{number}"
        self.environment: dict[str, str] = {}
        self._first: subprocess.Popen[bytes] | None = None
        call("ip", "netns", "add", self.space)
        call("ip", "link", "add", self.link, "type", "veth", "peer", "name", "eth0", "netns", self.space)
        call("ip", "link", "set", self.link, "master", NAME, "up")
        call("ip", "-n", self.space, "addr", "add", f"{self.address}/24", "dev", "eth0")
        for device in ("eth0", "lo"):
            call("ip", "-n", self.space, "link", "set", device, "up")
        self.boot()

    def boot(self) -> None:
        """Start with empty file systems."""
        mounts = [
            "mount --make-rprivate /",
            "mount -t tmpfs -o size=300m tmpfs /dev/shm",
            f"mount -t tmpfs -o size={self.megabytes}m tmpfs {self.own}",
            f"mkdir -p {self.own}/home {self.own}/tmp",
            f"hostname {self.name}",
            f"touch {self.own}/up",
        ]
        spaces = ["unshare", "--mount", "--uts", "--ipc", "--pid", "--fork", "--kill-child", "--mount-proc"]
        self._first = subprocess.Popen(
            ["nsenter", f"--net=/run/netns/{self.space}", *spaces, "bash", "-c", " && ".join([*mounts, INIT])]
        )
        deadline = time.monotonic() + 30
        while self.try_run("test", "-e", f"{self.own}/up"):
            assert time.monotonic() < deadline, f"{self.name} does not start"
            time.sleep(0.05)

    @property
    def first(self) -> int:
        """Give the number, as this process sees it, of the host's first process; 0 before it is there."""
        children = Path(f"/proc/{self._first.pid}/task/{self._first.pid}/children").read_text().split()
        return int(children[0]) if children else 0

    def command(self, *words: str) -> list[str]:
        """Give the command that runs a command on the host."""
        spaces = ["--net", "--mount", "--uts", "--ipc", "--pid"]
        own = {
            "HOME": f"{self.own}/home",
            "TMPDIR": f"{self.own}/tmp",
            "HYBRIDR_HOME": f"{self.own}/home/hybridr",
        }
        values = [f"{name}={value}" for name, value in {**own, **self.environment}.items()]
        return ["nsenter", "-t", str(self.first), *spaces, f"--wd={os.getcwd()}", "env", *values, *words]

    def try_run(self, *words: str) -> int:
        """Run a command and give its exit status."""
        return (
            self.first == 0
            or subprocess.run(self.command(*words), check=False, capture_output=True).returncode
        )

    def run(self, *words: str, **given: Any) -> str:
        """Run a command to its end and give what it printed."""
        done = subprocess.run(self.command(*words), check=False, capture_output=True, text=True, **given)
        assert done.returncode == 0, f"{self.name}: {' '.join(words)}: {done.stdout}{done.stderr}"
        return str(done.stdout)

    def holds(self, name: str) -> bool:
        """Tell whether a process of this name runs there."""
        return self.try_run("pgrep", "-f", name) == 0

    def start(self, *words: str, **given: Any) -> subprocess.Popen[str]:
        """Start a command."""
        return subprocess.Popen(self.command(*words), text=True, **given)

    def cut(self) -> None:
        """Pull the plug of the network."""
        call("ip", "link", "set", self.link, "down")

    def join(self) -> None:
        """Put the plug in again."""
        call("ip", "link", "set", self.link, "up")

    def kill(self) -> None:
        """Kill every process of the host, as a power cut does; its file systems go too."""
        if self._first is not None:
            with suppress(ProcessLookupError):
                os.kill(self.first or self._first.pid, signal.SIGKILL)
            self._first.wait()


def call(*words: str) -> None:
    """Run a command of this machine."""
    subprocess.run(words, check=True, capture_output=True)
