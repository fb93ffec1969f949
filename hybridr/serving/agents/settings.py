"""How agents are answered."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field, SecretStr

from ...settings import NoOption, Stage


class McpSettings(Stage):
    """The tools for agents."""

    table: ClassVar[str] = "mcp"

    http: bool = Field(False, description="answer by HTTP at /mcp, on this machine only, not by stdio")
    host: NoOption[str] = Field("127.0.0.1", min_length=1, description="address of this machine")
    port: int = Field(8765, ge=0, le=65535, description="port of --http; 0 takes a free one")
    token: NoOption[SecretStr | None] = Field(
        None, min_length=1, description="HYBRIDR_MCP_TOKEN: what a client of --http must bear"
    )
    description: NoOption[str] = Field(
        "", max_length=2_000, description="what the indices hold and when to ask them, in words for a model"
    )
