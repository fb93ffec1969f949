"""What a cluster's refusal of a script is taken for, without a cluster."""

from __future__ import annotations

from typing import Any

import pytest

from hybridr.errors import AccessDenied, ClusterError, Unreachable
from hybridr.search import scripts as scripts_module
from hybridr.search.scripts import Scripts, scripts_refused


class Answering:
    """A cluster that answers each search by the next error, or by hits."""

    def __init__(self, *errors: ClusterError | None) -> None:
        self.errors = list(errors)

    def search(self, *_: Any) -> dict[str, Any]:
        if error := self.errors.pop(0):
            raise error
        return {"hits": {"hits": []}}


FORBIDDEN = ClusterError("cannot be executed when 'search.allow_expensive_queries' is set to false.")


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (FORBIDDEN, "search.allow_expensive_queries is false"),
        (ClusterError("cannot execute [inline] scripts"), "script.allowed_types leaves inline ones out"),
        (ClusterError("script_lang not supported [painless]"), "a node lacks the module lang-painless"),
        (ClusterError("no such field"), None),
        (AccessDenied("the cluster forbids it (403)"), None),
        (None, None),
    ],
)
def test_a_refusal_is_told_from_other_errors(error: ClusterError | None, said: str | None) -> None:
    found = scripts_refused(Answering(error), "docs")  # type: ignore[arg-type]
    assert found == (said and f"the cluster runs no scripts ({said})")


def test_a_cluster_that_is_away_is_no_refusal() -> None:
    with pytest.raises(Unreachable):
        scripts_refused(Answering(Unreachable("away")), "docs")  # type: ignore[arg-type]


def test_it_is_asked_once_in_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Answering(FORBIDDEN, None)
    now = [100.0]
    monkeypatch.setattr(scripts_module.time, "monotonic", lambda: now[0])
    scripts = Scripts(cluster, "docs")  # type: ignore[arg-type]
    found = []
    for passed in (0, 9, 2, 5, 4, 0):
        now[0] += passed
        found.append(bool(scripts.refused()))
    assert found == [True, True, False, False, False, False]
    assert cluster.errors == []
