"""A user who may not touch the hidden index of tables of terms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hybridr.cluster.connection import Cluster
from hybridr.errors import AccessDenied
from hybridr.indexing.terms.storage import HOME


def forbidding(request: Callable[..., Any]) -> Callable[..., Any]:
    """Answer 403 to whatever concerns the hidden index."""

    def asked(self: Cluster, method: str, path: str, *rest: Any, **options: Any) -> Any:
        if path.startswith(f"/{HOME}"):
            raise AccessDenied("the cluster forbids it (403): no permissions", status=403)
        return request(self, method, path, *rest, **options)

    return asked
