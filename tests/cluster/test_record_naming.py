"""An alias that will stand for several indices, before it does."""

from __future__ import annotations

import pytest

from hybridr.cluster.record import IndexInfo, sole_index
from hybridr.errors import ClusterError


@pytest.mark.parametrize(
    "whose", ["plugins.index_state_management", "opendistro.index_state_management", "lifecycle"]
)
def test_an_alias_that_rolls_over_is_refused_and_its_index_is_not(whose: str) -> None:
    settings = {f"index.{whose}.rollover_alias": "logs"}
    info = IndexInfo("logs-000001", settings, {}, {"logs": {"is_write_index": True}, "other": {}})
    with pytest.raises(ClusterError, match="'logs' is a rollover alias: after 'logs-000001'") as refused:
        sole_index("logs", [info])
    assert "logs-000001" in str(refused.value.hint)
    assert sole_index("logs-000001", [info]).name == sole_index("other", [info]).name == "logs-000001"


def test_of_many_indices_a_few_are_named() -> None:
    found = [IndexInfo(f"docs-{number}", {}, {}, {}) for number in range(400)]
    with pytest.raises(ClusterError, match=r"docs-0, docs-1, docs-2, docs-3, docs-4, …$"):
        sole_index("docs", found)
