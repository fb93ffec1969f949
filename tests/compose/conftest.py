"""The composed stack, started once: engine, stand-in images, a copy of the checkout, two services."""

import os
import secrets
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.engine import Stack, compose_v2, install_missing, run, running_engine
from support.images import DASHBOARDS, base_images, drop_leftovers
from support.places import ROOT

PACKAGES = ("cli", "hybridr", "opensearch")
CONTEXT = ("pyproject.toml", "README.md", "LICENSE", *PACKAGES)
COMPOSE = ("docker-compose.yml", ".dockerignore")
OVERRIDE = """\
# Made by the test: builds use the network of this machine, and its proxies.
services:
  encoder:
    image: hybridr-standin/encoder
    build:
      network: host
      args: {args}
  sync:
    image: hybridr-standin/encoder
"""
REPORT: list[str] = []


@pytest.fixture(scope="session")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Have a Docker engine and docker-compose."""
    if sys.platform != "linux" or os.geteuid() != 0:
        pytest.exit("these tests install and start a Docker engine: run them as root on Debian", 1)
    installed = install_missing()
    with running_engine(tmp_path_factory.mktemp("engine") / "dockerd.log") as ours:
        REPORT.append(f"installed now: {', '.join(installed) or 'nothing'}")
        REPORT.append(f"engine: {'started and stopped by this test' if ours else 'was running, was left so'}")
        yield


@pytest.fixture(scope="session")
def images(engine: None) -> Iterator[None]:
    """Have the base images; says which are not the official ones."""
    with base_images() as stood_in:
        for name, is_standin in stood_in.items():
            REPORT.append(
                f"base image {name}: {'a local STAND-IN, not the official one' * is_standin or 'official'}"
            )
        REPORT.append("the stand-in's security plugin is that of 3.4.0, fitted to 3.6.0 for this test only")
        REPORT.append(f"NOT run: {DASHBOARDS}, which has no stand-in; images pulled from a registry")
        yield
        drop_leftovers()
        REPORT.append("kept to be faster next time: the images hybridr-standin/*")


@pytest.fixture(scope="session")
def project(tmp_path_factory: pytest.TempPathFactory, minilm_encoder_folder: Path) -> Path:
    """Copy what the build needs, with an encoder and what this machine's network asks for."""
    folder = tmp_path_factory.mktemp("project")
    for name in (*CONTEXT, *COMPOSE):
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, folder / name)
    shutil.copytree(minilm_encoder_folder, folder / "encoder")
    if bundle := ca_bundle():
        shutil.copy(bundle, folder / "extra-ca.pem")
    proxies = {name: os.environ[name] for name in ("http_proxy", "https_proxy") if name in os.environ}
    (folder / "test-override.yml").write_text(OVERRIDE.format(args=proxies))
    return folder


@pytest.fixture(scope="session", params=["1.29", "v2"])
def composed(request, engine: None, project: Path, tmp_path_factory) -> Stack:
    """Give the project under each of the two generations of compose; nothing is started yet."""
    newer = request.param == "v2"
    command = compose_v2(tmp_path_factory.mktemp("v2")) if newer else ["docker-compose"]
    version = run(*command, "version", "--short").strip().lstrip("v")
    assert version.startswith("1.29") != newer, f"{command} is {version}; Debian 12 has 1.29"
    REPORT.append(f"compose {version}: whole stack run")
    stack = Stack(command, project, f"hybridr-test-{os.getpid()}-{'v2' if newer else 'v1'}")
    stack.settle(OPENSEARCH_HEAP="512m", PIP_INDEX_URL=index_url(), HYBRIDR_SERVE_INDEX="")
    return stack


@pytest.fixture(scope="session")
def stack(composed: Stack, images: None) -> Iterator[Stack]:
    """Start the cluster and the encoder by the committed file; take both away afterwards."""
    try:
        composed.compose("build", "encoder")
        composed.settle(OPENSEARCH_PORT=free_port(), ENCODER_PORT=free_port())
        composed.compose("up", "-d", "opensearch", "encoder")
        composed.wait_healthy("opensearch", "encoder")
        yield composed
    finally:
        composed.compose("--profile", "secure", "--profile", "sync", "down", "--volumes", "--remove-orphans")


@pytest.fixture(scope="session")
def cluster_url(stack: Stack) -> str:
    """Give the address of the composed cluster."""
    return f"http://{stack.address('opensearch', 9200)}"


@pytest.fixture(scope="session")
def encoder_url(stack: Stack) -> str:
    """Give the address of the composed encoder."""
    return f"http://{stack.address('encoder', 8080)}"


@pytest.fixture(scope="session")
def secured(stack: Stack) -> dict[str, str]:
    """Start the secure profile's cluster; gives the variables by which hybridr reaches it."""
    password = f"{secrets.token_urlsafe(16)}-aA1"
    stack.settle(OPENSEARCH_INITIAL_ADMIN_PASSWORD=password, OPENSEARCH_SECURE_PORT=free_port())
    stack.compose("--profile", "secure", "up", "-d", "opensearch-secure")
    stack.wait_healthy("opensearch-secure")
    authority = stack.folder / "root-ca.pem"
    inside = f"{stack.container('opensearch-secure')}:/usr/share/opensearch/config/root-ca.pem"
    run("docker", "cp", inside, authority)
    return {
        "HYBRIDR_URL": f"https://localhost:{stack.address('opensearch-secure', 9200).split(':')[1]}",
        "HYBRIDR_USER": "admin",
        "HYBRIDR_PASSWORD": password,
        "HYBRIDR_CA_CERTS": str(authority),
    }


def free_port() -> int:
    """Find a port that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def ca_bundle() -> Path | None:
    """Find the CA bundle that this machine's own pip is told to use."""
    named = (os.environ.get(name) for name in ("PIP_CERT", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE"))
    return next((Path(name) for name in named if name and Path(name).is_file()), None)


def index_url() -> str:
    """Ask this machine's pip for a mirror; empty when it uses the public index."""
    command = [sys.executable, "-m", "pip", "config", "get", "global.index-url"]
    found = subprocess.run(command, capture_output=True, text=True).stdout.strip()
    return os.environ.get("PIP_INDEX_URL", found)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say what the stack was made of, and what was not run."""
    terminalreporter.section("compose")
    for line in REPORT:
        terminalreporter.write_line(line)
