"""Settings of a reindex: what it writes, and how fast."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import Field, SecretStr, model_validator

from ..cluster.settings import VectorSettings
from ..cluster.token_field import TokenValues
from ..encoders.contract import Arithmetic, Backend
from ..families import OneOf
from ..settings import NoOption

MostWeights: TypeAlias = Annotated[int, Field(ge=1, le=10_000)]
LeastShare: TypeAlias = Annotated[float, Field(ge=0, lt=1)]
ENCODED_BY = {"sparse_encoder": "sparse", "token_encoder": "token_vectors"}
"""Setting with an encoder's folder -> representation that this encoder makes."""


class RepresentationSettings(VectorSettings):
    """Representations of documents: vectors, and further ones beside them."""

    representations: tuple[
        Annotated[str, OneOf("indexing.representations", "dense", setting="representations")], ...
    ] = Field((), description="what documents get beside vectors (dense, which go without saying), by name")
    sparse_encoder: Path | None = Field(
        None, description="folder of the encoder of sparse weights, which documents then get too"
    )
    sparse_pruning: NoOption[tuple[MostWeights, LeastShare]] = Field(
        (400, 0.0),
        description="weights that a document keeps, and the least of them as a share of its largest",
    )

    token_encoder: Path | None = Field(
        None, description="folder of the encoder of token vectors, which documents then get too"
    )
    token_values: NoOption[TokenValues] = Field(
        "byte", description="form of the values of token vectors; byte: a quarter of the room of float"
    )

    @model_validator(mode="before")
    @classmethod
    def _named_representations(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Leave the vectors out, which are always there, and take in what an encoder is given for."""
        named = [name for name in values.get("representations", ()) if name != "dense"]
        for encoder, name in ENCODED_BY.items():
            if values.get(encoder) and name not in named:
                named.append(name)
        return values | {"representations": tuple(named)} if named or "representations" in values else values


class SemanticSettings(RepresentationSettings):
    """Treatment of fields that the cluster embeds itself: by a server of hybridr, or as plain text."""

    semantic: tuple[str, ...] = Field(
        (), description="text fields that become `semantic`, embedded by the cluster; empty: none"
    )
    replace_semantic: bool = Field(
        False, description="give the new index the text of semantic fields, without their model's embeddings"
    )
    server: str = Field(
        "http://127.0.0.1:8080",
        description="`hybridr serve` as the cluster reaches it, which --semantic needs",
    )
    token: NoOption[SecretStr | None] = Field(None, min_length=1, description="what that server asks for")


class ReindexSettings(SemanticSettings):
    """Vectors in a new index beside the old one, or in the index itself."""

    table: ClassVar[str] = "reindex"
    addresses: ClassVar[tuple[str, ...]] = ("server",)
    credentials: ClassVar[tuple[str, ...]] = ("token",)

    alias: str | None = Field(None, description="alias to switch; None: NAME-hybridr")
    fields: tuple[str, ...] = Field((), description="text fields for the encoder; empty: as `inspect` would")
    lexical_fields: NoOption[tuple[str, ...]] = Field(
        (), description="fields whose words are searched; empty: [search] lexical_fields, else by the mapping"
    )
    max_tokens: int | None = Field(
        None, ge=16, description="input limit, with [CLS] and [SEP]; None: the encoder's own"
    )
    passages: bool = Field(False, description="a vector for each window of a document; search takes the best")
    passage_overlap: NoOption[int] = Field(32, ge=0, description="tokens that neighbouring passages share")
    max_passages: NoOption[int] = Field(
        64, ge=1, le=5_000, description="passages of a document; what follows has no vector"
    )
    token_bits: bool = Field(
        False,
        description="keep a bit for each dimension of each token, for late interaction: 48 bytes a token",
    )
    precision: Literal["auto", "fp32", "bf16", "int8"] | None = Field(
        "auto",
        description="number format of the encoder on documents; auto: int8 or bf16 where that is faster here "
        "and keeps a cosine of .99 on a sample, measured once for an index",
    )
    backend: Backend | None = Field(None, description="what runs the encoder; None: onnx")
    read_documents: NoOption[int] = Field(500, ge=1, le=10_000, description="documents per search request")
    workers: int = Field(1, ge=1, le=64, description="shares worked on at once")
    runner: Annotated[str, OneOf("indexing.runners")] = Field("threads", description="where they are")
    ray_address: str | None = Field(
        None, description="HOST:PORT of a Ray cluster; None: RAY_ADDRESS, else one is started here"
    )
    gpus_per_worker: NoOption[float] = Field(0, ge=0, description="GPUs that Ray gives to each worker")
    in_place: bool = Field(False, description="into the index itself, where it has index.knn already")
    target: NoOption[Annotated[str | None, OneOf("indexing.targets")]] = Field(
        None, description="where vectors go; None: beside the source, or as in_place says"
    )
    term_table: bool = Field(True, description="fit the table of the index's words that soft terms need")
    force: bool = Field(False, description="also with an encoder that does not know the index's language")
    discard: bool = Field(
        False,
        description="leave behind what clients wrote beside an earlier source and this one lacks",
    )
    accept_rejects: bool = Field(False, description="switch the alias although documents were refused")
    patience_s: NoOption[float] = Field(300.0, ge=0, description="seconds to wait for a cluster that is away")
    max_docs_per_second: float | None = Field(
        None, gt=0, description="leave the cluster room; None: as fast as it goes"
    )
    slow_search_ms: NoOption[float] = Field(
        200.0, ge=0, description="pause while searches take longer; 0 never does"
    )
    dry_run: bool = Field(False, description="show the requests, send none")

    @property
    def chosen_precision(self) -> Arithmetic | None:
        """Return the precision if it was told; None leaves it to what is there already."""
        return None if self.precision == "auto" else self.precision
