"""How an index is deployed."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, SecretStr

from ...search.settings import Finds
from ...settings import NoOption, Stage

Way = Literal["client", "neural", "transparent"]
"""How a deployed index is asked: with vectors, with text, or by a client that knows nothing of it."""


class DeploySettings(Stage):
    """How an index is asked through plain REST."""

    table: ClassVar[str] = "deploy"
    addresses: ClassVar[tuple[str, ...]] = ("server",)
    credentials: ClassVar[tuple[str, ...]] = ("token",)

    way: Way = Field(
        "client",
        description="how a client asks; client: it sends vectors; neural: text; transparent: as today",
    )
    server: str = Field(
        "http://127.0.0.1:8080",
        description="`hybridr serve` as the cluster reaches it; None: port 8080 of this machine",
    )
    token: NoOption[SecretStr | None] = Field(None, min_length=1, description="what that server asks for")
    recall: Finds = Field(
        "lexical",
        description="what transparent searches find; lexical: what words match; all: neighbours too",
    )
    set_cluster_settings: bool = Field(False, description="set what ml-commons needs for the way")
    force: bool = Field(False, description="also with an encoder that does not know the index's language")
