"""The first stage on a real node: all texts, told by shard and `_seq_no`, and gone on with after a break."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hybridr import ReindexSettings
from hybridr.cluster.connection import path_of
from hybridr.cluster.field_values import text_of
from hybridr.cluster.reading import read_documents
from hybridr.errors import ClusterError, DataError
from hybridr.files.local import read_manifest
from hybridr.indexing.stages import transfer
from hybridr.indexing.stages.bundle import TEXTS, StageFolder, TextsLabel, claimed, read_label, read_part
from hybridr.indexing.stages.transfer import export_text
from support.corpus import bulk, delete, fill_index, put_documents, text_number, update

SETTINGS = ReindexSettings(read_documents=10)


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "PART_DOCUMENTS", 20)


def rows(folder: Path) -> list[dict[str, Any]]:
    """Read all parts."""
    files = [folder / "texts" / name for name in StageFolder.texts(folder).parts()]
    return [row for file in files for table in read_part(file, TEXTS, "") for row in table.to_pylist()]


def test_every_text_is_there_once_and_parts_tile_each_shard(cluster, index_name, tmp_path):
    fill_index(cluster, index_name, 130, settings={"number_of_replicas": 0, "number_of_shards": 2})
    done = export_text(cluster, index_name, tmp_path, SETTINGS)
    expected = {found.doc_id: found for found in read_documents(cluster, index_name)}
    found = {row["id"]: row for row in rows(tmp_path)}
    assert (done.documents, len(rows(tmp_path))) == (130, 130)
    assert {doc_id: row["text"] for doc_id, row in found.items()} == {
        doc_id: text_of(document.source, done.fields) for doc_id, document in expected.items()
    }
    assert all(found[doc_id]["seq_no"] == document.seq_no for doc_id, document in expected.items())
    folder = tmp_path / "texts"
    behind = {0: -1, 1: -1}
    for name in StageFolder(folder, "").parts():
        label = read_label(folder / name, TextsLabel, "")
        assert label.since == behind[label.shard]
        behind[label.shard] = label.until
    manifest = read_manifest(folder)
    assert manifest["origin"]["uuid"] == cluster.index_info(index_name).uuid
    assert (manifest["outputs"].keys(), "pyarrow" in manifest["versions"]) == (
        {*StageFolder(folder, "").parts()},
        True,
    )
    assert {file.stat().st_mode & 0o777 for file in folder.glob("*.parquet")} == {0o600}


def test_a_stopped_export_goes_on_and_leaves_what_changed_to_the_last_stage(
    cluster, index_name, tmp_path, cli
):
    fill_index(cluster, index_name, 90)

    def stopping(stage: str, done: int, total: int | None = None, note: str = "") -> None:
        if done >= 40:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        export_text(cluster, index_name, tmp_path, SETTINGS, progress=stopping)
    first = {
        name: (tmp_path / "texts" / name).stat().st_mtime_ns for name in StageFolder.texts(tmp_path).parts()
    }
    assert len(first) == 2
    assert read_manifest(tmp_path / "texts") is None
    (tmp_path / "texts" / ".00000-000002.parquet.x1y2").write_bytes(b"half")
    update(cluster, index_name, "d80", text="written meanwhile")
    delete(cluster, index_name, "d81")
    put_documents(cluster, index_name, range(90, 95))
    done = export_text(cluster, index_name, tmp_path, SETTINGS)
    assert (done.documents, done.before) == (88, 40)
    assert (done.written, done.gone) == (6, 0)
    assert not {"d80", "d81", "d90"} & {row["id"] for row in rows(tmp_path)}
    kept = {name: (tmp_path / "texts" / name).stat().st_mtime_ns for name in first}
    assert kept == first, "finished parts stay"
    assert not list((tmp_path / "texts").glob(".*"))
    again = export_text(cluster, index_name, tmp_path, SETTINGS)
    assert (again.documents, again.before) == (88, 88)
    update(cluster, index_name, "d1", text="written after the export")
    delete(cluster, index_name, "d2")
    said = cli(cluster, f"export-text {index_name} --out {tmp_path}").out
    assert "7 documents were written to the index and 2 of these texts were changed or deleted" in said


def test_a_part_that_is_damaged_or_gone_is_made_again(cluster, index_name, tmp_path):
    fill_index(cluster, index_name, 70)
    export_text(cluster, index_name, tmp_path, SETTINGS)
    expected, part = rows(tmp_path), tmp_path / "texts" / "00000-000001.parquet"
    content = bytearray(part.read_bytes())
    content[len(content) // 3] ^= 1
    part.write_bytes(content)
    with pytest.raises(DataError, match="is not the file that was written") as damaged:
        export_text(cluster, index_name, tmp_path, SETTINGS)
    assert damaged.value.hint == f"rm {part}; hybridr export-text {index_name} --out {tmp_path}"
    part.unlink()
    again = export_text(cluster, index_name, tmp_path, SETTINGS)
    assert (again.documents, again.before) == (70, 20)
    assert rows(tmp_path) == expected


def test_going_on_keeps_the_fields_that_it_began_with(cluster, index_name, tmp_path):
    properties = {"first": {"type": "text"}, "second": {"type": "text"}}
    cluster.request("PUT", path_of(index_name), {"mappings": {"properties": properties}})
    put: dict[str, Any] = {"index": {}}
    bulk(cluster, index_name, [line for n in range(30) for line in (put, {"first": text_number(n)})])
    began = export_text(cluster, index_name, tmp_path, SETTINGS)
    assert began.fields == ("first",)
    bulk(cluster, index_name, [line for n in range(150) for line in (put, {"second": text_number(n)})])
    assert export_text(cluster, index_name, tmp_path / "new", SETTINGS).fields != ("first",)
    assert export_text(cluster, index_name, tmp_path, SETTINGS).fields == ("first",)


def test_an_alias_that_shows_a_part_is_refused_and_nothing_is_left(cluster, index_name, tmp_path):
    fill_index(cluster, index_name, 3)
    shown = {"index": index_name, "alias": f"{index_name}-part", "filter": {"term": {"number": 1}}}
    cluster.request("POST", "/_aliases", {"actions": [{"add": shown}]})
    with pytest.raises(ClusterError, match="is an alias with a filter"):
        export_text(cluster, f"{index_name}-part", tmp_path / "out", SETTINGS)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_of_other_texts_is_refused(cluster, index_name, tmp_path):
    fill_index(cluster, index_name, 3)
    fill_index(cluster, f"{index_name}-b", 3)
    export_text(cluster, index_name, tmp_path, SETTINGS)
    with pytest.raises(DataError, match=f"holds texts of '{index_name}'") as other:
        export_text(cluster, f"{index_name}-b", tmp_path, SETTINGS)
    assert other.value.hint == "--out with another folder"
    with pytest.raises(DataError, match="fields text; wanted"):
        export_text(cluster, index_name, tmp_path, ReindexSettings(fields=("tags",)))
    with claimed(tmp_path / "texts" / "texts"), pytest.raises(DataError, match="another process writes"):
        export_text(cluster, index_name, tmp_path, SETTINGS)
    delete(cluster, index_name, "d0")
    for name in ("d1", "d2"):
        delete(cluster, index_name, name)
    with pytest.raises(DataError, match="is empty"):
        export_text(cluster, index_name, tmp_path / "empty", SETTINGS)
    assert not (tmp_path / "empty").exists()
