"""Settings of `tune`."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from pydantic import Field

from ..settings import NoOption, Stage

LEAST_JUDGED = 10


class TuneSettings(Stage):
    """Settings of `tune`: what it measures by, and whether it writes."""

    table: ClassVar[str] = "tune"

    measure: NoOption[str] = Field("nDCG@10", min_length=1, description="what judged queries are measured by")
    query_log: Path | None = Field(
        None,
        description="queries that users typed, one per line, nobody judged: chooses the weight of vectors",
    )
    dry_run: bool = Field(False, description="find out, write nothing")
