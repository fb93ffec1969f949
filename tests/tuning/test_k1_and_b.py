from __future__ import annotations

import numpy as np
import pytest

from hybridr.cluster.similarities import Similarity
from hybridr.tuning.judgement import choose
from hybridr.tuning.k1_and_b import bm25_landscape, bm25_variants, change_requests


@pytest.mark.parametrize("now", [Similarity(), Similarity(0.9, 0.4)], ids=str)
def test_words_are_judged_from_those_that_the_index_has(now: Similarity) -> None:
    tried = bm25_variants(now)
    lying = bm25_landscape(tried)
    assert tried[lying.default].similarity == now
    assert [word.is_default for word in tried].count(True) == 1
    assert len({word.similarity for word in tried}) == len(tried)
    assert lying.nearness.sum(axis=1) == pytest.approx(1.0)
    flat = np.repeat([[word.similarity.b for word in tried]], 1000, axis=0)
    assert tried[choose(flat, lying)].similarity.b == 1.0
    assert choose(flat[:10] / 100, lying) == lying.default


def test_an_index_is_closed_before_and_opened_after() -> None:
    requests = change_requests("a/b", Similarity(0.9, 0.4))
    assert [one["path"] for one in requests] == ["/a%2Fb/_close", "/a%2Fb/_settings", "/a%2Fb/_open"]
    assert requests[1]["body"] == {"index.similarity.default": {"type": "BM25", "k1": 0.9, "b": 0.4}}
