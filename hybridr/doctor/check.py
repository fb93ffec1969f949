"""One finding of a diagnosis, and how a refusal of the cluster is told."""

from __future__ import annotations

import re
from typing import NamedTuple

from ..errors import ClusterError

PERMISSIONS = re.compile(r"no permissions for \[((?:[^\[\]]|\[s\])+)\]")


class Check(NamedTuple):
    """One finding; `ok` None is a remark that stops nothing, `fix` says what to do about it."""

    name: str
    ok: bool | None
    found: str
    fix: str = ""


def denied(error: ClusterError) -> str:
    """Name the missing permissions, where the cluster names them, else its reason."""
    missing = PERMISSIONS.search(error.message)
    return f"missing {missing[1]}" if missing else error.message


def grant(where: str) -> str:
    """Return what an administrator has to do."""
    return f"let an administrator grant what is missing on {where}"
