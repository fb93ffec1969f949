from __future__ import annotations

from typing import Any

from hybridr.cluster.record import IndexInfo
from hybridr.cluster.record_parts import Tuned
from hybridr.relevance.tuning import TuneResult, write_tuning


class OneIndex:
    """A cluster with one index, which keeps the `_meta` that it is given."""

    def __init__(self) -> None:
        self.info = IndexInfo("docs", {}, {"_meta": {"owner": "somebody"}}, {})

    def index_info(self, name: str) -> IndexInfo:
        return self.info

    def request(self, method: str, path: str, body: dict[str, Any], params: Any = None) -> None:
        self.info = IndexInfo("docs", {}, body, {})


def test_what_was_found_is_recorded_again_and_again() -> None:
    cluster, nothing = OneIndex(), TuneResult("docs", None, None)
    for times in (1, 2):
        write_tuning(cluster, cluster.info, nothing)  # type: ignore[arg-type]
        assert cluster.info.record.tuning == Tuned()
        assert len(cluster.info.record.history) == times
    assert cluster.info.other_meta["owner"] == "somebody"
