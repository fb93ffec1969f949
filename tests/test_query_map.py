from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hashing import HashingEncoder
from hybridr.encoding.query_map import FILE, MappedEncoder, QueryMap, load_query_map
from hybridr.errors import FingerprintMismatch, ModelError, SettingsError
from hybridr.tuning.map_fitting import (
    MapExamples,
    divergence,
    learn_matrix,
    query_batches,
    slope,
    softmax,
    spread,
)
from hybridr.tuning.settings import MapSettings
from tiny import damage_json


def some_map(encoder: HashingEncoder, strength: float = 0.3, seed: int = 0) -> QueryMap:
    matrix = np.random.default_rng(seed).normal(size=(encoder.dim, encoder.dim)).astype(np.float32)
    origin = {"settings": {"seed": 13}, "inputs": {"index": "books-hybridr-1"}}
    return QueryMap(matrix, strength, encoder.fingerprint, origin)


def some_examples(seed: int = 0, *, queries: int = 60, dim: int = 8) -> MapExamples:
    """The teacher ranks by the first half of the values only, so there is something to learn."""
    random = np.random.default_rng(seed)
    asked, vectors = (random.normal(size=(n, dim)) for n in (queries, 200))
    asked, vectors = (
        (some / np.linalg.norm(some, axis=1, keepdims=True)).astype(np.float32) for some in (asked, vectors)
    )
    rows = random.integers(0, 200, (queries, 12))
    there = np.ones(rows.shape, dtype=bool)
    there[::3, 9:] = False
    half = dim // 2
    wanted = np.einsum("bcd,bd->bc", vectors[rows][:, :, :half], asked[:, :half])
    return MapExamples(asked, vectors, rows, there, softmax(wanted / 0.1, there))


def test_by_hand() -> None:
    matrix = np.array([[0, 2], [0, 0]], dtype=np.float32)
    query_map = QueryMap(matrix, 0.5, "e", {})
    mapped = query_map.apply(np.array([[3, 0], [0, 4], [0, 0]], dtype=np.float32))
    half = 3 / np.sqrt(2)
    assert mapped.tolist() == [pytest.approx([half, half]), [0, 4], [0, 0]]
    assert mapped.dtype == np.float32


def test_strength_0_changes_nothing_and_others_keep_the_length() -> None:
    encoder = HashingEncoder(dim=16)
    vectors = encoder.encode_queries(["one two", "three", "four five six"]) * np.float32(3)
    query_map = some_map(encoder)
    assert query_map.at(0).apply(vectors) is vectors
    assert np.linalg.norm(query_map.apply(vectors), axis=1) == pytest.approx(np.full(3, 3.0), rel=1e-5)
    assert not np.allclose(query_map.apply(vectors), vectors, atol=0.1)
    assert query_map.at(0.1).fingerprint != query_map.fingerprint == query_map.at(0.3).fingerprint
    with pytest.raises(SettingsError, match="from 0 to 1, got 2"):
        query_map.at(2)


def test_a_saved_map_is_the_same_again(tmp_path: Path) -> None:
    query_map = some_map(HashingEncoder(dim=16))
    again = load_query_map(query_map.save(tmp_path / "map"))
    assert np.array_equal(again.matrix, query_map.matrix)
    assert (again.strength, again.encoder, again.origin) == (0.3, query_map.encoder, query_map.origin)
    assert again.fingerprint == query_map.fingerprint
    other = some_map(HashingEncoder(dim=16), seed=1)
    other.save(tmp_path / "map")
    assert load_query_map(tmp_path / "map").fingerprint == other.fingerprint != query_map.fingerprint
    assert [path.name for path in tmp_path.iterdir()] == ["map"]


def test_damaged_maps_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="there is no query map"):
        load_query_map(tmp_path / "none")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelError, match="is not a query map"):
        load_query_map(tmp_path / "empty")
    folder = some_map(HashingEncoder(dim=16)).save(tmp_path / "map")
    record = {"fingerprint": "0" * 64, "strength": 0.9, "encoder": "another"}
    damage_json(folder / "manifest.json", query_map=record)
    with pytest.raises(ModelError, match="its manifest was changed"):
        load_query_map(folder)
    (folder / FILE).write_bytes((folder / FILE).read_bytes()[:-4])
    with pytest.raises(ModelError, match="is not the file that was written"):
        load_query_map(folder)
    (folder / "manifest.json").write_text("{")
    with pytest.raises(ModelError, match="is damaged"):
        load_query_map(folder)


def test_an_encoder_with_a_map_answers_for_the_documents_encoder() -> None:
    encoder = HashingEncoder(dim=16)
    mapped = MappedEncoder(encoder, some_map(encoder))
    texts = ["red fox", "blue sea"]
    assert mapped.fingerprint == encoder.fingerprint
    assert (mapped.dim, mapped.similarity, mapped.max_tokens) == (16, "cosine", 256)
    assert np.array_equal(mapped.encode_documents(texts), encoder.encode_documents(texts))
    expected = mapped.query_map.apply(encoder.encode_queries(texts))
    assert np.array_equal(mapped.encode_queries(texts), expected)
    assert mapped.document_room(20) == 18
    with pytest.raises(AttributeError):
        _ = mapped.folder


def test_the_map_of_another_encoder_is_refused() -> None:
    query_map = some_map(HashingEncoder(dim=16))
    with pytest.raises(FingerprintMismatch, match="was fitted for encoder") as caught:
        MappedEncoder(HashingEncoder(dim=16, salt="other"), query_map)
    assert "without the map" in str(caught.value.hint)
    small = QueryMap(query_map.matrix[:8, :8], 0.3, query_map.encoder, {})
    with pytest.raises(ModelError, match="16 values"):
        MappedEncoder(HashingEncoder(dim=16), small)


def test_the_gradient_is_that_of_the_divergence() -> None:
    examples = some_examples(queries=7)
    matrix = (0.1 * np.random.default_rng(1).normal(size=(8, 8))).astype(np.float32)
    found = slope(examples, np.arange(7), matrix, 0.5)
    for i, j in ((0, 0), (2, 5), (7, 3)):
        step = np.zeros((8, 8), dtype=np.float32)
        step[i, j] = 1e-2
        ends = [divergence(examples, matrix + sign * step, 0.5) for sign in (1, -1)]
        assert found[i, j] == pytest.approx((ends[0] - ends[1]) / 2e-2, rel=0.02, abs=1e-4)


def test_fitting_comes_nearer_to_the_teacher_and_repeats_itself() -> None:
    examples, unseen = some_examples(), some_examples(seed=5)
    settings = MapSettings(steps=150, learning_rate=0.01, ridge=0.01)
    matrix = learn_matrix(examples, settings)
    nothing = np.zeros_like(matrix)
    assert divergence(examples, matrix, 0.05) < 0.7 * divergence(examples, nothing, 0.05)
    assert divergence(unseen, matrix, 0.05) < 0.8 * divergence(unseen, nothing, 0.05)
    assert np.array_equal(learn_matrix(examples, settings), matrix)
    assert not np.array_equal(learn_matrix(examples, settings.model_copy(update={"seed": 1})), matrix)
    tied = learn_matrix(examples, settings.model_copy(update={"ridge": 10.0}))
    assert np.linalg.norm(tied) < 0.3 * np.linalg.norm(matrix)


def test_every_query_comes_once_before_any_comes_again() -> None:
    seen = list(query_batches(10, MapSettings(steps=4, batch_size=5)))
    assert sorted(np.concatenate(seen[:2])) == sorted(np.concatenate(seen[2:])) == list(range(10))
    assert [len(batch) for batch in query_batches(3, MapSettings(steps=2, batch_size=48))] == [3, 3]


def test_shares_and_spread_leave_out_what_is_not_there() -> None:
    there = np.array([[True, True, False]])
    scores = np.array([[1.0, 1.0, 50.0]], dtype=np.float32)
    assert softmax(scores, there).tolist() == [[0.5, 0.5, 0.0]]
    assert spread(scores, there) == 0.0
    assert spread(np.array([[0.0, 2.0, 9.0]], dtype=np.float32), there) == 1.0
