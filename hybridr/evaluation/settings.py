"""How runs are compared."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from ..settings import NoOption, Stage


class EvaluateSettings(Stage):
    """How runs are compared; `depth` is the number of results per query."""

    table: ClassVar[str] = "evaluate"

    depth: int | None = Field(
        None,
        ge=1,
        le=10_000,
        description="results per query; None: the deepest cutoff of the measures, at least 100",
    )
    interval: Literal["bootstrap", "t"] = Field("bootstrap", description="how means are bounded")
    confidence: NoOption[float] = Field(0.95, gt=0.5, lt=1)
    resamples: int = Field(10_000, ge=100, le=1_000_000, description="of the randomisation and bootstrap")
    seed: int = Field(13, ge=0, description="seed of the randomisation and bootstrap")
