"""What holds text of documents on this machine is known, and goes away when it is told to."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import hybridr_cli
from hybridr.files.local import append_private, replacing
from hybridr.files.remembered import (
    REGISTER,
    REJECTS,
    SHADOWS,
    delete_texts,
    file_of_index,
    local_texts,
    read_state_file,
    remember_text,
)
from hybridr.records import Document
from hybridr.training.token_cache import GateDocuments, build_cache, open_cache
from support.tiny import tiny_tokenizer


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HYBRIDR_HOME", str(tmp_path.with_name(f"{tmp_path.name}-home")))


def test_token_caches_and_held_out_documents_are_listed_and_deleted(tmp_path: Path) -> None:
    cache = tmp_path / "tokens"
    build_cache([Document("a", "balan bason"), Document("b", "miran")], tiny_tokenizer(), cache, seed=1)
    held = tmp_path / "held.jsonl"
    assert len(list(GateDocuments(held, 1).passing([Document("a", "balan bason")]))) == 1
    assert {text.path for text in local_texts()} >= {cache, held}
    assert held.stat().st_mode & 0o777 == 0o600
    assert all(file.stat().st_mode & 0o077 == 0 for file in cache.iterdir())
    delete_texts(local_texts())
    assert not cache.exists()
    assert not held.exists()
    assert open_cache(cache) is None
    assert local_texts() == []


def register(path: Path) -> None:
    """Write a file as hybridr does, and register it."""
    with replacing(path, private=True) as temporary:
        temporary.write_text("text")
        remember_text(path, "a throwaway kind", temporary=temporary)


def test_what_is_gone_is_not_listed_nor_kept(tmp_path: Path) -> None:
    for name in ("one", "two"):
        register(tmp_path / name)
    (tmp_path / "one").unlink()
    assert [(text.path, text.bytes, text.ours) for text in local_texts()] == [(tmp_path / "two", 4, True)]
    register(tmp_path / "three")
    assert read_state_file(REGISTER).keys() == {str(tmp_path / name) for name in ("two", "three")}
    assert local_texts("docs") == []


@pytest.mark.parametrize("kind", ["file", "folder", "link", "nested", "beside", "empty manifest"])
def test_what_took_the_place_of_a_registered_text_is_named_and_stays(tmp_path: Path, kind: str) -> None:
    """A registered path says where hybridr wrote once; what is there now may be the user's."""
    held, cache, own = tmp_path / "held.jsonl", tmp_path / "tokens", tmp_path / "own"
    register(held)
    build_cache([Document("a", "balan bason"), Document("b", "miran")], tiny_tokenizer(), cache, seed=1)
    own.mkdir()
    (own / "report.txt").write_text("a year's work")
    if kind == "file":
        held.write_text("mine")
    elif kind == "link":
        held.rename(tmp_path / "away")
        held.symlink_to(own / "report.txt")
    elif kind == "folder":
        held.unlink()
        own.rename(held)
    elif kind == "beside":
        (cache / "notes.txt").write_text("mine")
    elif kind == "nested":
        shutil.copytree(own, cache / "ids.bin.d")
    else:
        for file in set(cache.iterdir()) - {cache / "manifest.json"}:
            file.unlink()
    replaced = cache if kind in ("beside", "nested", "empty manifest") else held
    before = sorted(tmp_path.rglob("*"))
    listed = {text.path: text for text in local_texts()}
    assert {path: of.ours for path, of in listed.items()} == {one: replaced != one for one in (held, cache)}
    assert [text.path for text in delete_texts([listed[replaced]])] == []
    assert sorted(tmp_path.rglob("*")) == before
    hybridr_cli.main(["clean", "--yes"])
    assert [text.path for text in local_texts()] == [replaced]
    assert replaced.exists()


def test_half_written_texts_of_a_killed_process_are_cleaned(tmp_path: Path) -> None:
    cache = tmp_path / "tokens"
    documents = (Document(str(number), f"balan {number}" if number < 600 else 1 / 0) for number in range(700))
    with pytest.raises(ZeroDivisionError):
        build_cache(documents, tiny_tokenizer(), cache, seed=1)
    (cache / ".manifest.json.a1b2_3d4").write_text("{")
    refused = file_of_index(REJECTS, ".docs", "u1")
    append_private(refused, "{}")
    (refused.parent / "..docs#u1.jsonl.a1b2_3d4").write_text("half")
    (refused.parent / "of-the-user.jsonl").write_text("mine")
    assert len(delete_texts(local_texts())) == 3
    assert list(refused.parent.iterdir()) == [refused.parent / "of-the-user.jsonl"]
    assert not cache.exists()


def test_files_of_two_clusters_are_told_apart_by_the_uuid(capsys: pytest.CaptureFixture[str]) -> None:
    files = [
        file_of_index(folder, name, uuid)
        for folder, name, uuid in [
            (REJECTS, "docs-hybridr-1", "u2"),
            (REJECTS, "docs-hybridr-1", "u3"),
            (SHADOWS, "docs", "u1"),
            (SHADOWS, "docs-too", "u4"),
        ]
    ]
    for file in files:
        append_private(file, "{}")
    assert [text.path for text in local_texts("docs")] == files[:3]
    assert [text.path for text in local_texts("docs-hybridr-1#u2")] == files[:1]
    assert hybridr_cli.main(["clean", "docs", "--yes"]) == 2, "which of both is meant has to be said"
    told = capsys.readouterr()
    assert "docs-hybridr-1#u2, docs-hybridr-1#u3" in told.err
    assert all(str(file) in told.out for file in files[:3])
    assert all(file.exists() for file in files)
    assert hybridr_cli.main(["clean", "docs-hybridr-1#u2", "--yes"]) == 0
    assert [file.exists() for file in files] == [False, True, True, True]
    assert hybridr_cli.main(["clean", "docs", "--yes"]) == 0
    assert [file.exists() for file in files] == [False, False, False, True]
