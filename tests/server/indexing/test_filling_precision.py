"""int8 documents on a real node, found and verified by fp32 encoders: one fingerprint."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

import hybridr_cli
from hybridr import Search, load_encoder
from hybridr.cluster.connection import Cluster, path_of
from hybridr.cluster.destinations import resolve
from hybridr.encoders import opening
from hybridr.encoders.export.exporting import export
from hybridr.indexing.reindexing import reindex
from hybridr.indexing.verification import verify
from support.corpus import bulk
from support.tiny import tiny_retriever, tiny_texts

pytestmark = pytest.mark.node
TEXTS = [text for text in tiny_texts(120, seed=8) if len(text.split()) > 8]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export(tiny_retriever(), tmp_path_factory.mktemp("encoder") / "tiny", precision="int8")


@pytest.fixture
def filled(cluster: Cluster, index_name: str) -> str:
    lines = [
        line
        for number, text in enumerate(TEXTS)
        for line in ({"index": {"_id": f"d{number}"}}, {"text": text})
    ]
    bulk(cluster, index_name, lines)
    return index_name


def run(cluster: Cluster, *arguments: str) -> int:
    return hybridr_cli.main([*arguments, "--url", cluster.url, "--quiet"])


def vectors(cluster: Cluster, name: str) -> np.ndarray:
    body = {"size": 1000, "sort": [{"_id": "asc"}], "query": {"match_all": {}}}
    hits = cluster.search(resolve(cluster, name).name, body | {"_source": ["hybridr_vector"]})["hits"]["hits"]
    return np.array([hit["_source"]["hybridr_vector"] for hit in hits], dtype=np.float32)


def test_int8_documents_are_found_by_fp32_queries(
    cluster: Cluster, filled: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(cluster, "reindex", filled, "--encoder", str(folder), "--precision", "int8") == 0
    wide = load_encoder(folder, precision="fp32")
    info = resolve(cluster, filled)
    assert (info.record.precision, info.record.backend) == ("int8", "onnx")
    assert info.record.encoder == wide.fingerprint
    order = sorted(range(len(TEXTS)), key=lambda number: f"d{number}")
    exact = wide.encode_documents([TEXTS[number] for number in order])
    stored = vectors(cluster, filled)
    assert np.abs(stored - exact).max() > 1e-4
    narrow = load_encoder(folder, precision="int8").encode_documents([TEXTS[number] for number in order])
    np.testing.assert_allclose(stored, narrow, atol=1e-5)  # whatever batches they came in
    search = Search(cluster, filled, wide, mode="dense")
    assert [search(text, k=1)[0].doc_id for text in TEXTS[:20]] == [f"d{number}" for number in range(20)]
    assert verify(cluster, filled, wide, sample=64).ok

    cluster.request("PUT", path_of(filled, "_doc", "zz"), {"text": TEXTS[0]}, {"refresh": "true"})
    assert run(cluster, "sync", filled, "--encoder", str(folder)) == 0
    cluster.refresh(info.name)
    np.testing.assert_allclose(vectors(cluster, filled)[-1], narrow[0], atol=1e-5)  # in int8 as recorded

    capsys.readouterr()
    again = ["reindex", filled, "--encoder", str(folder), "--precision", "fp32", "--json"]
    assert run(cluster, *again) == 0
    done = json.loads(capsys.readouterr().out)
    assert (done["destination"], done["encoded"]) == (info.name, 0)  # compatible: nothing is encoded again
    assert resolve(cluster, filled).record.precision == "fp32"


def test_what_auto_chose_is_recorded_and_kept(
    cluster: Cluster,
    filled: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(opening, "LEAST_GAIN", 0.0)
    monkeypatch.setattr(opening, "SHORT_S", 0)
    monkeypatch.setattr(opening, "multiplies_bytes", lambda _: True)
    plain = export(tiny_retriever(), tmp_path / "fp32")  # its int8 graph is made when it is needed
    command = ["reindex", filled, "--encoder", str(plain)]
    assert hybridr_cli.main([*command, "--dry-run", "--url", cluster.url]) == 0
    assert "encoded in int8: int8 is " in capsys.readouterr().out
    assert run(cluster, *command) == 0
    record = resolve(cluster, filled).record
    assert record.precision == "int8"
    assert re.fullmatch(
        r"int8: int8 is \d+\.\d times as fast as fp32 here, cosine [01]\.\d{4} at least over 32 documents",
        record.arithmetic,
    )
    assert hybridr_cli.main(["status", filled, "--url", cluster.url]) == 0
    assert f"encoded in {record.arithmetic}" in capsys.readouterr().out

    monkeypatch.setattr(opening, "LEAST_GAIN", 1e9)  # another machine, where it does not pay
    lines = [line for number in range(5) for line in ({"index": {}}, {"text": TEXTS[number]})]
    bulk(cluster, filled, lines)
    assert reindex(cluster, filled, plain).encoded == 5
    kept = resolve(cluster, filled).record
    assert (kept.precision, kept.arithmetic) == ("int8", record.arithmetic)
    bulk(cluster, filled, [{"index": {"_id": "zz"}}, {"text": TEXTS[0]}])
    assert run(cluster, "sync", filled, "--encoder", str(plain)) == 0
    narrow = load_encoder(plain, precision="int8").encode_documents(TEXTS[:1])
    cluster.refresh(resolve(cluster, filled).name)
    np.testing.assert_allclose(vectors(cluster, filled)[-1], narrow[0], atol=1e-5)

    assert run(cluster, *command, "--precision", "fp32") == 0
    told = resolve(cluster, filled).record
    assert (told.precision, told.arithmetic) == ("fp32", "")


def test_a_precision_that_is_not_there_is_refused_before_the_first_write(
    cluster: Cluster, filled: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(cluster, "reindex", filled, "--encoder", str(folder), "--precision", "bf16") == 1
    assert "the backend onnx has no bf16" in capsys.readouterr().err
    assert run(cluster, "reindex", filled, "--encoder", str(folder), "--precision", "int4") == 2
    assert [info.name for info in cluster.indices(f"{filled}*")] == [filled]
