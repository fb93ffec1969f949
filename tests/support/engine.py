"""The Docker engine of these tests: from Debian's packages, and started, when it is not there."""

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PACKAGES = {"dockerd": "docker.io", "docker-compose": "docker-compose", "debootstrap": "debootstrap"}
START_TIMEOUT_S = 60
NEWER = "trixie"  # the Debian whose package docker-compose is v2
KEYS = "/usr/share/keyrings/debian-archive-keyring.gpg"


def run(*command: str | Path, **options) -> str:
    """Run a command and give its stdout; a failure shows the end of everything it said."""
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, **options)
    if done.returncode != 0:
        said = (done.stdout + done.stderr)[-4000:]
        raise AssertionError(f"{' '.join(map(str, command))} ended with {done.returncode}:\n{said}")
    return done.stdout


def answers() -> bool:
    """Tell whether a Docker engine is running."""
    return (
        shutil.which("docker") is not None
        and subprocess.run(["docker", "info"], capture_output=True).returncode == 0
    )


def install_missing() -> list[str]:
    """Install what is missing of engine, compose and debootstrap; services are not started."""
    wanted = [command for command in PACKAGES if command != "dockerd" or not answers()]
    missing = [PACKAGES[command] for command in wanted if shutil.which(command) is None]
    if missing:
        quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
        run("apt-get", "update", "-q", env=quiet)
        run("apt-get", "install", "-q", "-y", "--no-install-recommends", *missing, env=quiet)
    return missing


@contextmanager
def running_engine(log: Path) -> Iterator[bool]:
    """Have an engine for the length of the block; gives whether it was started, and is stopped, by us."""
    if answers():
        yield False
        return
    with log.open("w") as output:
        process = subprocess.Popen(["dockerd"], stdout=output, stderr=output, start_new_session=True)
    try:
        deadline = time.monotonic() + START_TIMEOUT_S
        while not answers():
            if process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"dockerd does not answer: {log.read_text()[-2000:]}")
            time.sleep(0.5)
        yield True
    finally:
        process.terminate()
        process.wait(60)


def package_mirror(release: str = "bookworm") -> str | None:
    """Name the package mirror that this machine's apt uses, if it is a Debian."""
    wanted = ("Created-By: Packages", f"Release: {release}", "Component: main", "Origin: Debian")
    found = run("apt-get", "indextargets", "--format", "$(REPO_URI)", *wanted).split()
    return found[0] if found else None


def compose_v2(folder: Path) -> list[str]:
    """Give the command of compose v2: that of this machine, else the one of a newer Debian, unpacked."""
    if subprocess.run(["docker", "compose", "version"], capture_output=True).returncode == 0:
        return ["docker", "compose"]
    for part in ("lists/partial", "cache/archives/partial"):
        (folder / part).mkdir(parents=True)
    (folder / "sources.list").write_text(f"deb [signed-by={KEYS}] {package_mirror()} {NEWER} main\n")
    places = {"Etc::sourcelist": "sources.list", "State::lists": "lists", "Cache": "cache"}
    options = [part for name, place in places.items() for part in ("-o", f"Dir::{name}={folder / place}")]
    options += ["-o", "Dir::Etc::sourceparts=-", "-o", "APT::Sandbox::User=root"]
    run("apt-get", *options, "update", "-q")
    run("apt-get", *options, "download", "-q", "docker-compose", cwd=folder)
    run("dpkg-deb", "-x", *folder.glob("docker-compose_*.deb"), folder / "unpacked")
    return [str(folder / "unpacked/usr/libexec/docker/cli-plugins/docker-compose")]


class Stack:
    """One compose project in a folder of its own; `command` is docker-compose 1.29 or v2."""

    def __init__(self, command: list[str], folder: Path, name: str) -> None:
        self.command = command
        self.folder = folder
        self.name = name

    def compose(self, *arguments: str) -> str:
        """Run compose in the project."""
        return run(*self.command, "-p", self.name, *self._files(), *arguments, cwd=self.folder)

    def settle(self, **values: object) -> None:
        """Set variables in the project's .env; those that are there already stay."""
        path = self.folder / ".env"
        lines = path.read_text().splitlines() if path.is_file() else []
        known = dict(line.split("=", 1) for line in lines)
        path.write_text("".join(f"{name}={value}\n" for name, value in {**known, **values}.items()))

    def _files(self) -> list[str]:
        return ["-f", "docker-compose.yml", "-f", "test-override.yml"]

    def container(self, service: str) -> str:
        """Give the id of a service's container."""
        return self.compose("--profile", "secure", "--profile", "sync", "ps", "-q", service).strip()

    def address(self, service: str, port: int) -> str:
        """Give where a service's port is on this machine, as host:port."""
        return self.compose("--profile", "secure", "port", service, str(port)).strip()

    def health(self, service: str) -> str:
        """Give what the container's own health check says."""
        return run("docker", "inspect", "-f", "{{.State.Health.Status}}", self.container(service)).strip()

    def wait_healthy(self, *services: str, timeout_s: float = 240) -> None:
        """Wait for the health checks; a failure shows the container's log."""
        deadline = time.monotonic() + timeout_s
        for service in services:
            while (state := self.health(service)) != "healthy":
                if state != "starting" or time.monotonic() > deadline:
                    log = self.compose("logs", "--no-color", "--tail=60", service)
                    raise AssertionError(f"{service} is {state}:\n{log}")
                time.sleep(1)
