"""Settings of the HTTP server, of tools for agents, of deployments, and of a language model as judge."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field, SecretStr

from ..search.settings import Finds
from ..settings import NoOption, Stage

Way = Literal["client", "neural", "transparent"]
"""How a deployed index is asked: with vectors, with text, or by a client that knows nothing of it."""


class ServeSettings(Stage):
    """The embedding server."""

    table: ClassVar[str] = "serve"

    encoder: Path | None = Field(
        None, description="encoder folder; None: that of the index, else the packaged MiniLM"
    )
    host: str = Field(
        "127.0.0.1", min_length=1, description="address to listen on; others than this machine need a token"
    )
    port: int = Field(8080, ge=0, le=65535, description="port; 0 takes a free one")
    hosts: NoOption[tuple[str, ...]] = Field(
        (), description="names that clients call the server by; empty: local ones, with a token any"
    )
    insecure: bool = Field(False, description="listen to other machines without a token")
    tls_cert: Path | None = Field(None, description="certificates for https, a PEM file; None: http")
    tls_key: Path | None = Field(None, description="key of --tls-cert; None: it is in the same file")
    index: str | None = Field(None, description="index that /search asks; None: no /search")
    token: NoOption[SecretStr | None] = Field(
        None, min_length=1, description="every request but /healthz and the empty page must bear it"
    )
    cache_queries: NoOption[int] = Field(
        10_000, ge=0, description="queries whose vectors are kept; 0 keeps none"
    )
    filters: NoOption[Literal["plain", "any"]] = Field(
        "plain", description="plain: /search takes filters that only compare; any: all that the cluster knows"
    )
    search_timeout_s: NoOption[float] = Field(
        10.0, gt=0, description="how long /search may take, and wait for the cluster once"
    )
    rank_timeout_s: NoOption[float] = Field(
        0.15,
        gt=0,
        description="how long /v1/rank may take; later a search goes on as it came",
    )
    read_timeout_s: NoOption[float] = Field(
        10.0, gt=0, description="how long a client may take to send a request"
    )
    max_connections: NoOption[int] = Field(
        512, ge=1, description="open at once; beyond, the oldest that asks nothing is closed for a new one"
    )
    max_body_bytes: NoOption[int] = Field(2 * 2**20, ge=1)
    max_bytes_in_work: NoOption[int] = Field(
        16 * 2**20, ge=1, description="of all large bodies (over 64 KiB); 429 with Retry-After beyond"
    )
    max_query_characters: NoOption[int] = Field(
        100_000,
        ge=1,
        le=1_000_000,
        description="of a text that is searched for; the cluster reads all of its words",
    )
    proxy: Finds | None = Field(
        None,
        description="answer /INDEX/_search and /_msearch as the cluster does, with the client's own rights, "
        "and ranked; what such searches find; lexical: what words match; all: neighbours too; None: not",
    )
    shadow: float = Field(
        0.0,
        ge=0,
        le=1,
        description="with --proxy: answer as the cluster does, and rank this share of searches unseen, for "
        "`hybridr shadow`",
    )
    ubi: bool = Field(
        False, description="keep searches that send ext.ubi, and what is posted to /events, as UBI does"
    )
    log_queries: bool = Field(False, description="the text of requests goes into the log")


class DeploySettings(Stage):
    """Settings of how an index is asked through plain REST."""

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
    beir: Path | None = Field(
        None, description="BEIR folder of judged queries for the tool `evaluate`; None: no such tool"
    )
    split: NoOption[str] = Field("test", min_length=1, description="split of the folder's qrels")
    report_timeout_s: NoOption[float] = Field(
        120.0, gt=0, description="how long the tools inspect, plan and evaluate may take"
    )


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
