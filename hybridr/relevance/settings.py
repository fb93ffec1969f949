"""Settings of `tune`."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from pydantic import Field

from ..settings import NoOption, Stage

MIN_JUDGED = 10


class TuneSettings(Stage):
    """Settings of `tune`: what it measures by, and whether it writes."""

    table: ClassVar[str] = "tune"

    measure: NoOption[str] = Field(
        "nDCG@10", min_length=1, description="measure that judged queries are compared by"
    )
    query_log: Path | None = Field(
        None, description="unjudged queries of users, one per line: only the weight of vectors is chosen"
    )
    dry_run: bool = Field(False, description="measure without writing anything")
