"""How the speed of an encoder is measured before a reindex."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from hybridr.doctor import forecasting
from hybridr.doctor.forecasting import encoding_speed
from hybridr.encoders.contract import ENCODED_TOGETHER, Offers
from hybridr.indexing.recipe import TextRecipe
from hybridr.indexing.settings import ReindexSettings


@pytest.mark.parametrize(("together", "calls"), [(None, {64}), (4096, {4096})])
def test_speed_is_measured_with_as_many_documents_as_a_reindex_gives(together, calls, monkeypatch):
    """A GPU is through a sample in no time: it is encoded again until a second is over."""
    now, given = 0.0, []

    def encode_documents(texts: list[str], *, max_tokens: int | None = None) -> np.ndarray:
        nonlocal now
        now += len(texts) / 10_000
        given.append(len(texts))
        return np.zeros((len(texts), 2), dtype=np.float32)

    monkeypatch.setattr(forecasting.time, "perf_counter", lambda: now)
    offers = Offers(documents_at_once=together or ENCODED_TOGETHER)
    encoder = SimpleNamespace(encode_documents=encode_documents, offers=offers)
    recipe = TextRecipe(encoder, ReindexSettings(), ("text",))  # type: ignore[arg-type]
    proposal = SimpleNamespace(encoder=encoder, recipe=recipe, documents=1000, vectors=2000)
    texts = [f"text {number}" for number in range(512)]
    assert encoding_speed(proposal, texts) == pytest.approx(10_000 / 2)  # type: ignore[arg-type]
    assert set(given[1:]) == calls
    assert 10_000 <= sum(given[1:]) < 20_000
