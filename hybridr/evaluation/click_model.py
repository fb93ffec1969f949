"""Clicks to relevance: how far down people look, how often they click, and which documents that speaks for.

The model is position-based (Richardson et al. 2007) with two kinds of documents: one at rank r is seen with
probability `seen[r]`, and a seen one is clicked with `clicked[1]` where it is relevant, with `clicked[0]`
where it is not. All are fitted at once by expectation-maximisation (regression EM, Wang et al. 2018, with a
regression on the rank alone): a document that is shown at several ranks tells how much of its clicks the
rank is owed, and so does that relevant documents of different ranks are clicked alike once they are seen.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..errors import DataError

Reals: TypeAlias = NDArray[np.float64]
Indices: TypeAlias = NDArray[np.int64]

RANKS = 20
"""Ranks that are told apart; all below count as the last of them."""
ROUNDS, STILL = 500, 1e-5
START = (0.05, 0.6)
PULL = 30.0
"""Views by which each rank is drawn to be seen as 1 / rank: what few clicks say of it counts little."""
FLOOR, CEILING = 1e-4, 1 - 1e-4


class Views(NamedTuple):
    """How often which document was shown and clicked at which rank: five arrays `(n,)`, one row for each.

    `document` numbers pairs of query and document from 0, `query` says which query a row belongs to, `rank`
    counts from 0. `shown` and `clicked` are people, each of whom counts once for a query.
    """

    query: Indices
    document: Indices
    rank: Indices
    shown: Reals
    clicked: Reals

    @property
    def documents(self) -> int:
        """Count the pairs of query and document."""
        return int(self.document.max(initial=-1)) + 1


class ClickModel(NamedTuple):
    """Probabilities: `seen` `(RANKS,)` by rank, the first is 1; `clicked` `(2,)` of a seen document that is
    not relevant, and of one that is; `relevant` `(RANKS,)` of a document at its rank."""

    seen: Reals
    clicked: Reals
    relevant: Reals

    def odds(self, views: Views) -> Reals:
        """Return the log-likelihood ratio of each pair's clicks, relevant against not, `(documents,)`."""
        chance = np.clip(self.seen[ranks_of(views), None] * self.clicked, FLOOR, CEILING)
        missed = views.shown - views.clicked
        likely = views.clicked[:, None] * np.log(chance) + missed[:, None] * np.log1p(-chance)
        return summed(views, likely[:, 1] - likely[:, 0])

    def relevance(self, views: Views) -> Reals:
        """Return the probability that the document of each pair is relevant, `(documents,)`."""
        prior = np.clip(self.relevant[best_ranks(views)], FLOOR, CEILING)
        log_odds = np.clip(self.odds(views) + np.log(prior / (1 - prior)), -50, 50)
        return np.asarray(1 / (1 + np.exp(-log_odds)))


def fit_clicks(views: Views) -> ClickModel:
    """Fit the model. Raises DataError without a single click."""
    if not views.clicked.any():
        raise DataError("nobody clicked anything: there is nothing to learn", hint="collect clicks first")
    ranks = np.arange(RANKS)
    model = ClickModel(1 / (1.0 + ranks), np.array(START), np.full(RANKS, 0.2))
    for _ in range(ROUNDS):
        before, model = model, refitted(model, views)
        if max(np.abs(old - new).max() for old, new in zip(before, model, strict=True)) < STILL:
            break
    return model


def refitted(model: ClickModel, views: Views) -> ClickModel:
    """Make one round: who is relevant under the model, and the model under which that is likeliest."""
    relevance = model.relevance(views)
    share = np.column_stack([1 - relevance, relevance])[views.document]
    ranks = ranks_of(views)
    clicked, viewed = (
        np.column_stack([np.bincount(ranks, column, RANKS) for column in (share * counts[:, None]).T])
        for counts in (views.clicked, views.shown)
    )
    chance = np.clip(model.seen[:, None] * model.clicked, FLOOR, CEILING)
    unclicked_seen = (chance - chance * model.clicked) / (model.clicked * (1 - chance))
    looked = clicked + (viewed - clicked) * unclicked_seen
    pulled = PULL / (1.0 + np.arange(RANKS))
    seen = np.clip((looked.sum(axis=1) + pulled) / (viewed.sum(axis=1) + PULL), FLOOR, 1)
    seen[0] = 1.0
    looked[0] = viewed[0]
    rates = np.clip(clicked.sum(axis=0) / np.maximum(looked.sum(axis=0), FLOOR), FLOOR, CEILING)
    best = best_ranks(views)
    documents = np.bincount(best, minlength=RANKS)
    relevant = (np.bincount(best, relevance, RANKS) + relevance.mean()) / (documents + 1)
    return ClickModel(seen, np.sort(rates), np.minimum.accumulate(relevant))


def tempered(views: Views, limit: float) -> Views:
    """Let no query weigh more than `limit` people do: a flood of one query is not a flood of evidence."""
    people = np.zeros(int(views.query.max(initial=-1)) + 1)
    np.maximum.at(people, views.query, summed(views, views.shown)[views.document])
    factor = np.minimum(1.0, limit / np.maximum(people, 1.0))[views.query]
    return views._replace(shown=views.shown * factor, clicked=views.clicked * factor)


def ranks_of(views: Views) -> Indices:
    """Return the rank of each row, at most `RANKS` - 1."""
    return np.minimum(views.rank, RANKS - 1)


def best_ranks(views: Views) -> Indices:
    """Return the best rank `(documents,)` at which each pair was shown."""
    ranks = np.full(views.documents, RANKS - 1)
    np.minimum.at(ranks, views.document, ranks_of(views))
    return ranks


def summed(views: Views, values: Reals) -> Reals:
    """Add up what the rows of each pair have, `(documents,)`."""
    return np.asarray(np.bincount(views.document, values, views.documents), dtype=np.float64)
