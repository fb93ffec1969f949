"""What a plan is made for."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from ..settings import Stage


class ForecastSettings(Stage):
    """How many documents, who encodes them, and where the vectors go."""

    table: ClassVar[str] = "plan"

    documents: int | None = Field(
        None, ge=1, le=10**15, description="how many to plan for; None: as many as the index holds"
    )
    workers: int = Field(1, ge=1, le=10_000, description="machines or GPUs that encode, all alike")
    gpu: bool = Field(False, description="workers are GPUs like the one of this machine")
    documents_per_second: float | None = Field(
        None,
        ge=0.001,
        le=1e9,
        description="what one worker encodes; None: measured here on documents of the index",
    )
    nodes: int | None = Field(None, ge=1, le=10_000, description="data nodes; None: those of the cluster")
    replicas: int | None = Field(
        None, ge=0, le=100, description="copies beside the primary; None: as the index has"
    )
    price_per_hour: float | None = Field(
        None, ge=0, le=1e9, description="of one worker, in your currency; None: no price is told"
    )
