"""Three stages on a real node: the same index as the direct way, and nothing stale in it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from hybridr import ReindexSettings
from hybridr.cluster.connection import Cluster
from hybridr.cluster.destinations import resolve
from hybridr.cluster.reading import read_documents
from hybridr.encoders.opening import load_encoder
from hybridr.errors import DataError, FingerprintMismatch, SettingsError
from hybridr.indexing import lag
from hybridr.indexing.reindexing import reindex
from hybridr.indexing.stages import transfer
from hybridr.indexing.stages.transfer import export_text, import_vectors, plan_import
from hybridr.indexing.stages.vectors import encode_texts
from hybridr.indexing.verification import verify
from hybridr.status.standing import remove
from support.corpus import bulk, delete, drop_indices, fill_index, fill_uneven, put_documents
from support.hashing import HashingEncoder

DOCUMENTS, PAGE = 60, 5  # and two odd ones


@pytest.fixture(scope="module")
def uneven(cluster: Cluster) -> Iterator[str]:
    """An index of three shards with documents of different lengths, one without text, one with routing."""
    name = "t-stages"
    fill_uneven(cluster, name, shards=3)
    bulk(cluster, name, [{"delete": {"_id": f"d{number}"}} for number in range(DOCUMENTS, 240)])
    bulk(cluster, name, [{"index": {"_id": "empty"}}, {"text": " "}])
    bulk(cluster, name, [{"index": {"_id": "routed", "routing": "x"}}, {"text": "a routed \ud800 text"}])
    yield name
    drop_indices(cluster, f"{name}*")


@pytest.fixture(scope="module")
def exported(cluster: Cluster, uneven: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The texts of that index in pages of 5 and several parts a shard."""
    folder = tmp_path_factory.mktemp("stages") / "out"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transfer, "PART_DOCUMENTS", 10)
        patch.setattr(lag, "SHARE", 7)
        done = export_text(cluster, uneven, folder, ReindexSettings(read_documents=PAGE, workers=2))
    assert (done.documents, done.before, done.fields) == (DOCUMENTS + 2, 0, ("title", "text"))
    assert done.parts > 6
    return folder


@pytest.fixture
def folder(exported: Path, tmp_path: Path) -> Path:
    """A copy of the texts for one test."""
    return Path(shutil.copytree(exported, tmp_path / "out"))


def held(cluster: Cluster, index: str) -> dict[str, Any]:
    """Give what an index holds of each document: its whole source with vectors, version and routing."""
    return {
        found.doc_id: (found.source, found.version, found.routing) for found in read_documents(cluster, index)
    }


@pytest.mark.model
def test_the_index_is_that_of_the_direct_way_to_the_bit(cluster, uneven, folder, minilm, monkeypatch):
    encoder, settings = (load_encoder(minilm), ReindexSettings(read_documents=PAGE, term_table=False))
    monkeypatch.setattr(lag, "SHARE", 7)
    direct = reindex(cluster, uneven, encoder, settings)
    expected, record = held(cluster, direct.destination), resolve(cluster, uneven).record
    mapping = cluster.index_info(direct.destination).mappings["properties"]
    remove(cluster, uneven)
    encode_texts(folder, minilm, settings)
    done = import_vectors(cluster, uneven, folder, encoder, settings)
    assert (done.taken, done.encoded, done.without_text) == (DOCUMENTS + 1, DOCUMENTS + 1, 1)
    assert (done.switched, done.rejected, done.documents) == (True, 0, DOCUMENTS + 2)
    assert held(cluster, done.destination) == expected
    info = resolve(cluster, uneven)
    assert (info.name, info.mappings["properties"]) == (done.destination, mapping)
    # The folder names the fields of an import.
    left_out = {"history", "source_uuid", "term_table", "fields_named"}
    assert info.record.model_dump(exclude=left_out) == record.model_dump(exclude=left_out)
    assert verify(cluster, uneven, encoder).ok
    assert reindex(cluster, uneven, encoder, settings).skipped == DOCUMENTS + 2, "a reindex finds all there"
    remove(cluster, uneven)


def test_where_the_cluster_tells_no_positions_all_is_looked_at_once_more(cluster, index_name, tmp_path):
    fill_index(cluster, index_name, 30)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transfer, "settled_position", lambda *_: None)
        export_text(cluster, index_name, tmp_path)
    encode_texts(tmp_path, HashingEncoder())
    put_documents(cluster, index_name, range(28, 33), suffix=" later")
    settings = ReindexSettings(term_table=False)
    done = import_vectors(cluster, index_name, tmp_path, HashingEncoder(), settings)
    assert (done.taken, done.encoded, done.skipped, done.documents) == (28, 33, 0, 33)
    assert verify(cluster, index_name, HashingEncoder(), sample=33).ok


def test_a_vector_of_another_text_is_not_taken(cluster, index_name, tmp_path):
    fill_index(cluster, index_name, 20)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transfer, "text_of", lambda source, fields: "another text of the same document")
        export_text(cluster, index_name, tmp_path, ReindexSettings(fields=("text",)))
    encode_texts(tmp_path, HashingEncoder())
    done = import_vectors(cluster, index_name, tmp_path, HashingEncoder(), ReindexSettings(workers=2))
    assert (done.taken, done.encoded) == (0, 20)
    assert verify(cluster, index_name, HashingEncoder(), sample=20).ok


@pytest.mark.parametrize("direct_first", [True, False])
def test_either_way_goes_on_where_the_other_stopped(cluster, index_name, tmp_path, direct_first):
    fill_index(cluster, index_name, 120)
    settings = ReindexSettings(read_documents=20, term_table=False)
    export_text(cluster, index_name, tmp_path, settings)
    encode_texts(tmp_path, HashingEncoder())
    direct = partial(reindex, cluster, index_name)
    staged = partial(import_vectors, cluster, index_name, tmp_path)
    first, second = (direct, staged) if direct_first else (staged, direct)
    with pytest.raises(KeyboardInterrupt):
        first(HashingEncoder(), settings, progress=stopping)
    delete(cluster, index_name, "d0")  # was copied by the first run
    done = second(HashingEncoder(), settings)
    assert (done.documents, done.deleted, done.switched) == (119, 1, True)
    assert 0 < done.skipped < 119
    assert done.encoded + done.skipped == 119
    assert verify(cluster, index_name, HashingEncoder(), sample=100).ok


def stopping(stage: str, done: int, total: int | None = None, note: str = "") -> None:
    if stage == "encode and write" and done >= 40:
        raise KeyboardInterrupt


def test_passages_come_as_the_direct_way_makes_them(cluster, uneven, folder):
    settings = ReindexSettings(
        passages=True, max_tokens=40, passage_overlap=4, max_passages=3, term_table=False, vectors="byte"
    )
    direct = reindex(cluster, uneven, HashingEncoder(), settings)
    expected = held(cluster, direct.destination)
    remove(cluster, uneven)
    encode_texts(folder, HashingEncoder(), settings)
    done = import_vectors(
        cluster, uneven, folder, HashingEncoder(), ReindexSettings(vectors="byte", term_table=False)
    )
    assert held(cluster, done.destination) == expected
    assert (done.shortened, done.taken) == (direct.shortened, DOCUMENTS + 1)
    assert done.shortened > 0
    remove(cluster, uneven)


def test_refused_before_anything_is_made(cluster, uneven, folder, index_name):
    encoder = HashingEncoder()
    with pytest.raises(DataError, match="there is nothing in .*vectors") as none:
        plan_import(cluster, uneven, folder, encoder, ReindexSettings())
    assert none.value.hint == f"hybridr encode {folder}"
    encode_texts(folder, encoder)
    with pytest.raises(FingerprintMismatch, match="was made by encoder"):
        import_vectors(cluster, uneven, folder, HashingEncoder(salt="other"))
    fill_index(cluster, index_name, 3)
    with pytest.raises(DataError, match="is another index"):
        import_vectors(cluster, index_name, folder, encoder)
    for wrong in ({"in_place": True}, {"token_bits": True}, {"semantic": ("body",)}):
        with pytest.raises(SettingsError, match=f"it has no {next(iter(wrong))}"):
            import_vectors(cluster, uneven, folder, encoder, ReindexSettings(**wrong))
    part = next((folder / "vectors").glob("*.parquet"))
    content = bytearray(part.read_bytes())
    content[len(content) // 2] ^= 0xFF
    part.write_bytes(content)
    with pytest.raises(DataError, match=f"{part.name} is not the file that was written"):
        import_vectors(cluster, uneven, folder, encoder, ReindexSettings(term_table=False))
    assert cluster.indices(f"{uneven}-hybridr") == [], "the alias stays away"
    remove(cluster, uneven)


@pytest.mark.model
def test_the_three_commands(cluster, index_name, tmp_path, cli):
    fill_index(cluster, index_name, 25)
    out = tmp_path / "out"
    assert cli(cluster, f"export-text {index_name} --out {out} --json").json["documents"] == 25
    assert cli(None, f"encode {out} --json").json["documents"] == 25
    shown = cli(cluster, f"import-vectors {index_name} {out} --dry-run --json").json
    assert (shown["dry_run"], shown["documents"], shown["exists"]) == (True, 25, False)
    assert cluster.indices(f"{index_name}-hybridr*") == []
    done = cli(cluster, f"import-vectors {index_name} {out} --json").json
    assert (done["taken"], done["switched"]) == (25, True)
    assert cli(cluster, f"verify {index_name} --json").json["ok"]
    assert cli(cluster, f"rollback {index_name} --json").json
