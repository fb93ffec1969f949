"""A name or a sentence-transformers folder becomes an encoder folder, once."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hybridr.encoders.export import exporting
from hybridr.encoders.export.exporting import (
    cached_encoder_folder,
    encoder_folder,
    export,
    usage_with_prefixes,
)
from hybridr.encoders.export.model_files import write_model
from hybridr.encoders.export.weights import open_without_torch
from hybridr.encoders.opening import load_encoder
from hybridr.encoders.registry import KnownEncoder, encoder_by_fingerprint, known_encoder
from hybridr.errors import DownloadError, ModelError
from hybridr.files.local import read_manifest
from support.tiny import tiny_retriever, tiny_texts


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HYBRIDR_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def foreign_folder(folder: Path, **usage: str) -> Path:
    folder.mkdir()
    write_model(tiny_retriever(**usage), folder)
    (folder / "README.md").write_text("---\nlanguage: la\n---\n")
    return folder


def test_a_foreign_folder_is_exported_once(tmp_path: Path, own_cache: Path) -> None:
    source = foreign_folder(tmp_path / "theirs")
    found = encoder_folder(source)
    written = (found / "manifest.json").stat().st_mtime_ns
    assert found.is_relative_to(own_cache)
    assert encoder_folder(str(source)) == found == encoder_folder(found)
    assert (found / "manifest.json").stat().st_mtime_ns == written
    encoder, manifest = load_encoder(found), read_manifest(found) or {}
    assert (encoder.languages, encoder.fingerprint) == (("la",), tiny_retriever().fingerprint)
    assert manifest["parity"]["max_abs_difference"] < 1e-4
    assert manifest["encoder"]["base"] == "theirs"
    texts = tiny_texts(4)
    np.testing.assert_allclose(
        encoder.encode_queries(texts), tiny_retriever().encode_queries(texts), atol=1e-5
    )


def test_weights_in_the_cache_are_not_kept_twice(tmp_path: Path, own_cache: Path) -> None:
    own_cache.mkdir()
    inside, outside = foreign_folder(own_cache / "ours"), foreign_folder(tmp_path / "theirs")
    form = open_without_torch(inside)
    assert encoder_folder(inside) == encoder_folder(outside)
    for number, source in enumerate((inside, outside)):
        target = export(open_without_torch(source), tmp_path / str(number))
        linked = (target / "model.safetensors").samefile(source / "model.safetensors")
        assert linked is (source == inside)
        assert open_without_torch(target).fingerprint == form.fingerprint


def test_a_damaged_export_is_made_again(tmp_path: Path, own_cache: Path) -> None:
    found = encoder_folder(foreign_folder(tmp_path / "theirs"))
    (found / "onnx" / "model.onnx").write_bytes(b"")
    assert load_encoder(encoder_folder(tmp_path / "theirs")).dim == 32


def test_prefixes_that_a_folder_forgot_are_those_of_its_name(tmp_path: Path) -> None:
    known = usage_with_prefixes(foreign_folder(tmp_path / "multilingual-e5-small"))
    assert known.prefixes == {"query": "query: ", "document": "passage: "}
    assert (
        usage_with_prefixes(foreign_folder(tmp_path / "e5-small-v2", query="ask ")).prefixes["query"]
        == "ask "
    )


@pytest.mark.model
def test_the_packaged_encoder_has_a_name_too(minilm_encoder_folder: Path) -> None:
    assert encoder_folder("sentence-transformers/all-MiniLM-L6-v2") == minilm_encoder_folder
    assert encoder_folder("minilm") == minilm_encoder_folder


@pytest.fixture
def chinese(monkeypatch: pytest.MonkeyPatch) -> KnownEncoder:
    """Put a tiny retriever into the place of a packaged one, whose hub is silent."""
    entry = known_encoder("bge-small-zh-v1.5")
    tiny = tiny_retriever(seed=7)
    package = replace(entry.package, fingerprint=tiny.fingerprint)
    entry = replace(entry, package=package)
    monkeypatch.setattr("hybridr.encoders.registry.ENCODERS", (entry,))
    monkeypatch.setattr(exporting, "packaged_retriever", lambda *_, **__: tiny)
    monkeypatch.setattr(exporting, "try_hub", lambda _: "no route to host")
    return entry


def test_a_packaged_encoder_comes_from_the_registry_where_the_hub_is_silent(own_cache, chinese, monkeypatch):
    notes: list[str] = []
    folder = encoder_folder(chinese.name, progress=lambda stage, *_: notes.append(stage))
    assert folder == cached_encoder_folder(chinese.package.fingerprint)
    assert f"{chinese.name} comes from Maven" in notes
    assert encoder_by_fingerprint(chinese.package.fingerprint) == chinese
    # What was taken first stays, whatever the hub says later.
    monkeypatch.setattr(exporting, "try_hub", lambda _: pytest.fail("the hub was asked"))
    assert encoder_folder(chinese.repository) == folder


def test_a_packaged_encoder_comes_from_a_hub_that_answers_unless_an_index_has_the_packaged_one(
    tmp_path: Path, own_cache: Path, chinese: KnownEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = foreign_folder(tmp_path / chinese.name)
    monkeypatch.setattr(exporting, "try_hub", lambda _: "")
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *_, **__: str(source))
    folder = encoder_folder(chinese.name)
    assert folder != cached_encoder_folder(chinese.package.fingerprint)
    assert load_encoder(folder).fingerprint != chinese.package.fingerprint
    written = encoder_folder(chinese.name, fingerprint=chinese.package.fingerprint)
    assert written == cached_encoder_folder(chinese.package.fingerprint)


def test_a_hub_that_breaks_off_is_replaced_and_nothing_at_all_has_its_remedy(own_cache, chinese, monkeypatch):
    def broken(*_: object, **__: object) -> str:
        raise OSError("connection reset")

    def away(*_: object, **__: object) -> None:
        raise DownloadError("the jar could not be downloaded")

    monkeypatch.setattr(exporting, "try_hub", lambda _: "")
    monkeypatch.setattr("huggingface_hub.snapshot_download", broken)
    with monkeypatch.context() as patch:
        patch.setattr(exporting, "packaged_retriever", away)
        with pytest.raises(DownloadError, match="the jar could .* hub: .*connection reset") as caught:
            encoder_folder(chinese.name)
    hint = str(caught.value.hint)
    assert "langchain4j-embeddings-bge-small-zh-v15-q-0.36.2.jar" in hint
    assert "hf download BAAI/bge-small-zh-v1.5" in hint
    assert encoder_folder(chinese.name) == cached_encoder_folder(chinese.package.fingerprint)


def test_a_name_that_nobody_knows_is_a_clear_error() -> None:
    with pytest.raises(
        ModelError, match="no encoder folder all-mpnet, and no encoder of that name"
    ) as caught:
        encoder_folder("all-mpnet")
    assert "hybridr models" in str(caught.value.hint)


@pytest.mark.parametrize("name", ["multilingual-e5-small", "intfloat/multilingual-e5-small"])
def test_without_the_hub_the_way_around_is_named(name: str, own_cache: Path, monkeypatch) -> None:
    def away(*given: object, **options: object) -> str:
        raise OSError("no route to host")

    monkeypatch.setattr("huggingface_hub.snapshot_download", away)
    with pytest.raises(DownloadError, match="could not be fetched from the model hub: no route") as caught:
        encoder_folder(name)
    download = "hf download intfloat/multilingual-e5-small --local-dir multilingual-e5-small"
    assert download in str(caught.value.hint)


def test_what_was_fetched_first_stays(tmp_path, own_cache: Path, monkeypatch) -> None:
    refs = own_cache / "hub" / "models--owner--model" / "refs"
    refs.mkdir(parents=True)
    (refs / "main").write_text("0a1b")
    source = foreign_folder(tmp_path / "theirs")
    asked = {}

    def fetched(repository: str, **options: object) -> str:
        asked.update(options, repository=repository)
        return str(source)

    monkeypatch.setattr("huggingface_hub.snapshot_download", fetched)
    assert load_encoder(encoder_folder("owner/model")).dim == 32
    assert (asked["repository"], asked["revision"]) == ("owner/model", "0a1b")
    shutil.rmtree(own_cache / "hub")
    assert load_encoder(encoder_folder("owner/model")).dim == 32
    assert asked["revision"] == source.name, "the revision is remembered beside the cache, with its hashes"
