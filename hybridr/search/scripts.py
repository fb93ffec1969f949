"""Finds out whether a cluster lets searches run scripts, and why not."""

from __future__ import annotations

import time

from ..cluster.connection import Cluster
from ..errors import ClusterError, Unreachable

RECHECK_S = 10.0  # otherwise every search would fail once an operator forbids scripts
REFUSALS = {
    "allow_expensive_queries": "search.allow_expensive_queries is false",
    "cannot execute [inline] scripts": "script.allowed_types leaves inline ones out",
    "cannot execute scripts using": "script.allowed_contexts leaves searches out",
    "script_lang not supported": "a node lacks the module lang-painless",
}
"""Message of a cluster that runs no scripts -> reason."""


def scripts_refused(cluster: Cluster, index: str) -> str | None:
    """Return why searches of an index may not run scripts, found by trying; None if they may.

    Trying needs only the right to search, and detects all obstacles: the cluster settings
    `search.allow_expensive_queries` and `script.allowed_types`, and a node without the module lang-painless.
    Raises Unreachable.
    """
    script = {"script_score": {"query": {"match_all": {}}, "script": {"source": "_score"}}}
    try:
        cluster.search(index, {"size": 0, "terminate_after": 1, "query": script})
    except Unreachable:  # an unreachable cluster says nothing about scripts
        raise
    except ClusterError as error:
        refusal = next((reason for words, reason in REFUSALS.items() if words in error.message), None)
        return f"the cluster runs no scripts ({refusal})" if refusal else None
    return None


class Scripts:
    """Remembers whether searches of an index may run scripts; checked again after `RECHECK_S` seconds."""

    def __init__(self, cluster: Cluster, index: str) -> None:
        """Start without an answer; the first use checks."""
        self.cluster, self.index = cluster, index
        self._reason: str | None = None
        self._until = time.monotonic()

    @property
    def needs_check(self) -> bool:
        """Return whether the next use checks again."""
        return time.monotonic() >= self._until

    def refused(self) -> str | None:
        """Return why scripts may not run; None if they may."""
        if self.needs_check:
            self._until = time.monotonic() + RECHECK_S
            self._reason = scripts_refused(self.cluster, self.index)
        return self._reason
