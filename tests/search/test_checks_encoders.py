"""Which encoder an index has: a packaged one is known by the fingerprint that the index keeps."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hybridr.cluster.record import IndexInfo
from hybridr.cluster.record_parts import VERSION
from hybridr.encoders.export import exporting
from hybridr.encoders.registry import known_encoder
from hybridr.errors import FingerprintMismatch
from hybridr.files.remembered import ENCODERS, read_state_file
from hybridr.search.checks import encoder_for, promote
from support.tiny import tiny_retriever

RECORD: dict[str, Any] = {
    **{"role": "vectors", "source": "docs", "source_uuid": "1", "job": "j", "state": "complete"},
    **{"dim": 32, "similarity": "cosine", "vector_field": "v", "fields": ["text"], "version": VERSION},
}


def written_by(fingerprint: str) -> IndexInfo:
    record = RECORD | {"encoder": fingerprint}
    return IndexInfo("docs-hybridr", {"index.uuid": "2"}, {"_meta": {"hybridr": record}}, {})


def test_an_index_of_another_machine_finds_the_packaged_encoder_that_wrote_it(tmp_path, monkeypatch) -> None:
    entry, tiny = known_encoder("bge-small-zh-v1.5"), tiny_retriever(seed=7)
    entry = replace(entry, package=replace(entry.package, fingerprint=tiny.fingerprint))
    monkeypatch.setenv("HYBRIDR_HOME", str(tmp_path))
    monkeypatch.setattr("hybridr.encoders.registry.ENCODERS", (entry,))
    monkeypatch.setattr(exporting, "packaged_retriever", lambda *_, **__: tiny)
    monkeypatch.setattr(exporting, "try_hub", lambda _: pytest.fail("the hub was asked"))
    for name in (None, entry.name, Path(entry.name)):
        assert encoder_for(written_by(tiny.fingerprint), name).fingerprint == tiny.fingerprint
    with pytest.raises(FingerprintMismatch):
        encoder_for(written_by("0" * 64), entry.name)


def test_what_was_fitted_by_the_name_of_an_alias_serves_the_source(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("HYBRIDR_HOME", str(tmp_path))
    source, vectors = IndexInfo("docs", {"index.uuid": "1"}, {}, {}), written_by("0" * 64)
    for info, encoder in ((source, "first"), (vectors, "second")):
        promote(SimpleNamespace(index_info=lambda _, info=info: info), info.name, tmp_path / encoder)
        assert read_state_file(ENCODERS) == {"1": str(tmp_path / encoder)}
