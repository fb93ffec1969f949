"""Writes what was tuned or learnt into the record of an index, never over another command's result."""

from __future__ import annotations

from typing import Any

from ..cluster.connection import Cluster
from ..cluster.destinations import event_change, rewrite
from ..cluster.record import Event, IndexInfo, Record
from ..errors import DataError


def replace_values(
    cluster: Cluster, info: IndexInfo, event: Event, details: dict[str, Any], **changes: Any
) -> IndexInfo:
    """Change values of an index's record, with an event in its history; return the new description.

    Raises DataError if another command changed these values since `info` was read: its result stays.
    """
    original = {name: getattr(info.record, name) for name in changes}

    def change(record: Record) -> Record:
        """Return the record with the changes. Raises DataError if another command changed it."""
        current = {name: getattr(record, name) for name in changes}
        if current == changes != original:  # an earlier attempt wrote it, but its answer was lost
            return record
        if current != original:
            raise DataError(
                f"another command changed the {' and '.join(changes)} of '{info.name}' meanwhile; its result "
                "is kept",
                hint="run the same command again, if yours is to replace it",
            )
        return event_change(event, details, **changes)(record)

    return rewrite(cluster, info.name, change, settled=True)
