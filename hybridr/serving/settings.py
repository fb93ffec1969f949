"""Settings of the HTTP server, of tools for agents, of deployments, and of a language model as judge."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field, SecretStr

from ..search.settings import RecallMode
from ..settings import NoOption, Stage

Way = Literal["client", "neural", "transparent"]
"""How a deployed index is asked: with vectors, with text, or by a client that knows nothing of it."""


class ServeSettings(Stage):
    """The embedding server."""

    table: ClassVar[str] = "serve"

    encoder: Path | None = Field(
        None, description="encoder folder; None: the encoder of the index, else the packaged MiniLM"
    )
    host: str = Field(
        "127.0.0.1", min_length=1, description="address to listen on; other machines need a token"
    )
    port: int = Field(8080, ge=0, le=65535, description="port; 0: a free one")
    hosts: NoOption[tuple[str, ...]] = Field(
        (), description="host names that clients may use; empty: local names, any name with a token"
    )
    insecure: bool = Field(False, description="accept other machines without a token")
    tls_cert: Path | None = Field(None, description="PEM file with the certificates for https; None: http")
    tls_key: Path | None = Field(None, description="key of --tls-cert; None: in the same file")
    index: str | None = Field(None, description="index behind /search; None: no /search")
    token: NoOption[SecretStr | None] = Field(
        None,
        min_length=1,
        description="bearer token that all requests need, except /healthz and the empty page",
    )
    cache_queries: NoOption[int] = Field(10_000, ge=0, description="query vectors in the cache; 0: no cache")
    filters: NoOption[Literal["plain", "any"]] = Field(
        "plain",
        description="filters that /search accepts; plain: comparisons only; any: those of the cluster",
    )
    search_timeout_s: NoOption[float] = Field(
        10.0, gt=0, description="time limit of /search, and of each of its requests to the cluster"
    )
    rank_timeout_s: NoOption[float] = Field(
        0.15, gt=0, description="time limit of /v1/rank; after it a search is passed on unranked"
    )
    read_timeout_s: NoOption[float] = Field(10.0, gt=0, description="time limit for receiving a request")
    max_connections: NoOption[int] = Field(
        512, ge=1, description="open connections; beyond this the oldest idle one is closed for a new one"
    )
    max_body_bytes: NoOption[int] = Field(2 * 2**20, ge=1)
    max_bytes_in_work: NoOption[int] = Field(
        16 * 2**20,
        ge=1,
        description="total size of large bodies (over 64 KiB) at a time; beyond it 429 with Retry-After",
    )
    max_query_characters: NoOption[int] = Field(
        100_000, ge=1, le=1_000_000, description="longest query text; the cluster analyses all of it"
    )
    proxy: RecallMode | None = Field(
        None,
        description="answer /INDEX/_search and /_msearch in the cluster's place, ranked, with the client's "
        "own rights; lexical: find by words only; all: by words or vectors; None: no proxy",
    )
    shadow: float = Field(
        0.0,
        ge=0,
        le=1,
        description="with --proxy: answer unranked, and rank this share of searches in the background for "
        "`hybridr shadow`",
    )
    ubi: bool = Field(
        False,
        description="record searches that send ext.ubi, and events posted to /events, as the UBI plugin does",
    )
    log_queries: bool = Field(False, description="write the text of queries to the log")


class DeploySettings(Stage):
    """Settings of how an index is asked through plain REST."""

    table: ClassVar[str] = "deploy"
    addresses: ClassVar[tuple[str, ...]] = ("server",)
    credentials: ClassVar[tuple[str, ...]] = ("token",)

    way: Way = Field(
        "client",
        description="what clients send; client: vectors; neural: text; transparent: the searches of today",
    )
    server: str = Field(
        "http://127.0.0.1:8080",
        description="address at which the cluster reaches `hybridr serve`; None: port 8080 of this machine",
    )
    token: NoOption[SecretStr | None] = Field(None, min_length=1, description="bearer token of that server")
    recall: RecallMode = Field(
        "lexical",
        description="what transparent searches find; lexical: only by words; all: by words or vectors",
    )
    set_cluster_settings: bool = Field(
        False, description="change the cluster settings of ml-commons that this way needs"
    )
    force: bool = Field(
        False, description="continue although the encoder was not trained on the language of the index"
    )


class McpSettings(Stage):
    """The tools for agents."""

    table: ClassVar[str] = "mcp"

    http: bool = Field(False, description="serve HTTP at /mcp, to this machine only, instead of stdio")
    host: NoOption[str] = Field("127.0.0.1", min_length=1, description="address of this machine")
    port: int = Field(8765, ge=0, le=65535, description="port of --http; 0: a free one")
    token: NoOption[SecretStr | None] = Field(
        None, min_length=1, description="HYBRIDR_MCP_TOKEN: bearer token that clients of --http need"
    )
    description: NoOption[str] = Field(
        "",
        max_length=2_000,
        description="what the indices contain and when to search them, for the language model",
    )
    beir: Path | None = Field(
        None, description="BEIR folder with judged queries for the tool `evaluate`; None: without that tool"
    )
    split: NoOption[str] = Field("test", min_length=1, description="split of the folder's qrels")
    report_timeout_s: NoOption[float] = Field(
        120.0, gt=0, description="time limit of the tools inspect, plan and evaluate"
    )


class AssessorSettings(Stage):
    """A language model behind an API like OpenAI's; without an `endpoint` nothing is sent anywhere."""

    table: ClassVar[str] = "assessor"
    addresses: ClassVar[tuple[str, ...]] = ("endpoint",)
    credentials: ClassVar[tuple[str, ...]] = ("token",)

    endpoint: str | None = Field(
        None,
        pattern=r"^https?://[^\s?#@]+$",
        description="API of the judging language model, http://HOST/v1; it receives queries and documents",
    )
    model: str = Field("", description="name of the model in that API")
    queries: Path | None = Field(None, description="further queries to judge, one per line")
    token: NoOption[SecretStr | None] = Field(None, min_length=1, description="bearer token of the API")
    batch: NoOption[int] = Field(4, ge=1, le=64, description="parallel requests")
