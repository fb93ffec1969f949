from __future__ import annotations

from hybridr.cluster.retrievers.dense import dense_query
from hybridr.cluster.retrievers.lexical import lexical_leg

MATCH = {"match": {"text": {"query": "wing"}}}


def test_a_leg_holds_only_what_is_asked_for() -> None:
    assert lexical_leg(MATCH) is MATCH
    only = {"term": {"tag": "a"}}
    assert lexical_leg(MATCH, filter=only) == {"bool": {"must": [MATCH], "filter": [only]}}
    assert lexical_leg(MATCH, "words") == {"bool": {"must": [MATCH], "_name": "words"}}
    assert "_name" not in dense_query([1.0], "v", 3)["knn"]["v"]
    assert dense_query([1.0], "v", 3, "near")["knn"]["v"]["_name"] == "near"
