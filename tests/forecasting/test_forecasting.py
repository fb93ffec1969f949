"""What a plan refuses, and what it makes of an hour's price."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

import hybridr_cli
from hybridr.encoding.contract import ENCODED_TOGETHER, Offers
from hybridr.errors import SettingsError
from hybridr.forecasting import forecasting
from hybridr.forecasting.forecasting import documents_a_second, priced, require_measurable
from hybridr.forecasting.settings import ForecastSettings
from hybridr.forecasting.times import Duration, Workforce
from hybridr.reindexing.recipe import TextRecipe
from hybridr.reindexing.settings import ReindexSettings
from hybridr.settings import resolve_stage


@pytest.mark.parametrize(
    "given",
    [
        {"documents": 0},
        {"workers": 0},
        {"documents_per_second": 0.0},
        {"nodes": -1},
        {"replicas": -1},
        {"price_per_hour": -0.5},
        {"price_per_hour": float("inf")},
        {"documents_per_second": float("inf")},
        {"documents_per_second": 1e-320},
        {"documents": 10**16},
    ],
)
def test_numbers_that_cannot_be_are_refused(given: dict[str, float]) -> None:
    with pytest.raises(SettingsError, match=next(iter(given))):
        resolve_stage(ForecastSettings, given)


def test_a_gpu_that_is_not_here_cannot_be_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(forecasting, "read_gpus", list)
    with pytest.raises(SettingsError, match="no GPU") as refused:
        require_measurable(ForecastSettings(gpu=True))
    assert "--documents-per-second" in str(refused.value.hint)
    require_measurable(ForecastSettings(gpu=True, documents_per_second=5000))
    assert hybridr_cli.main(["plan", "docs", "--gpu", "--url", "http://127.0.0.1:9"]) == 2
    assert "no GPU" in capsys.readouterr().err, "before the cluster is asked"


@pytest.mark.parametrize(("together", "calls"), [(None, {64}), (4096, {4096})])
def test_speed_is_measured_with_as_many_documents_as_a_reindex_gives(
    together: int | None, calls: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
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
    assert documents_a_second(proposal, texts) == pytest.approx(10_000 / 2)  # type: ignore[arg-type]
    assert set(given[1:]) == calls
    assert 10_000 <= sum(given[1:]) < 20_000


def test_the_price_is_that_of_all_workers_and_then_of_the_one_that_verifies() -> None:
    duration = Duration(1.0, 7200.0, 1.0, 3600.0, 10800.0)
    assert priced(duration, Workforce(8, 100.0), 1.5) == (2 * 8 + 1) * 1.5
    assert priced(duration, Workforce(8, 100.0), 0.0) == 0
    assert priced(duration, Workforce(8, 100.0), None) is None
