"""How to reach a cluster, how documents are loaded into it, and how an index keeps vectors."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, SecretStr

from ..files.family import OneOf
from ..settings import Stage


class ClusterSettings(Stage):
    """How to reach the cluster. `None` for `url` means: the running embedded node, else localhost:9200."""

    table: ClassVar[str] = "cluster"

    url: str | None = None
    user: str | None = None
    password: SecretStr | None = None
    password_file: Path | None = None
    ca_certs: Path | None = None
    client_cert: Path | None = None
    client_key: Path | None = None
    verify_certs: bool = True
    aws_region: str | None = Field(None, description="sign requests with SigV4 for this region")
    aws_service: Literal["es", "aoss"] = "es"
    timeout_s: float = Field(60.0, gt=0)
    client: Annotated[str, OneOf("cluster.clients")] = Field(
        "opensearch", description="what sends the requests"
    )

    @classmethod
    def prefix(cls) -> str:
        """Give the beginning without a stage: `HYBRIDR_URL`."""
        return "HYBRIDR_"

    def record(self) -> dict[str, Any]:
        """Give the values as JSON; a password inside the url is masked too."""
        return {**super().record(), "url": self.url and re.sub(r"//[^/@]*@", "//***@", self.url)}


class LoadSettings(Stage):
    """A BEIR folder or JSONL file into an index; `k1` and `b` are those of BM25."""

    table: ClassVar[str] = "load"

    index: str = Field(min_length=1)
    fields: tuple[str, ...] = Field((), description="text fields of JSONL records; empty: title and text")
    language: str | None = Field(None, description="analyser by language code; None guesses from the text")
    analyzer: str | None = Field(
        None, pattern=r"^[A-Za-z0-9_]+$", description="built-in, or of a plugin; None: by the language"
    )
    k1: float = Field(1.2, ge=0, le=10)
    b: float = Field(0.75, ge=0, le=1)
    shards: int = Field(1, ge=1, le=1024)
    replicas: int = Field(0, ge=0)
    replace: bool = Field(False, description="delete an existing index of that name first")


class VectorSettings(Stage):
    """How an index keeps vectors, and the graph over them."""

    vector_field: str = Field("hybridr_vector", pattern=r"^[A-Za-z0-9_.-]+$")
    engine: Literal["lucene", "faiss"] = "lucene"
    vectors: Literal["float", "byte", "sq", "on_disk"] = Field(
        "float", description="how the index keeps them; sq: 7 bits a value (lucene), 16 (faiss)"
    )
    compression: Literal["1x", "2x", "4x", "8x", "16x", "32x"] | None = Field(
        None, description="level of on_disk; None: 4x (lucene), 32x (faiss)"
    )
    m: int = Field(16, ge=2, le=100)
    ef_construction: int = Field(100, ge=2, le=4096)
