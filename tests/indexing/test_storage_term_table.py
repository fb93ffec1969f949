from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save

from hybridr.encoders.contract import unit_length
from hybridr.errors import ModelError
from hybridr.indexing.terms.storage import FILE, TermTable, load_term_table, unpacked

TERMS = ("wing", "flow", "機翼", "🚀", 'quo"te\n', "shock wave")


def table_of(count: int = len(TERMS), width: int = 8, seed: int = 3) -> TermTable:
    rows = unit_length(np.random.default_rng(seed).normal(size=(count, width)).astype(np.float32))
    terms = TERMS if count == len(TERMS) else tuple(f"t{number}" for number in range(count))
    return TermTable(terms, rows.astype(np.float16), 0.75, "e" * 64, {"inputs": {"index": "a"}})


def test_the_nearest_terms_come_first() -> None:
    table = table_of(500, 16)
    plain = table.rows[7] @ table.rows.T
    near = table.near("t7", 30)
    assert [term for term, _ in near] == [f"t{place}" for place in np.argsort(-plain)[:30]]
    assert near[0] == ("t7", pytest.approx(1, abs=1e-3))
    assert [cosine for _, cosine in near] == pytest.approx(sorted(plain, reverse=True)[:30], abs=1e-6)
    assert table.near("unknown", 30) == []


def test_a_small_table_gives_all_its_terms() -> None:
    assert sorted(term for term, _ in table_of().near("wing", 30)) == sorted(TERMS)


def test_the_usual_cosine_is_the_mean_of_frequent_terms() -> None:
    table = table_of(500, 16)
    wanted = np.mean([table.near(f"t{number}", 30)[-1][1] for number in range(200)])
    assert table.usual_cosine(30) == pytest.approx(wanted, abs=1e-6)


def test_a_table_comes_back_as_it_was_saved(tmp_path: Path) -> None:
    table = table_of()
    found = load_term_table(table.save(tmp_path / "table"))
    assert found.fingerprint == table.fingerprint == table_of().fingerprint
    assert (found.terms, found.own_cosine, found.encoder) == (TERMS, 0.75, "e" * 64)
    assert found.origin == {"inputs": {"index": "a"}}
    np.testing.assert_array_equal(found.vectors, table.vectors)
    assert (tmp_path / "table" / FILE).stat().st_mode & 0o077 == 0, "it holds words of documents"
    assert table_of(seed=5).fingerprint != table.fingerprint


def test_a_damaged_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="there is no term table"):
        load_term_table(tmp_path / "nowhere")
    file = table_of().save(tmp_path / "table") / FILE
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    with pytest.raises(ModelError, match="not the file that was written"):
        load_term_table(tmp_path / "table")
    (tmp_path / "table" / "manifest.json").write_text("{")
    with pytest.raises(ModelError, match="damaged"):
        load_term_table(tmp_path / "table")


def changed(table: TermTable, about: dict[str, Any], tensors: dict[str, np.ndarray]) -> bytes:
    told = {"terms": table.terms, "own_cosine": 0.5, "encoder": "e", "origin": {}, **about}
    text = np.frombuffer(json.dumps(told).encode(), dtype=np.uint8)
    return save({"about": text, "vectors": table.vectors, **tensors})


@pytest.mark.parametrize(
    ("about", "wrong"),
    [
        ({"terms": ["a"] * 6}, "no different strings"),
        ({"terms": [1, 2, 3, 4, 5, 6]}, "no different strings"),
        ({"terms": [["a"]] * 6}, "no different strings"),
        ({"terms": []}, "no different strings"),
        ({"terms": None}, "damaged"),
        ({"terms": ["a", "b"]}, "its vectors are float16"),
        ({"own_cosine": float("nan")}, "its own cosine is nan"),
        ({"own_cosine": "1"}, "its own cosine is '1'"),
        ({"encoder": 5}, "where it is from"),
        ({"origin": []}, "where it is from"),
    ],
)
def test_what_a_stranger_tells_is_refused(about: dict[str, Any], wrong: str) -> None:
    with pytest.raises(ModelError, match=wrong):
        unpacked(changed(table_of(), about, {}))


@pytest.mark.parametrize(
    ("name", "change", "wrong"),
    [
        ("vectors", lambda rows: rows.astype(np.float64), "its vectors are float64"),
        ("vectors", lambda rows: rows * np.float16("inf"), "not finite"),
        ("vectors", lambda rows: rows * np.float16(1000), "not of length 1"),
        ("vectors", lambda rows: rows * np.float16(0), "not of length 1"),
        ("about", lambda _: np.frombuffer(b"[" * 100_000, dtype=np.uint8), "damaged"),
        ("about", lambda _: np.frombuffer(b"\xff\xfe", dtype=np.uint8), "damaged"),
    ],
)
def test_what_a_stranger_computes_is_refused(name, change, wrong):
    table = table_of()
    with np.errstate(invalid="ignore"), pytest.raises(ModelError, match=wrong):
        unpacked(changed(table, {}, {name: change(getattr(table, name, None))}))


@pytest.mark.parametrize("data", [b"", b"\x00" * 40, b"\xff" * 40, b"{}" * 50, b"\x00" * 10_000_001])
def test_other_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(ModelError, match="term table"):
        unpacked(data)
