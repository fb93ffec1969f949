"""Bits of tokens beside the vectors, on a real node: written, kept up to date, verified, and taken away."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hybridr import ReindexSettings
from hybridr.cluster.connection import Cluster, path_of
from hybridr.cluster.destinations import resolve
from hybridr.cluster.record import BITS_FIELD
from hybridr.cluster.token_field import stored_bytes
from hybridr.doctor.forecasting import estimated_plan
from hybridr.encoders.derived import mean_from_text
from hybridr.errors import DataError, ModelError
from hybridr.indexing.reindexing import reindex
from hybridr.status.standing import remove
from support.bits import read_bits
from support.corpus import bulk, put, update
from support.hashing import HashingEncoder
from support.in_place_index import check_a_life, knn_index, problems, raw

BESIDE = ReindexSettings(token_bits=True, fields=("text",))
IN_PLACE = BESIDE.model_copy(update={"in_place": True})
ODD = {
    "one": "anchor",
    "empty": "",
    "emoji": "\U0001f469\u200d\U0001f467 \U0001f469\u200d\U0001f467",
    "invisible": "\u200b\u200b",
    "long": " ".join(f"w{number}" for number in range(600)),
}


@pytest.fixture
def source(cluster: Cluster, index_name: str) -> str:
    knn_index(cluster, index_name, 20)
    put(cluster, index_name, {doc: {"text": text} for doc, text in ODD.items()})
    return index_name


def assert_bits_fit(cluster: Cluster, name: str) -> None:
    """Every document has the bits of its present text, or none without text."""
    info = resolve(cluster, name)
    cluster.refresh(info.name)
    texts = {doc: found["text"] for doc, found in raw(cluster, info.name).items() if found.get("text")}
    mean = mean_from_text(info.record.token_bits)
    _, expected = read_bits(HashingEncoder(), list(texts.values()), mean)
    held = stored_bytes(cluster, info.name, list(raw(cluster, info.name)))
    assert held == {doc: bits.tobytes() for doc, bits in zip(texts, expected, strict=True)}


def test_every_token_of_every_document_has_its_bits_and_keeps_them(cluster, source):
    destination = check_a_life(
        cluster, source, BESIDE, (24, 1), lambda: assert_bits_fit(cluster, source), "one"
    )
    held = stored_bytes(cluster, destination, ["emoji", "invisible", "long"])
    assert {doc: len(bits) // 8 for doc, bits in held.items()} == {"emoji": 6, "invisible": 2, "long": 600}


def test_bits_of_another_text_are_found_and_removing_takes_them_out(cluster, source):
    before = raw(cluster, source)
    destination = reindex(cluster, source, HashingEncoder(), IN_PLACE).destination
    held = raw(cluster, destination)
    for doc, value in (("d1", held["d2"][BITS_FIELD]), ("d3", held["one"][BITS_FIELD])):
        update(cluster, destination, doc, **{BITS_FIELD: value})
    assert problems(cluster, source) == {"token bits": ["d1", "d3"]}
    without = {"script": {"source": f"ctx._source.remove('{BITS_FIELD}')"}}
    cluster.request("POST", path_of(destination, "_update", "d5"), without, {"refresh": "true"})
    assert problems(cluster, source) == {"token bits": ["d1", "d3", "d5"], "mark without its vector": ["d5"]}
    remove(cluster, source)
    assert raw(cluster, source) == before
    assert stored_bytes(cluster, source, list(before)) == {}
    assert reindex(cluster, source, HashingEncoder(), IN_PLACE).encoded == 24
    assert_bits_fit(cluster, source)


def test_the_plan_tells_size_and_mapping(cluster, source):
    todo = estimated_plan(cluster, source, HashingEncoder(), BESIDE)
    tokens = 20 * 6 + 1 + 2 + 1 + 600
    assert todo.to_json()["token_bytes"] == pytest.approx(tokens * 8 * (1 + 4 / 3), rel=0.01)
    body: dict[str, Any] = todo.requests[0]["body"]
    assert body["mappings"]["properties"][BITS_FIELD] == {"type": "binary", "doc_values": True}
    assert BITS_FIELD in body["mappings"]["_source"]["excludes"]
    assert estimated_plan(cluster, source, HashingEncoder(), ReindexSettings()).to_json()["token_bytes"] == 0


def test_a_field_of_that_name_is_refused(cluster, source):
    field = {"properties": {BITS_FIELD: {"type": "keyword"}}}
    cluster.request("PUT", path_of(source, "_mapping"), field)
    for settings in (BESIDE, IN_PLACE):
        with pytest.raises(DataError, match=f"already has a field '{BITS_FIELD}'"):
            reindex(cluster, source, HashingEncoder(), settings)


def test_a_run_that_was_stopped_goes_on_with_the_same_mean(cluster, source):
    class Failing(HashingEncoder):
        calls = 0

        def read_documents(self, texts: Any, *, max_tokens: int | None = None) -> Any:
            self.calls += 1
            if self.calls > 2:
                raise ModelError("stopped")
            return super().read_documents(texts, max_tokens=max_tokens)

    with pytest.raises(ModelError, match="stopped"):
        reindex(cluster, source, Failing(), BESIDE)
    [made] = [info for info in cluster.indices(f"{source}*") if info.record.token_bits]
    mean = mean_from_text(made.record.token_bits)
    assert np.abs(mean).max() > 0
    bulk(cluster, source, [{"index": {"_id": "late"}}, {"text": "zephyr " * 400}])
    reindex(cluster, source, HashingEncoder(), BESIDE)
    np.testing.assert_array_equal(mean_from_text(resolve(cluster, source).record.token_bits), mean)
    assert_bits_fit(cluster, source)
