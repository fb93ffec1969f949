"""What `tune` looks at, and how a query map is fitted."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field

from ..settings import NoOption, Stage


class TuneSettings(Stage):
    """What `tune` looks at, and what it makes."""

    table: ClassVar[str] = "tune"
    gone: ClassVar[Mapping[str, tuple[Any, ...]]] = {"also": ()}

    fit_map: bool = Field(True, description="fit a query map")
    out: Path | None = Field(None, description="folder for the map; None: in hybridr's data folder")
    queries: Path | None = Field(None, description="queries without labels, one a line, to check the map on")
    measure: str = Field("nDCG@10", min_length=1, description="what judged queries are measured by")
    bm25: Literal["off", "show", "apply"] = Field(
        "show",
        description="what becomes of k1 and b; show: what gains; apply: close the index a moment and set it",
    )
    query_template: NoOption[Path | None] = Field(None, description="that of [search]")
    dry_run: bool = Field(False, description="find out, write nothing")


class MapSettings(Stage):
    """The query map: how many queries it is fitted on, and how (design notes, findings.md)."""

    table: ClassVar[str] = "map"

    strength: float = Field(
        0.3, ge=0, le=1, description="share of the fitted change that is applied; 0: none"
    )
    queries: int = Field(1_200, ge=10, le=10_000, description="made from documents; 300 were too few")
    depth: int = Field(40, ge=1, le=1_000, description="candidates of each leg")
    at_random: int = Field(20, ge=0, le=1_000, description="further candidates")
    dense_weight: float = Field(0.5, ge=0, le=1, description="in the ranking that is imitated")
    temperature: float = Field(0.05, gt=0, description="of the dense scores")
    teacher_temperature: float = Field(0.1, gt=0, description="of the ranking that is imitated")
    steps: int = Field(200, ge=1)
    batch_size: int = Field(48, ge=1, description="queries per step")
    learning_rate: float = Field(1e-3, gt=0, lt=1)
    ridge: float = Field(
        0.1, ge=0, description="half its value times the sum of squares is added to the loss"
    )
    seed: int = Field(13, ge=0)
