"""Which language model judges, where somebody wants one to."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from pydantic import Field, SecretStr

from ...settings import NoOption, Stage


class AssessorSettings(Stage):
    """A language model behind an API like OpenAI's; without an `endpoint` nothing is sent anywhere."""

    table: ClassVar[str] = "assessor"
    addresses: ClassVar[tuple[str, ...]] = ("endpoint",)
    credentials: ClassVar[tuple[str, ...]] = ("token",)

    endpoint: str | None = Field(
        None,
        pattern=r"^https?://[^\s?#@]+$",
        description="API of a language model that judges, http://HOST/v1; it is sent queries and documents",
    )
    model: str = Field("", description="its name there")
    queries: Path | None = Field(None, description="queries to judge, one per line, besides the page's")
    token: NoOption[SecretStr | None] = Field(None, min_length=1, description="what the API asks for")
    batch: NoOption[int] = Field(4, ge=1, le=64, description="requests at a time")
