"""What `tune` looks at."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import Field

from ..settings import NoOption, Stage

LEAST_JUDGED = 10


class TuneSettings(Stage):
    """What `tune` looks at, and whether it writes."""

    table: ClassVar[str] = "tune"
    gone: ClassVar[Mapping[str, tuple[Any, ...]]] = dict.fromkeys(
        ("also", "bm25", "fit_map", "out", "queries", "query_template"), ()
    )

    measure: NoOption[str] = Field("nDCG@10", min_length=1, description="what judged queries are measured by")
    dry_run: bool = Field(False, description="find out, write nothing")
