"""Tells where a cluster refused a search for how it was ranked, as a whole or on some of its shards, or asked
another index than it was ranked for.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import orjson

from ..cluster.failures import kind_and_reason
from ..cluster.relay import Answered

REFUSALS = frozenset((400, 404, 413, 500))
"""Statuses with which a cluster refuses a ranked body, such as for a vector that its client may not see."""
OF_RANKING = re.compile("script|query_shard|illegal_argument|clause|parsing")
"""Failures of a shard that the query makes, as on a node that compiles no more scripts. Shards that are away
or busy fail whoever asks."""


def refuses(answer: Answered) -> bool:
    """Return whether the cluster refused a ranked search, or some shards did, whose hits are missing."""
    return answer.status in REFUSALS or bool(refused_places(answer, {0}))


def refused_places(answer: Answered, places: set[int]) -> set[int]:
    """Return which of the ranked searches at these places of an `_msearch` the cluster refused, or that of a
    `_search` at place 0; all if it does not say.
    """
    if answer.status in REFUSALS:
        return places
    if b'"error"' not in answer.body and b'"failures"' not in answer.body:
        return set()
    with suppress(ValueError, KeyError, TypeError, IndexError, AttributeError):  # a part of it was asked for
        whole = orjson.loads(answer.body)
        answers = whole.get("responses", [whole])
        return {place for place in places if "error" in answers[place] or lacks_shards(answers[place])}
    return places


INDEX_NAMED = re.compile(rb'"_index"\s*:\s*"([^"]*)"')


def is_of_another_index(body: bytes, ranked_for: Mapping[int, str]) -> bool:
    """Return whether hits of another index answer a search than that which the search at this place was
    ranked for: an alias has moved.
    """
    if {match[1].decode() for match in INDEX_NAMED.finditer(body)} <= set(ranked_for.values()):
        return False  # what most answers are; a document may say otherwise
    with suppress(ValueError, KeyError, TypeError, IndexError, AttributeError):  # a part of it was asked for
        whole = orjson.loads(body)
        hits = [answer.get("hits", {}).get("hits", ()) for answer in whole.get("responses", [whole])]
        indices = (
            (hit.get("_index", index), index) for place, index in ranked_for.items() for hit in hits[place]
        )
        return any(there != index for there, index in indices)
    return False


def lacks_shards(answer: Mapping[str, Any]) -> bool:
    """Return whether shards failed at what hybridr adds to a search."""
    failures = answer.get("_shards", {}).get("failures", ())
    return any(OF_RANKING.search(kind_and_reason(failure.get("reason"))[0]) for failure in failures)
