from __future__ import annotations

from typing import Any

from hybridr.cluster.destinations import write_record
from hybridr.cluster.record import IndexInfo
from hybridr.cluster.record_parts import Tuned
from hybridr.cluster.similarities import Similarity
from hybridr.tuning.tuning import Tuning, change_requests, write_tuning


class OneIndex:
    """A cluster with one index, which keeps the `_meta` that it is given."""

    def __init__(self) -> None:
        self.info = IndexInfo("docs", {}, {"_meta": {"owner": "somebody"}}, {})

    def index_info(self, name: str) -> IndexInfo:
        return self.info

    def request(self, method: str, path: str, body: dict[str, Any], params: Any = None) -> None:
        self.info = IndexInfo("docs", {}, body, {})


def test_what_was_found_is_recorded_again_and_again() -> None:
    cluster, nothing = OneIndex(), Tuning("docs", None, None)
    for times in (1, 2):
        write_tuning(cluster, cluster.info, nothing)  # type: ignore[arg-type]
        assert cluster.info.record.tuning == Tuned()
        assert len(cluster.info.record.history) == times
    of_before = {"k1": 0.9, "b": 0.4, "before": Similarity()._asdict()}
    write_record(cluster, "docs", tuning={"bm25": of_before})  # type: ignore[arg-type]
    write_tuning(cluster, cluster.info, nothing)  # type: ignore[arg-type]
    kept = cluster.info.record.tuning
    assert kept is not None
    assert kept.gains
    assert kept.bm25 == of_before, "k1 and b are the index's own until they are changed"
    assert cluster.info.other_meta["owner"] == "somebody"


def test_an_index_is_closed_before_and_opened_after() -> None:
    requests = change_requests("a/b", Similarity(0.9, 0.4))
    assert [one["path"] for one in requests] == ["/a%2Fb/_close", "/a%2Fb/_settings", "/a%2Fb/_open"]
    assert requests[1]["body"] == {"index.similarity.default": {"type": "BM25", "k1": 0.9, "b": 0.4}}
