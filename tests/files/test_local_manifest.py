"""Manifests and fingerprints."""

from __future__ import annotations

from pathlib import Path

import pytest

from hybridr.errors import DataError
from hybridr.files.local import fingerprint, read_manifest, sha256_of, write_manifest


def test_fingerprint_ignores_order_and_sees_values() -> None:
    assert fingerprint({"a": 1, "b": [2]}) == fingerprint({"b": [2], "a": 1})
    assert fingerprint({"a": 1}) != fingerprint({"a": 2})


def test_manifest_records_outputs_and_versions(tmp_path: Path) -> None:
    (tmp_path / "weights").write_bytes(b"abc")
    write_manifest(tmp_path, stage="test", settings={"k": 1}, inputs={}, outputs=["weights"], parents=["p"])
    record = read_manifest(tmp_path)
    assert (record["outputs"], record["parents"]) == ({"weights": sha256_of(tmp_path / "weights")}, ["p"])
    assert {"python", "numpy"} <= record["versions"].keys()
    assert read_manifest(tmp_path / "elsewhere") is None


def test_damaged_manifest_is_named(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text("{")
    with pytest.raises(DataError, match=r"manifest.json is not valid JSON"):
        read_manifest(tmp_path)
