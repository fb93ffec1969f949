"""Which encoder an index has: a packaged one is known by the fingerprint that the index keeps."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hybridr.cluster.record import IndexInfo
from hybridr.encoders.export import exporting
from hybridr.encoders.registry import known_encoder
from hybridr.errors import DownloadError, FingerprintMismatch, ModelError
from hybridr.files.remembered import ENCODERS, read_state_file, remember_encoder
from hybridr.search.checks import encoder_for, promote
from support.indices import index_with_vectors
from support.tiny import tiny_retriever


def test_an_index_of_another_machine_finds_the_packaged_encoder_that_wrote_it(tmp_path, monkeypatch) -> None:
    entry, tiny = known_encoder("bge-small-zh-v1.5"), tiny_retriever(seed=7)
    entry = replace(entry, package=replace(entry.package, fingerprint=tiny.fingerprint))
    monkeypatch.setenv("HYBRIDR_HOME", str(tmp_path))
    monkeypatch.setattr("hybridr.encoders.registry.ENCODERS", (entry,))
    monkeypatch.setattr(exporting, "packaged_retriever", lambda *_, **__: tiny)
    monkeypatch.setattr(exporting, "try_hub", lambda _: pytest.fail("the hub was asked"))
    for name in (None, entry.name, Path(entry.name)):
        assert encoder_for(index_with_vectors(encoder=tiny.fingerprint), name).fingerprint == tiny.fingerprint
    with pytest.raises(FingerprintMismatch):
        encoder_for(index_with_vectors(encoder="0" * 64), entry.name)

    [folder] = read_state_file(ENCODERS).values()
    with monkeypatch.context() as patch:
        patch.setattr("hybridr.search.checks.find_encoder_folder", lambda path, *_, **__: Path(path))
        assert encoder_for(index_with_vectors(encoder=tiny.fingerprint), None).folder == Path(folder), (
            "opened at once"
        )
    shutil.rmtree(folder)  # the cache was cleared
    assert encoder_for(index_with_vectors(encoder=tiny.fingerprint), None).fingerprint == tiny.fingerprint
    (tmp_path / "state" / ENCODERS).unlink()
    monkeypatch.setattr("hybridr.search.checks.remember_encoder", unwritable)
    assert encoder_for(index_with_vectors(encoder=tiny.fingerprint), None).fingerprint == tiny.fingerprint


def unwritable(*_: Any) -> None:
    raise DownloadError("the disk is full")


def test_an_encoder_of_its_own_that_is_gone_is_named(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("HYBRIDR_HOME", str(tmp_path))
    remember_encoder("5" * 64, tmp_path / "gone")
    with pytest.raises(ModelError, match="was in .*gone, which is gone"):
        encoder_for(index_with_vectors(encoder="5" * 64), None)


def test_what_was_fitted_by_the_name_of_an_alias_serves_the_source(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("HYBRIDR_HOME", str(tmp_path))
    source, vectors = IndexInfo("docs", {"index.uuid": "1"}, {}, {}), index_with_vectors(encoder="0" * 64)
    for info, encoder in ((source, "first"), (vectors, "second")):
        promote(SimpleNamespace(index_info=lambda _, info=info: info), info.name, tmp_path / encoder)
        assert read_state_file(ENCODERS) == {"1": str(tmp_path / encoder)}
