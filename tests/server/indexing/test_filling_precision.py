"""int8 documents on a real node, found and verified by fp32 encoders: one fingerprint."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from hybridr import Search, load_encoder
from hybridr.cluster.connection import Cluster
from hybridr.cluster.destinations import resolve
from hybridr.encoders import precisions
from hybridr.encoders.export.exporting import export
from hybridr.indexing.reindexing import reindex
from hybridr.indexing.verification import verify
from support.corpus import bulk, put
from support.tiny import tiny_retriever, tiny_texts

TEXTS = [text for text in tiny_texts(120, seed=8) if len(text.split()) > 8]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export(tiny_retriever(), tmp_path_factory.mktemp("encoder") / "tiny", precision="int8")


@pytest.fixture
def filled(cluster: Cluster, index_name: str) -> str:
    put(cluster, index_name, {f"d{number}": {"text": text} for number, text in enumerate(TEXTS)})
    return index_name


def vectors(cluster: Cluster, name: str) -> np.ndarray:
    body = {"size": 1000, "sort": [{"_id": "asc"}], "query": {"match_all": {}}}
    hits = cluster.search(resolve(cluster, name).name, body | {"_source": ["hybridr_vector"]})["hits"]["hits"]
    return np.array([hit["_source"]["hybridr_vector"] for hit in hits], dtype=np.float32)


def test_int8_documents_are_found_by_fp32_queries(cluster, filled, folder, cli):
    cli(cluster, f"reindex {filled} --encoder {folder} --precision int8")
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

    bulk(cluster, filled, [{"index": {"_id": "~"}}, {"text": TEXTS[0]}])  # behind all made ids
    cli(cluster, f"sync {filled} --encoder {folder}")
    cluster.refresh(info.name)
    np.testing.assert_allclose(vectors(cluster, filled)[-1], narrow[0], atol=1e-5)  # in int8 as recorded

    done = cli(cluster, f"reindex {filled} --encoder {folder} --precision fp32 --json").json
    assert (done["destination"], done["encoded"]) == (info.name, 0)  # compatible: nothing is encoded again
    assert resolve(cluster, filled).record.precision == "fp32"


def test_what_auto_chose_is_recorded_and_kept(cluster, filled, tmp_path, cli, monkeypatch):
    monkeypatch.setattr(precisions, "MIN_SPEED_UP", 0.0)
    monkeypatch.setattr(precisions, "SHORT_FILL_S", 0)
    monkeypatch.setattr(precisions, "has_byte_products", lambda _: True)
    plain = export(tiny_retriever(), tmp_path / "fp32")  # its int8 graph is made when it is needed
    command = f"reindex {filled} --encoder {plain}"
    monkeypatch.setattr(precisions, "find_spec", lambda name: None if name == "openvino" else find_spec(name))
    assert "encoded in int8: int8 is " in cli(cluster, f"{command} --dry-run").out
    cli(cluster, command)
    record = resolve(cluster, filled).record
    assert record.precision == "int8"
    assert re.fullmatch(
        r"int8: int8 is \d+\.\d times as fast as fp32 here, cosine [01]\.\d{4} at least over 32 documents",
        record.arithmetic,
    )
    assert f"encoded in {record.arithmetic}" in cli(cluster, f"status {filled}").out

    monkeypatch.setattr(precisions, "MIN_SPEED_UP", 1e9)  # another machine, where it does not pay
    bulk(cluster, filled, [line for text in TEXTS[:5] for line in ({"index": {}}, {"text": text})])
    assert reindex(cluster, filled, plain).encoded == 5
    kept = resolve(cluster, filled).record
    assert (kept.precision, kept.arithmetic) == ("int8", record.arithmetic)
    bulk(cluster, filled, [{"index": {"_id": "~"}}, {"text": TEXTS[0]}])  # behind all made ids
    cli(cluster, f"sync {filled} --encoder {plain}")
    narrow = load_encoder(plain, precision="int8").encode_documents(TEXTS[:1])
    cluster.refresh(resolve(cluster, filled).name)
    np.testing.assert_allclose(vectors(cluster, filled)[-1], narrow[0], atol=1e-5)

    cli(cluster, f"{command} --precision fp32")
    told = resolve(cluster, filled).record
    assert (told.precision, told.arithmetic) == ("fp32", "")


def test_a_machine_without_the_backend_of_an_index_goes_on_in_fp32(cluster, filled, folder, cli, monkeypatch):
    pytest.importorskip("openvino")
    monkeypatch.setattr(precisions, "MIN_SPEED_UP", 0.0)
    monkeypatch.setattr(precisions, "SHORT_FILL_S", 0)
    monkeypatch.setattr(precisions, "has_byte_products", lambda _: True)
    monkeypatch.setattr(precisions, "faster_variants", lambda *_: [("openvino", "int8")])
    cli(cluster, f"reindex {filled} --encoder {folder}")
    record = resolve(cluster, filled).record
    assert (record.precision, record.backend) == ("int8", "openvino")
    assert record.arithmetic.startswith("int8 by openvino: int8 by openvino is ")
    assert verify(cluster, filled, load_encoder(folder, precision="fp32"), sample=64).ok

    monkeypatch.setattr(precisions, "find_spec", lambda name: None if name == "openvino" else find_spec(name))
    bulk(cluster, filled, [{"index": {"_id": "~"}}, {"text": TEXTS[0]}])  # behind all made ids
    cli(cluster, f"sync {filled} --encoder {folder}")
    exact = load_encoder(folder, precision="fp32").encode_documents(TEXTS[:2])
    cluster.refresh(resolve(cluster, filled).name)
    np.testing.assert_allclose(vectors(cluster, filled)[-1], exact[0], atol=1e-5)

    bulk(cluster, filled, [{"index": {"_id": "~~"}}, {"text": TEXTS[1]}])
    done = cli(cluster, f"reindex {filled} --encoder {folder} --json").json
    assert done["encoded"] == 1, "earlier vectors stay"
    kept = resolve(cluster, filled).record
    assert (kept.precision, kept.backend) == ("fp32", "onnx")
    assert kept.arithmetic == "fp32: openvino, which encoded earlier, is not installed here"


def test_a_precision_that_is_not_there_is_refused_before_the_first_write(cluster, filled, folder, cli):
    command = f"reindex {filled} --encoder {folder} --precision"
    assert "the backend onnx has no bf16" in cli(cluster, f"{command} bf16", code=1).err
    cli(cluster, f"{command} int4", code=2)
    assert [info.name for info in cluster.indices(f"{filled}*")] == [filled]
