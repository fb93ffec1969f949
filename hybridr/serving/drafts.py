"""Drafts: the one list that people see of two rankings while an experiment is on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import NamedTuple

from ..errors import HybridrError
from ..evaluation.significance import team_draft
from ..records import Hit
from ..relevance.clicks.ubi import NEITHER
from ..search.search import Search
from ..search.settings import SearchSettings
from .telemetry import LOGGER


class Teams(NamedTuple):
    """Whose the hits of a list are, a letter for each; `experiment` is its id."""

    experiment: str
    letters: str


@dataclass(frozen=True)
class Contest:
    """The experiment that is on: its id, and the ranking beside the one of the index."""

    experiment: str
    rival: Search

    def draft(
        self, query_id: str, a: Sequence[Hit], b: Sequence[Hit], page: range
    ) -> tuple[list[Hit], Teams]:
        """Make one list of the best hits of both rankings, from the first on, and cut a page out of it.

        Of one search it is always the same, so that pages fit. Where one ranking finds less, what the other
        one has beyond is of neither.
        """
        random = Random(f"{self.experiment} {query_id}")  # noqa: S311 - a coin
        picked = team_draft([hit.doc_id for hit in a], [hit.doc_id for hit in b], random)
        teams = {pick.doc_id: pick.team for pick in picked}
        by_team = {"a": {hit.doc_id: hit for hit in a}, "b": {hit.doc_id: hit for hit in b}}
        hits = [by_team[pick.team or "a"][pick.doc_id] for pick in picked]
        hits += [hit for hit in max(a, b, key=len) if hit.doc_id not in teams]
        page_hits = [hit._replace(rank=rank) for rank, hit in enumerate(hits[: page.stop], 1)][page.start :]
        letters = "".join(teams.get(hit.doc_id) or NEITHER for hit in page_hits)
        return page_hits, Teams(self.experiment, letters)


def contest_of(search: Search, settings: SearchSettings) -> Contest | None:
    """Open the ranking beside that of a search, where an experiment is on and the index can rank so."""
    if (experiment := search.info.record.contested) is None:
        return None
    try:
        info = search.info.ranked_by(experiment.b)
        return Contest(experiment.id, Search(search.cluster, info, search.encoder, settings=settings))
    except HybridrError as error:
        LOGGER.warning("no experiment", extra={"facts": {"experiment": experiment.id, "why": error.message}})
        return None
