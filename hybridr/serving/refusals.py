"""Detects failed ranked searches by the cluster's answers: the cluster or some shards refused the ranking, or
the hits are of a different index than the search was ranked for.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import orjson

from ..cluster.failures import kind_and_reason
from ..cluster.relay import ClusterAnswer

REFUSALS = frozenset((400, 404, 413, 500))
"""Statuses of a refused ranked body, for instance because the client may not read the vector field."""
RANKING_FAILURES = re.compile("script|query_shard|illegal_argument|clause|parsing")
"""Failures of a shard that the ranked query causes, for instance if a node compiles no more scripts. A
missing or busy shard fails for any query.
"""


def is_refusal(answer: ClusterAnswer) -> bool:
    """Return whether the cluster refused a ranked search, or some shards did, whose hits are missing."""
    return answer.status in REFUSALS or bool(refused_places(answer, {0}))


def refused_places(answer: ClusterAnswer, places: set[int]) -> set[int]:
    """Return at which of these places of an `_msearch` the cluster refused the ranked search, or some shards
    did (a `_search` is at place 0); all places if the answer cannot be read.
    """
    if answer.status in REFUSALS:
        return places
    if b'"error"' not in answer.body and b'"failures"' not in answer.body:
        return set()
    with suppress(ValueError, KeyError, TypeError, IndexError, AttributeError):  # it may be filtered
        parsed = orjson.loads(answer.body)
        answers = parsed.get("responses", [parsed])
        return {place for place in places if "error" in answers[place] or has_failed_shards(answers[place])}
    return places


INDEX_NAME = re.compile(rb'"_index"\s*:\s*"([^"]*)"')


def is_of_another_index(body: bytes, ranked_for: Mapping[int, str]) -> bool:
    """Return whether a search has hits of a different index than it was ranked for, because an alias has
    moved. `ranked_for` has the index of each ranked search, by its place.
    """
    if {match[1].decode() for match in INDEX_NAME.finditer(body)} <= set(ranked_for.values()):
        return False  # the usual case; if not, a document's text may contain the pattern
    with suppress(ValueError, KeyError, TypeError, IndexError, AttributeError):  # it may be filtered
        parsed = orjson.loads(body)
        hits = [answer.get("hits", {}).get("hits", ()) for answer in parsed.get("responses", [parsed])]
        indices = (
            (hit.get("_index", index), index) for place, index in ranked_for.items() for hit in hits[place]
        )
        return any(hit_index != index for hit_index, index in indices)
    return False


def has_failed_shards(answer: Mapping[str, Any]) -> bool:
    """Return whether shards failed because of the ranking that hybridr adds to a search."""
    failures = answer.get("_shards", {}).get("failures", ())
    return any(RANKING_FAILURES.search(kind_and_reason(failure.get("reason"))[0]) for failure in failures)
