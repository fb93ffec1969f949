from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from hybridr.cluster.embedded import configuration
from hybridr.cluster.embedded.layout import Java
from hybridr.cluster.settings import NodeSettings
from hybridr.errors import NodeError


@pytest.mark.parametrize(("limit", "is_off"), [("1024\n", True), ("65530\n", False), (None, False)])
def test_few_memory_maps_switch_mapping_off(limit: str | None, is_off: bool, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(configuration, "MAP_LIMIT", tmp_path / "max_map_count")
    if limit:
        (tmp_path / "max_map_count").write_text(limit)
    values = configuration.node_settings(NodeSettings(), tmp_path, 9200)
    assert ("node.store.allow_mmap" in values) is is_off


FRAME = """Exception in thread "main" java.lang.RuntimeException: starting java failed with [1]
output:
{}
error:
{}
\tat org.opensearch.tools.launchers.JvmErgonomics.flagsFinal(JvmErgonomics.java:125)
"""
SPACE = "Could not reserve enough space for 94371840000000 KB object heap"
SIZE = "Invalid initial heap size: -Xms1x"


@pytest.mark.parametrize(
    ("output", "error", "reason"),
    [
        (f"Error occurred during initialization of VM\n{SPACE}", "", SPACE),
        ("", f"{SIZE}\nError: Could not create the Java Virtual Machine.", SIZE),
    ],
)
def test_the_reason_is_named_why_java_refuses_a_heap(output, error, reason, monkeypatch) -> None:
    refusal = subprocess.CompletedProcess([], 1, "", FRAME.format(output, error))
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: refusal)
    with pytest.raises(NodeError, match=f"refuses to start with a heap of 1x: {reason}"):
        configuration.jvm_arguments(Path("conf"), Path("home"), Java(Path("java"), 25, packaged=False), "1x")
