"""Sessions of ONNX Runtime: mapped copies of graphs give the same vectors, and never stand in the way."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hybridr.encoders import sessions
from hybridr.encoders.engines import GRAPHS
from hybridr.encoders.opening import OnnxEncoder, load_encoder
from hybridr.encoders.sessions import open_mapped
from hybridr.errors import ModelError
from hybridr.files.local import cache_folder, sha256_of
from support.tiny import tiny_texts

pytestmark = pytest.mark.usefixtures("fresh_home")
TEXTS = tiny_texts(20, seed=4)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HYBRIDR_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(sessions, "MIN_MAPPED_BYTES", 0)


def copies() -> list[Path]:
    return sorted((cache_folder() / "mapped").glob("*"))


def read_without_copy(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> OnnxEncoder:
    with monkeypatch.context() as patch:
        patch.setattr("hybridr.encoders.engines.open_mapped", lambda graph, _: sessions.open_session(graph))
        return load_encoder(tiny, precision="fp32", threads=1)


def test_a_mapped_graph_gives_the_same_vectors_to_the_bit(tiny: Path, monkeypatch) -> None:
    plain = read_without_copy(tiny, monkeypatch)
    assert copies() == []
    first, second = (load_encoder(tiny, precision="fp32", threads=1) for _ in range(2))
    [copy] = copies()
    assert copy.name.startswith(sha256_of(tiny / GRAPHS["fp32"])[:32])
    for encoder in (first, second):
        assert np.array_equal(encoder.encode_documents(TEXTS), plain.encode_documents(TEXTS))
        states = [reading.states for reading in encoder.read_documents(TEXTS)]
        for ours, theirs in zip(states, plain.read_documents(TEXTS), strict=True):
            assert np.array_equal(ours, theirs.states)


def test_a_damaged_copy_is_made_again(tiny: Path) -> None:
    expected = load_encoder(tiny, precision="fp32", threads=1).encode_documents(TEXTS)
    [copy] = copies()
    for damaged in (b"", b"no graph", copy.read_bytes()[:-1000]):
        copy.write_bytes(damaged)
        assert np.array_equal(
            load_encoder(tiny, precision="fp32", threads=1).encode_documents(TEXTS), expected
        )
        load_encoder(tiny, precision="fp32", threads=1)
        assert copies() == [copy]
        assert copy.stat().st_size > 1000


def test_a_cache_that_cannot_be_written_is_no_obstacle(tiny: Path) -> None:
    cache_folder().mkdir(parents=True, exist_ok=True)
    (cache_folder() / "mapped").write_text("a file where the folder would be")
    assert load_encoder(tiny, precision="fp32").encode_documents(TEXTS).shape == (20, 32)


def test_a_small_graph_needs_no_copy(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "MIN_MAPPED_BYTES", (tiny / GRAPHS["fp32"]).stat().st_size + 1)
    load_encoder(tiny, precision="fp32")
    assert copies() == []


def test_a_few_copies_stay(tiny: Path) -> None:
    graph = tiny / GRAPHS["fp32"]
    for number in range(sessions.MAX_COPIES + 2):
        open_mapped(graph, f"{number:032d}")
    assert len(copies()) == sessions.MAX_COPIES
    assert copies()[-1].name.startswith(f"{sessions.MAX_COPIES + 1:032d}")


def test_a_graph_that_is_none_is_named_not_its_copy(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(b"no graph")
    with pytest.raises(ModelError, match=r"model\.onnx cannot be opened"):
        open_mapped(tmp_path / "model.onnx", "0" * 64)
    assert copies() == []
