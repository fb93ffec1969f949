from __future__ import annotations

from typing import Any

import pytest

from hybridr.cluster.failures import error_from_answer, shard_failure
from hybridr.errors import AccessDenied, ClusterError, Unreachable


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        ({"count": 3, "_shards": {"total": 2, "successful": 2, "failed": 0}}, None),
        ({"count": 1, "_shards": {"total": 2, "failed": 1, "failures": [{"reason": "x"}]}}, Unreachable),
        ({"hits": {}, "_shards": {"total": 2, "successful": 1, "failed": 0}}, Unreachable),
        ({"_shards": {"total": 2, "successful": 1, "failed": 0}}, None),  # a refresh without a replica
        ({"timed_out": True, "_shards": {"total": 1, "failed": 0}}, Unreachable),
        ({"docs": [{"_id": "a", "found": False}]}, None),
        ({"docs": [{"_id": "a", "error": {"type": "no_shard_available_action_exception"}}]}, Unreachable),
        ({"docs": [{"_id": "a", "error": {"type": "x"}, "status": 403}]}, AccessDenied),
    ],
)
def test_part_of_an_answer_is_none(answer: dict[str, Any], kind: type[ClusterError] | None) -> None:
    failure = shard_failure(answer)
    assert failure is None if kind is None else isinstance(failure, kind)


def test_a_licence_is_no_missing_right() -> None:
    reason = "current license is non-compliant for [field and document level security]"
    error = error_from_answer(403, {"type": "security_exception", "reason": reason})
    assert not isinstance(error, AccessDenied)
    assert "licence does not allow it: current license is non-compliant for [field" in error.message
    assert "free licence" in str(error.hint)


@pytest.mark.parametrize(
    ("status", "kind", "next_step"),
    [
        (404, "index_not_found_exception", "run the same command again"),
        (400, "index_closed_exception", "open it: POST /INDEX/_open"),
        (404, "aliases_not_found_exception", "run the same command again"),
        (408, "", "GET /_cluster/allocation/explain"),
    ],
)
def test_what_another_command_took_away_or_no_node_takes_has_a_hint(status, kind, next_step):
    """Before, the second of two `remove` ended with "aliases [x] missing" alone."""
    failure = error_from_answer(status, {"type": kind, "reason": "aliases [x] missing"})
    assert next_step in str(failure.hint)
    assert str(failure)
