"""The click model finds how far people look, and what is relevant, in clicks that it did not make itself."""

from __future__ import annotations

import numpy as np
import pytest

from hybridr.errors import DataError
from hybridr.evaluation.click_model import (
    RANKS,
    ClickModel,
    Views,
    em_step,
    fit_clicks,
    limit_query_weight,
    sum_by_document,
)
from support.click_logs import drawn_views


@pytest.mark.parametrize("power", [0.5, 1.0, 1.5])
@pytest.mark.parametrize("swaps", [0.0, 0.3])
def test_how_far_people_look_is_found_with_and_without_changes_of_rank(power: float, swaps: float) -> None:
    views, relevant, seen = drawn_views(400, 60, power, swaps)
    model = fit_clicks(views)
    assert model.examined[:10] == pytest.approx(seen, abs=0.05)
    assert model.clicked == pytest.approx([0.075, 0.75], abs=0.03)
    found = model.relevance(views) >= 0.5
    assert (relevant & found).sum() / found.sum() > 0.95
    assert (relevant & found).sum() / relevant.sum() > 0.85


def test_people_who_look_at_everything_are_seen_to_do_so() -> None:
    views, relevant, _ = drawn_views(400, 60, 0.0)
    model = fit_clicks(views)
    assert model.examined[:10].min() > 0.8
    assert np.mean((model.relevance(views) >= 0.5) == relevant) > 0.99


def test_confidence_is_what_it_says() -> None:
    """With ten people a query much is unsure: of what is relevant with a chance of .5 to .9, .7 are."""
    views, relevant, _ = drawn_views(2_000, 10, 1.0, seed=3)
    chance = fit_clicks(views).relevance(views)
    for low, high in ((0.1, 0.5), (0.5, 0.9), (0.9, 1.0)):
        some = (chance >= low) & (chance < high)
        assert relevant[some].mean() == pytest.approx(chance[some].mean(), abs=0.08)


def test_a_document_is_not_good_because_it_stood_first() -> None:
    """As many click the first by error as the tenth because it is good: only the second is relevant."""
    model = ClickModel(1 / (1.0 + np.arange(RANKS)), np.array([0.07, 0.7]), np.full(RANKS, 0.1))
    first, tenth = model.relevance(one_query(rank=[0, 9], shown=[100, 100], clicked=[7, 7]))
    assert first < 0.001
    assert tenth > 0.95


def test_a_document_at_two_ranks_is_one() -> None:
    model = ClickModel(1 / (1.0 + np.arange(RANKS)), np.array([0.07, 0.7]), np.full(RANKS, 0.1))
    both = one_query(rank=[0, 4], shown=[10, 50], clicked=[7, 7], document=[0, 0])
    alone = [one_query([rank], [shown], [7]) for rank, shown in ((0, 10), (4, 50))]
    assert model.odds(both) == pytest.approx(sum(model.odds(one) for one in alone))


def test_each_round_makes_the_clicks_no_less_likely() -> None:
    views, _, _ = drawn_views(100, 10, 1.0)
    model = ClickModel(np.full(RANKS, 0.5), np.array([0.05, 0.6]), np.full(RANKS, 0.2))
    found = []
    for _ in range(20):
        model = em_step(model, views)
        found.append(likelihood(model, views))
    assert found[-1] > found[0]
    assert (
        np.diff(found).min() > -0.5
    )  # it is drawn to 1 / rank a little, which the likelihood knows nothing of


def likelihood(model: ClickModel, views: Views) -> float:
    chance = model.examined[views.rank, None] * model.clicked
    of_rows = views.clicked[:, None] * np.log(chance)
    of_rows += (views.shown - views.clicked)[:, None] * np.log1p(-chance)
    best = np.full(views.documents, RANKS)
    np.minimum.at(best, views.document, views.rank)
    prior = model.relevant[best]
    both = [
        np.log(share) + sum_by_document(views, of)
        for share, of in zip((1 - prior, prior), of_rows.T, strict=True)
    ]
    return float(np.logaddexp(*both).sum())


def test_ranks_beyond_the_last_count_as_the_last() -> None:
    far = one_query(rank=[0, RANKS - 1, 10 * RANKS], shown=[50, 50, 50], clicked=[30, 3, 3])
    model = fit_clicks(far)
    assert model.odds(far)[1] == model.odds(far)[2]


def test_a_flood_of_one_query_weighs_as_much_as_the_most_that_counts() -> None:
    views = one_query(rank=[0, 1, 0], shown=[1e6, 1e6, 50], clicked=[5e5, 0, 20], query=[0, 0, 1])
    tamed = limit_query_weight(views, 200)
    assert (tamed.shown, tamed.clicked) == (pytest.approx([200, 200, 50]), pytest.approx([100, 0, 20]))


def test_nothing_is_told_without_a_click() -> None:
    with pytest.raises(DataError, match="nobody clicked"):
        fit_clicks(one_query([0, 1], [9, 9], [0, 0]))


def one_query(rank, shown, clicked, document=None, query=None):
    numbers = document or list(range(len(rank)))
    whole = [np.array(one, dtype=np.int64) for one in (query or [0] * len(rank), numbers, rank)]
    return Views(*whole, np.array(shown, dtype=np.float64), np.array(clicked, dtype=np.float64))
