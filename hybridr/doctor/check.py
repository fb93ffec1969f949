"""The result of one check of the doctor, and texts for missing rights."""

from __future__ import annotations

import re
from typing import NamedTuple

from ..errors import ClusterError

PERMISSIONS = re.compile(r"no permissions for \[((?:[^\[\]]|\[s\])+)\]")


class Check(NamedTuple):
    """The result of one check; `ok` None is a remark that stops nothing, `fix` says what to do about it."""

    name: str
    ok: bool | None
    found: str
    fix: str = ""


def denied(error: ClusterError) -> str:
    """Return the missing permissions that an error of the cluster names, else its message."""
    missing = PERMISSIONS.search(error.message)
    return f"missing {missing[1]}" if missing else error.message


def grant(where: str) -> str:
    """Return advice to grant missing rights."""
    return f"let an administrator grant what is missing on {where}"
