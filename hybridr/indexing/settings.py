"""Settings of a reindex: what it writes, and how fast."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, SecretStr, model_validator

from ..cluster.settings import VectorSettings
from ..encoders.contract import Arithmetic, Backend
from ..families import OneOf
from ..settings import NoOption

ENCODED_BY = {"sparse_encoder": "sparse", "token_encoder": "token_vectors"}
"""Setting with an encoder's folder -> representation that this encoder makes."""


class RepresentationSettings(VectorSettings):
    """Representations of documents: vectors, and further ones beside them."""

    representations: tuple[
        Annotated[str, OneOf("indexing.representations", "dense", setting="representations")], ...
    ] = Field((), description="further representations of documents; every document has a dense vector")
    sparse_encoder: Path | None = Field(
        None,
        description="folder of the encoder that makes the sparse weights; adds the representation `sparse`",
    )
    token_encoder: Path | None = Field(
        None, description="folder of the encoder that makes the token vectors; adds `token_vectors`"
    )

    @model_validator(mode="before")
    @classmethod
    def _named_representations(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Drop `dense`, which every document has, and add the representations whose encoder is set."""
        named = [name for name in values.get("representations", ()) if name != "dense"]
        for encoder, name in ENCODED_BY.items():
            if values.get(encoder) and name not in named:
                named.append(name)
        if named or "representations" in values:
            return values | {"representations": tuple(named)}
        return values


class SemanticSettings(RepresentationSettings):
    """Treatment of fields that the cluster embeds itself: by a server of hybridr, or as plain text."""

    semantic: tuple[str, ...] = Field(
        (), description="text fields to map as `semantic`, so that the cluster embeds them; empty: none"
    )
    replace_semantic: bool = Field(
        False, description="copy semantic fields as plain text, without the embeddings of their model"
    )
    server: str = Field(
        "http://127.0.0.1:8080",
        description="address at which the cluster reaches `hybridr serve`; needed by --semantic",
    )
    token: NoOption[SecretStr | None] = Field(None, min_length=1, description="bearer token of that server")


class ReindexSettings(SemanticSettings):
    """Vectors in a new index beside the old one, or in the index itself."""

    table: ClassVar[str] = "reindex"
    addresses: ClassVar[tuple[str, ...]] = ("server",)
    credentials: ClassVar[tuple[str, ...]] = ("token",)

    alias: str | None = Field(None, description="alias that moves to the new index; None: NAME-hybridr")
    fields: tuple[str, ...] = Field(
        (), description="text fields to encode; empty: those that `inspect` proposes"
    )
    lexical_fields: NoOption[tuple[str, ...]] = Field(
        (),
        description="fields searched by BM25; empty: [search] lexical_fields, else chosen from the mapping",
    )
    max_tokens: int | None = Field(
        None, ge=16, description="most tokens of a text, [CLS] and [SEP] included; None: the encoder's own"
    )
    passages: bool = Field(
        False, description="one vector per passage of a long document; a search ranks by the best passage"
    )
    passage_overlap: NoOption[int] = Field(32, ge=0, description="tokens shared by neighbouring passages")
    max_passages: NoOption[int] = Field(
        64, ge=1, le=5_000, description="most passages per document; text after them has no vector"
    )
    token_bits: bool = Field(
        False, description="store one bit per dimension of every token for late interaction: 48 bytes a token"
    )
    precision: Literal["auto", "fp32", "bf16", "int8"] | None = Field(
        "auto",
        description="number format for encoding documents; auto: int8 or bf16 if faster on this machine and "
        "within a cosine of .99 on a sample; measured once per index",
    )
    backend: Backend | None = Field(
        None, description="library that runs the encoder; None: onnx, or openvino where auto finds it faster"
    )
    read_documents: NoOption[int] = Field(500, ge=1, le=10_000, description="documents per search request")
    workers: int = Field(1, ge=1, le=64, description="parts of the index encoded in parallel")
    runner: Annotated[str, OneOf("indexing.runners")] = Field("threads", description="where the workers run")
    ray_address: str | None = Field(
        None, description="HOST:PORT of a Ray cluster; None: RAY_ADDRESS, else a local one is started"
    )
    gpus_per_worker: NoOption[float] = Field(0, ge=0, description="GPUs per Ray worker")
    in_place: bool = Field(False, description="write the vectors into the index itself; it needs index.knn")
    target: NoOption[Annotated[str | None, OneOf("indexing.targets")]] = Field(
        None, description="where the vectors are written; None: a new index, or as in_place says"
    )
    term_table: bool = Field(
        True, description="build the term table, which finds related words of the index (soft terms)"
    )
    force: bool = Field(
        False, description="continue although the encoder was not trained on the language of the index"
    )
    discard: bool = Field(
        False,
        description="drop documents that clients wrote for an earlier source and that this source lacks",
    )
    accept_rejects: bool = Field(False, description="move the alias although documents were rejected")
    patience_s: NoOption[float] = Field(
        300.0, ge=0, description="seconds to wait for a cluster that does not answer"
    )
    max_docs_per_second: float | None = Field(
        None, gt=0, description="upper limit, to spare the cluster; None: no limit"
    )
    slow_search_ms: NoOption[float] = Field(
        200.0, ge=0, description="pause while searches take longer; 0: never pause"
    )
    dry_run: bool = Field(False, description="show the requests without sending them")

    @property
    def chosen_precision(self) -> Arithmetic | None:
        """Return the precision if one is set; None for auto."""
        return None if self.precision == "auto" else self.precision
