"""What holds text of documents on this machine is known, and goes away when it is told to."""

from __future__ import annotations

from pathlib import Path

from hybridr.files.remembered import clean, remember_text, texts
from hybridr.records import Document
from hybridr.training.token_cache import GateDocuments, build_cache, open_cache
from support.tiny import tiny_tokenizer


def test_token_caches_and_held_out_documents_are_listed_and_deleted(tmp_path: Path) -> None:
    cache = tmp_path / "tokens"
    build_cache([Document("a", "balan bason"), Document("b", "miran")], tiny_tokenizer(), cache, seed=1)
    held = tmp_path / "held.jsonl"
    assert len(list(GateDocuments(held, 1).passing([Document("a", "balan bason")]))) == 1
    assert {text.path for text in texts()} >= {cache, held}
    assert held.stat().st_mode & 0o777 == 0o600
    assert all(file.stat().st_mode & 0o077 == 0 for file in cache.iterdir())
    clean()
    assert not cache.exists()
    assert not held.exists()
    assert open_cache(cache) is None
    assert texts() == []


def test_what_is_gone_is_not_listed_nor_kept(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).write_text("text")
        remember_text(tmp_path / name, "pseudo-queries", "docs")
    (tmp_path / "one").unlink()
    assert [text.path for text in texts("docs")] == [tmp_path / "two"]
    assert texts("doc") == texts("docs-hybridr-1") == []
    remember_text(tmp_path / "two", "pseudo-queries", "docs-hybridr-12")
    assert [text.path for text in texts("docs")] == [tmp_path / "two"]
