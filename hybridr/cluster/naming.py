"""What a name may stand for: one open index. All else is refused by what it is, with what to do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..errors import ClusterError
from .record import IndexInfo, scope_of

STREAM = ".ds-"
"""What the server begins the names of a data stream's indices with, and no other."""
CLOSED = "index.verified_before_close"
ROLLOVER = tuple(
    f"index.{whose}.index_state_management.rollover_alias" for whose in ("plugins", "opendistro")
)
SHOWN = 5  # indices
COPY = (
    'copy it into an index first: POST /_reindex {{"source": {{"index": "{}"}}, "dest": {{"index": "NEW"}}}}'
)


def sole_index(name: str, infos: Sequence[IndexInfo]) -> IndexInfo:
    """Give the one index of a name, within what that shows of it.

    Raises ClusterError for a data stream, several indices, an alias that rolls over, a closed index.
    """
    if any(info.name.startswith(STREAM) for info in infos):
        raise ClusterError(
            f"'{name}' is a data stream, which only takes new documents", hint=COPY.format(name)
        )
    first, *others = infos
    if others:
        names = ", ".join(info.name for info in infos[:SHOWN]) + (", …" if len(infos) > SHOWN else "")
        raise ClusterError(
            f"'{name}' stands for several indices: {names}", hint=f"name one of them, or {COPY.format(name)}"
        )
    if name in {first.settings.get(setting) for setting in ROLLOVER}:
        raise ClusterError(
            f"'{name}' rolls over: after '{first.name}' it will stand for other indices too",
            hint=f"name the index itself, {first.name}, which is one part of it",
        )
    if first.settings.get(CLOSED) == "true":
        raise ClusterError(f"index '{first.name}' is closed", hint=f"open it: POST /{first.name}/_open")
    return replace(first, scope=scope_of(name, first))
