"""The clause of token bits as a request: longs, weights, and a script that a server compiles once."""

from __future__ import annotations

import base64

import numpy as np

from hybridr.cluster.record import BITS_FIELD
from hybridr.cluster.token_field import binary_value, bits_query


def bits(tokens: int, size: int = 48) -> np.ndarray:
    return np.random.default_rng(tokens).integers(0, 256, size=(tokens, size), dtype=np.uint8)


def test_the_script_depends_on_the_width_alone() -> None:
    one, two, wide = (
        bits_query(bits(tokens, size), np.ones(tokens, dtype=np.float32) / tokens, 8 * size, factor)
        for tokens, size, factor in ((2, 48, 1.0), (9, 48, 0.3), (2, 96, 1.0))
    )
    sources = [body["script_score"]["script"]["source"] for body in (one, two, wide)]
    assert sources[0] == sources[1] != sources[2]
    assert "$" not in sources[0]


def test_the_query_is_sent_as_longs_of_eight_bytes() -> None:
    query = bits(3)
    params = bits_query(query, np.array([0.5, 0.25, 0.25], dtype=np.float32), 384, 0.5)["script_score"]
    sent = params["script"]["params"]
    assert (len(sent["query"]), sent["width"], sent["factor"]) == (18, 384, 0.5)
    assert sent["weights"] == [0.5, 0.25, 0.25]
    assert b"".join(one.to_bytes(8, "big", signed=True) for one in sent["query"]) == query.tobytes()


def test_a_document_holds_its_bytes_as_base64() -> None:
    [value] = binary_value(BITS_FIELD, bits(2)).values()
    assert base64.b64decode(value) == bits(2).tobytes()
    assert binary_value(BITS_FIELD, bits(0)) == {"hybridr_tokens": ""}
