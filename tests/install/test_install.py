"""The package in an environment of its own, without torch: `make test-install`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from hybridr.cluster.connection import Cluster
from support.wheels import built_wheel


@pytest.fixture(scope="module")
def bare_hybridr(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the wheel with its dependencies, and no extra, into an environment of its own."""
    wheel = built_wheel(tmp_path_factory.mktemp("built"))
    folder = tmp_path_factory.mktemp("bare")
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    python = folder / "bin" / "python"
    subprocess.run([str(python), "-m", "pip", "install", "-q", str(wheel)], check=True)
    return python


@pytest.mark.node
@pytest.mark.model
def test_the_demo_adapts_and_exports_where_the_package_is_installed_without_torch(
    bare_hybridr: Path, cluster: Cluster, tmp_path: Path
) -> None:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [str(bare_hybridr), *arguments]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    for package in ("torch", "transformers", "peft", "accelerate"):
        assert run("-c", f"import {package}").returncode == 1, package
    demo = run("-c", "from hybridr.demo.demo import demonstrate; demonstrate(documents=80)")
    assert demo.returncode == 0, demo.stderr
    out = tmp_path / "adapted"
    adapted = run("-m", "hybridr_cli", "adapt", "--index", "pydocs", "--out", str(out), "--url", cluster.url)
    assert adapted.returncode == 0, adapted.stderr
    assert f"encoder    {out}" in adapted.stdout
    exported = run("-m", "hybridr_cli", "export", "minilm", "--out", str(tmp_path / "exported"))
    assert exported.returncode == 0, exported.stderr
    for info in cluster.indices("pydocs*"):
        cluster.request("DELETE", f"/{info.name}")
