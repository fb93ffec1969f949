"""The second stage without any cluster: whole, resumable by part, and only of one encoder."""

from __future__ import annotations

import errno
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hybridr import ReindexSettings
from hybridr.encoders.contract import Offers
from hybridr.errors import DataError, DownloadError, FingerprintMismatch, ModelError, SettingsError
from hybridr.files.local import read_manifest
from hybridr.indexing.stages import bundle
from hybridr.indexing.stages.bundle import (
    StageFolder,
    VectorsLabel,
    claimed,
    digest_of_text,
    read_label,
    read_part,
    vectors_in,
    vectors_schema,
)
from hybridr.indexing.stages.vectors import encode_texts
from support.corpus import text_number
from support.hashing import HashingEncoder
from support.places import ROOT
from support.stages import write_texts

NAMES = [f"00000-{number:06d}.parquet" for number in range(3)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_texts(tmp_path / "out")


def found_in(folder: Path) -> dict[str, tuple[bytes, np.ndarray]]:
    """Read digest and vectors of every document."""
    files = [folder / "vectors" / name for name in StageFolder.vectors(folder).parts()]
    tables = [table for file in files for table in read_part(file, vectors_schema(16), "")]
    return {
        doc_id: (digest, rows)
        for table in tables
        for doc_id, digest, rows in zip(
            table["id"].to_pylist(), table["digest"].to_pylist(), vectors_in(table, 16), strict=True
        )
    }


def check_whole(folder: Path) -> None:
    """Every document has the vector of its text, the one without text none."""
    found, encoder = found_in(folder), HashingEncoder()
    assert found.keys() == {f"d{number}" for number in range(60)}
    for number in set(range(60)) - {3}:
        digest, rows = found[f"d{number}"]
        assert digest == digest_of_text(text_number(number))
        np.testing.assert_array_equal(rows, encoder.encode_documents([text_number(number)]))
    assert found["d3"][1].shape == (0, 16)


def test_every_text_gets_its_vector(folder: Path) -> None:
    seen: list[tuple[int, int | None]] = []
    done = encode_texts(
        folder,
        HashingEncoder(),
        ReindexSettings(workers=2, vectors="byte"),
        progress=lambda stage, done, total=None, note="": seen.append((done, total)),
    )
    assert (done.documents, done.before, done.parts) == (60, 0, 3)
    check_whole(folder)
    assert (seen[0], seen[-1]) == ((0, 60), (60, 60))
    texts, made = read_manifest(folder / "texts"), read_manifest(folder / "vectors")
    assert (made["inputs"], made["origin"]) == (texts["outputs"], texts["origin"])
    assert made["encoder"]["fingerprint"] == HashingEncoder().fingerprint
    label = read_label(folder / "vectors" / NAMES[1], VectorsLabel, "")
    assert (label.since, label.until, label.texts) == (19, 39, texts["outputs"][NAMES[1]])
    assert label.making.encoder == HashingEncoder().fingerprint


def test_batches_are_those_of_a_reindex(folder: Path) -> None:
    """A page of the index at a time, by length, whatever the size of a part."""
    calls: list[list[str]] = []
    encode_texts(folder, HashingEncoder(before=lambda texts: calls.append(list(texts))))
    pages = [[text_number(n) for n in range(start, start + 5) if n != 3] for start in range(0, 60, 5)]
    assert calls == [sorted(page, key=len) for page in pages]


def test_an_encoder_on_a_gpu_gets_a_part_at_once(folder: Path) -> None:
    class Gpu(HashingEncoder):
        offers = Offers(documents_at_once=4096)

    calls: list[list[str]] = []
    encode_texts(folder, Gpu(before=lambda texts: calls.append(list(texts))))
    parts = [[text_number(n) for n in range(start, start + 20) if n != 3] for start in range(0, 60, 20)]
    assert calls == [sorted(part, key=len) for part in parts]


def encoding_process(folder: Path, encoder: str) -> subprocess.CompletedProcess[str]:
    """Encode in a process of its own, which tells at its end whether it imported a cluster's client."""
    code = (
        "import sys; sys.path.insert(0, sys.argv[2])\n"
        "from pathlib import Path; from hybridr.indexing.stages.vectors import encode_texts\n"
        f"from {encoder}\n"
        "encode_texts(Path(sys.argv[1]), Encoder()); print('opensearchpy' in sys.modules)"
    )
    command = [sys.executable, "-c", code, str(folder), str(ROOT / "tests")]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_process_that_is_killed_loses_a_part(folder: Path) -> None:
    done = encoding_process(folder, "support.stages import DyingEncoder as Encoder")
    assert done.returncode == -signal.SIGKILL
    assert StageFolder.vectors(folder).parts() == NAMES[:2]
    assert read_manifest(folder / "vectors") is None
    encoder = HashingEncoder()
    done = encode_texts(folder, encoder)
    assert (done.documents, done.before, len(encoder.encoded)) == (60, 40, 20)
    check_whole(folder)
    assert encode_texts(folder, encoder).before == 60
    assert len(encoder.encoded) == 20
    assert sorted(path.name for path in (folder / "vectors").iterdir()) == [*NAMES, "manifest.json"]


def test_vectors_of_another_encoder_are_refused_by_name(folder: Path) -> None:
    encode_texts(folder, HashingEncoder())
    with pytest.raises(FingerprintMismatch, match=NAMES[0]) as other:
        encode_texts(folder, HashingEncoder(salt="b"))
    assert "start anew: rm -r" in str(other.value.hint)
    with pytest.raises(DataError, match="was made with max_tokens None, 32 is wanted"):
        encode_texts(folder, HashingEncoder(), ReindexSettings(max_tokens=32))
    with pytest.raises(SettingsError, match="token bits"):
        encode_texts(folder, HashingEncoder(), ReindexSettings(token_bits=True))


def test_damage_is_named_with_what_to_do(folder: Path) -> None:
    encode_texts(folder, HashingEncoder())
    (folder / "vectors" / "manifest.json").unlink()
    part = folder / "vectors" / NAMES[1]
    part.write_bytes(part.read_bytes()[:-100])
    with pytest.raises(DataError, match=f"{NAMES[1]} cannot be read") as torn:
        encode_texts(folder, HashingEncoder())
    assert torn.value.hint == f"rm {part}; hybridr encode {folder}"
    part.unlink()
    text = folder / "texts" / NAMES[1]
    content = bytearray(text.read_bytes())
    content[len(content) // 3] ^= 1
    text.write_bytes(content)
    with pytest.raises(DataError, match=f"{NAMES[1]} is not the file that was written"):
        encode_texts(folder, HashingEncoder())
    text.unlink()
    with pytest.raises(DataError, match=f"lacks {NAMES[1]}") as gone:
        encode_texts(folder, HashingEncoder())
    assert str(gone.value.hint).startswith("hybridr export-text")


def test_a_part_that_is_damaged_later_is_not_taken_for_whole(folder: Path) -> None:
    encode_texts(folder, HashingEncoder())
    manifest, part = read_manifest(folder / "vectors"), folder / "vectors" / NAMES[1]
    content = bytearray(part.read_bytes())
    content[len(content) // 3] ^= 1
    part.write_bytes(content)
    with pytest.raises(DataError, match=f"{NAMES[1]} is not the file that was written") as damaged:
        encode_texts(folder, HashingEncoder())
    assert damaged.value.hint == f"rm {part}; hybridr encode {folder}"
    assert read_manifest(folder / "vectors") == manifest
    part.unlink()
    assert encode_texts(folder, HashingEncoder()).before == 40
    check_whole(folder)


def test_a_link_out_of_the_folder_is_not_followed(folder: Path, tmp_path: Path) -> None:
    part = folder / "texts" / NAMES[2]
    part.rename(tmp_path / "elsewhere.parquet")
    part.symlink_to(tmp_path / "elsewhere.parquet")
    with pytest.raises(DataError, match="a link that leads out of the folder"):
        encode_texts(folder, HashingEncoder())


def test_texts_that_are_not_all_there_are_refused(folder: Path, tmp_path: Path) -> None:
    (folder / "texts" / "manifest.json").unlink()
    with pytest.raises(DataError, match="texts has 3 parts and no manifest: that stage has not ended"):
        encode_texts(folder, HashingEncoder())
    (folder / "texts" / "manifest.json").write_text("[1]")
    with pytest.raises(DataError, match="manifest.json is not a JSON object") as wrong:
        encode_texts(folder, HashingEncoder())
    command = f"hybridr export-text NAME --out {folder}"
    assert wrong.value.hint == f"rm {folder / 'texts' / 'manifest.json'}; {command}"
    with pytest.raises(DataError, match="there is nothing in"):
        encode_texts(tmp_path / "nowhere", HashingEncoder())


def test_a_part_that_another_process_has_is_left_to_it(folder: Path) -> None:
    with claimed(folder / "vectors" / NAMES[1]) as ours:
        assert ours
        with pytest.raises(DataError, match=f"another process has 1 part of .*, such as {NAMES[1]}"):
            encode_texts(folder, HashingEncoder())
    assert StageFolder.vectors(folder).parts() == [NAMES[0], NAMES[2]]
    assert encode_texts(folder, HashingEncoder()).before == 40
    check_whole(folder)


def test_a_full_disk_leaves_no_half_part(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(bundle.pq.ParquetWriter, "write_table", full)
    with pytest.raises(DownloadError, match="the disk is full") as error:
        encode_texts(folder, HashingEncoder())
    assert "run the same command again" in str(error.value.hint)
    assert list((folder / "vectors").iterdir()) == []
    monkeypatch.undo()
    encode_texts(folder, HashingEncoder())
    check_whole(folder)


def test_vectors_that_are_no_numbers_are_never_written(folder: Path) -> None:
    class Broken(HashingEncoder):
        def encode_documents(self, texts: Any, *, max_tokens: int | None = None) -> np.ndarray:
            return super().encode_documents(texts, max_tokens=max_tokens) * np.nan

    with pytest.raises(ModelError, match="vector for document 'd.* is not finite"):
        encode_texts(folder, Broken())
    assert StageFolder.vectors(folder).parts() == []


def test_no_client_of_a_cluster_is_imported(folder: Path) -> None:
    done = encoding_process(folder, "support.hashing import HashingEncoder as Encoder")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "False"


def test_without_pyarrow_the_extra_is_named() -> None:
    code = (
        "import sys; sys.modules['pyarrow'] = None\n"
        "import hybridr_cli; sys.exit(hybridr_cli.main(sys.argv[1:]))"
    )
    done = subprocess.run([sys.executable, "-c", code, "encode", "x"], capture_output=True, text=True)
    assert done.returncode == 1, done.stderr
    assert 'hint: in a clone of hybridr: pip install ".[parquet]"' in done.stderr
