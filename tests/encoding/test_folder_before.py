"""An encoder folder that the version before wrote opens, and gives the vectors that it gave."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from hybridr import load_encoder

BEFORE = Path(__file__).resolve().parents[1] / "golden" / "before"


def test_a_folder_of_the_version_before_gives_the_same_vectors() -> None:
    golden = json.loads((BEFORE / "vectors.json").read_text(encoding="utf-8"))
    encoder = load_encoder(BEFORE / "encoder")
    assert encoder.fingerprint == golden["fingerprint"]
    assert (encoder.dim, encoder.similarity) == (32, "cosine")
    np.testing.assert_allclose(encoder.encode_documents(golden["texts"]), golden["documents"], atol=1e-5)
    np.testing.assert_allclose(encoder.encode_queries(golden["texts"]), golden["queries"], atol=1e-5)
