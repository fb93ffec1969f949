"""What a node must have before a model is taken in."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from hybridr.deploying.local_models import check_nodes
from hybridr.errors import ClusterError


def cluster_of(**changes: Any) -> Any:
    """A cluster of two nodes, one of which only manages; `changes` are of the other."""
    node = {"name": "one", "roles": ["data", "ingest"], "attributes": {}, "heap": 2 << 30} | changes
    manager = {"name": "boss", "roles": ["cluster_manager"], "attributes": {}, "heap": 1 << 29}
    nodes = {
        one["name"]: {**one, "jvm": {"mem": {"heap_max_in_bytes": one["heap"]}}} for one in (node, manager)
    }
    return SimpleNamespace(request=lambda method, path: {"nodes": nodes})


@pytest.mark.parametrize(
    ("changes", "said", "hint"),
    [
        ({"heap": 1 << 30}, r"'one' has a heap of 1\.0 GB: .* \(429\)", "--heap 2g; --way neural"),
        ({"attributes": {"hybridr_embedded": "true"}}, "'one' lacks PyTorch", "start --name one --with-ml"),
        (
            {"attributes": {"hybridr_embedded": "true", "hybridr_natives": "false"}},
            "'one' lacks PyTorch",
            "hybridr node stop --name one",
        ),
        ({"heap": 1 << 30, "roles": ["ml"]}, "heap of 1", "--heap 2g"),
    ],
)
def test_a_node_that_cannot_run_a_model_is_refused(changes: dict[str, Any], said: str, hint: str) -> None:
    with pytest.raises(ClusterError, match=said) as refused:
        check_nodes(cluster_of(**changes))
    assert hint in (refused.value.hint or "")


@pytest.mark.parametrize(
    "changes", [{}, {"attributes": {"hybridr_embedded": "true", "hybridr_natives": "true"}}]
)
def test_a_node_that_can_is_not(changes: dict[str, Any]) -> None:
    check_nodes(cluster_of(**changes))
