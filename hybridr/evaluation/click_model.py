"""Estimates from clicks how likely each document is relevant: a position-based click model.

The model (Richardson et al. 2007) has two kinds of documents: one at rank r is seen with probability
`examined[r]`, and a seen one is clicked with probability `clicked[1]` if it is relevant, with `clicked[0]` if
not. All are fitted at once by expectation-maximisation (regression EM, Wang et al. 2018, with a regression on
the rank alone). Two things separate rank from relevance: documents that were shown at several ranks, and that
relevant documents are clicked alike at every rank once they are seen.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..errors import DataError

Reals: TypeAlias = NDArray[np.float64]
Indices: TypeAlias = NDArray[np.int64]

RANKS = 20
"""Ranks that are distinguished; all lower ranks count as the last of them."""
ROUNDS, CONVERGED = 500, 1e-5
START_CLICKED = (0.05, 0.6)
PRIOR_VIEWS = 30.0
"""Prior views of each rank, of which a share of 1 / rank are looks, so that a few clicks change little."""
FLOOR, CEILING = 1e-4, 1 - 1e-4


class Views(NamedTuple):
    """How often each document was shown and clicked at each rank: five arrays `(n,)`, one row per document
    and rank.

    `document` numbers pairs of query and document from 0, `query` is the number of the row's query, `rank`
    counts from 0. `shown` and `clicked` are numbers of people, each of whom counts once for a query.
    """

    query: Indices
    document: Indices
    rank: Indices
    shown: Reals
    clicked: Reals

    @property
    def documents(self) -> int:
        """Return the number of pairs of query and document."""
        return int(self.document.max(initial=-1)) + 1


class ClickModel(NamedTuple):
    """The fitted probabilities."""

    examined: Reals
    """Probability of looking at a rank, `(RANKS,)`; 1 for the first."""
    clicked: Reals
    """Probability of clicking a seen document that is not relevant, and one that is, `(2,)`."""
    relevant: Reals
    """Probability that a document is relevant, by its best rank, `(RANKS,)`."""

    def odds(self, views: Views) -> Reals:
        """Return the log-likelihood ratio `(documents,)` of each pair's clicks: relevant to not relevant."""
        chance = np.clip(self.examined[ranks_of(views), None] * self.clicked, FLOOR, CEILING)
        unclicked = views.shown - views.clicked
        log_likelihoods = views.clicked[:, None] * np.log(chance) + unclicked[:, None] * np.log1p(-chance)
        return sum_by_document(views, log_likelihoods[:, 1] - log_likelihoods[:, 0])

    def relevance(self, views: Views) -> Reals:
        """Return the probability that each pair's document is relevant, `(documents,)`."""
        prior = np.clip(self.relevant[best_ranks(views)], FLOOR, CEILING)
        log_odds = np.clip(self.odds(views) + np.log(prior / (1 - prior)), -50, 50)
        return np.asarray(1 / (1 + np.exp(-log_odds)))


def fit_clicks(views: Views) -> ClickModel:
    """Fit the click model to views by expectation-maximisation. Raises DataError without a single click."""
    if not views.clicked.any():
        raise DataError("nobody clicked anything: there is nothing to learn", hint="collect clicks first")
    ranks = np.arange(RANKS)
    model = ClickModel(1 / (1.0 + ranks), np.array(START_CLICKED), np.full(RANKS, 0.2))
    for _ in range(ROUNDS):
        previous, model = model, em_step(model, views)
        if max(np.abs(old - new).max() for old, new in zip(previous, model, strict=True)) < CONVERGED:
            break
    return model


def em_step(model: ClickModel, views: Views) -> ClickModel:
    """Return the model after one step of expectation-maximisation.

    A prior of `PRIOR_VIEWS` views draws the chance that rank r is seen toward 1 / r. The lower of the two
    click rates is that of documents that are not relevant, and relevance never grows with the best rank.
    """
    relevance = model.relevance(views)
    posterior = np.column_stack([1 - relevance, relevance])[views.document]
    ranks = ranks_of(views)
    clicked, viewed = (
        np.column_stack([np.bincount(ranks, column, RANKS) for column in (posterior * counts[:, None]).T])
        for counts in (views.clicked, views.shown)
    )
    chance = np.clip(
        model.examined[:, None] * model.clicked, FLOOR, CEILING
    )  # P(click) = P(seen) P(click | seen)
    # P(seen | no click) = P(seen) (1 - P(click | seen)) / (1 - P(click))
    seen_if_unclicked = (chance - chance * model.clicked) / (model.clicked * (1 - chance))
    expected_looks = clicked + (viewed - clicked) * seen_if_unclicked
    prior_looks = PRIOR_VIEWS / (1.0 + np.arange(RANKS))
    looks, views_by_rank = expected_looks.sum(axis=1) + prior_looks, viewed.sum(axis=1) + PRIOR_VIEWS
    examined = np.clip(looks / views_by_rank, FLOOR, 1)
    examined[0] = 1.0  # everybody looks at the first rank
    expected_looks[0] = viewed[0]
    rates = np.clip(clicked.sum(axis=0) / np.maximum(expected_looks.sum(axis=0), FLOOR), FLOOR, CEILING)
    best = best_ranks(views)
    documents_at = np.bincount(best, minlength=RANKS)
    relevant = (np.bincount(best, relevance, RANKS) + relevance.mean()) / (documents_at + 1)
    return ClickModel(examined, np.sort(rates), np.minimum.accumulate(relevant))


def limit_query_weight(views: Views, limit: float) -> Views:
    """Return the views with numbers scaled down so that no query counts for more than `limit` people."""
    people = np.zeros(int(views.query.max(initial=-1)) + 1)
    np.maximum.at(people, views.query, sum_by_document(views, views.shown)[views.document])
    factor = np.minimum(1.0, limit / np.maximum(people, 1.0))[views.query]
    return views._replace(shown=views.shown * factor, clicked=views.clicked * factor)


def ranks_of(views: Views) -> Indices:
    """Return the rank of each row, at most `RANKS` - 1."""
    return np.minimum(views.rank, RANKS - 1)


def best_ranks(views: Views) -> Indices:
    """Return the best rank at which each pair of query and document was shown, `(documents,)`."""
    ranks = np.full(views.documents, RANKS - 1)
    np.minimum.at(ranks, views.document, ranks_of(views))
    return ranks


def sum_by_document(views: Views, values: Reals) -> Reals:
    """Return the sum of the rows' values for each pair of query and document, `(documents,)`."""
    return np.asarray(np.bincount(views.document, values, views.documents), dtype=np.float64)
