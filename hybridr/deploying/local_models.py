"""Models that ml-commons runs inside the cluster: an encoder's own graph and tokenizer, uploaded in parts.

The graph is that of the encoder's folder, byte for byte. Told to pool nothing, ml-commons takes the second of
its two outputs, the pooled one, from 3.6.0 on. The model is for queries: the documents' vectors are there.
"""

from __future__ import annotations

import re
import time
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import orjson
from tokenizers import Tokenizer

from ..cluster.connection import Cluster
from ..cluster.record_parts import Deployment
from ..encoding.contract import Vectors
from ..encoding.engines import GRAPHS
from ..encoding.folder import OnnxEncoder
from ..encoding.tokens import TOKENIZER_FILE
from ..errors import ClusterError, ModelError, NotFound
from ..files.foreign import read_within, regular
from ..files.manifest import fingerprint, sha256_of
from ..progress import Progress, silent
from .remote_models import (
    ANY_NODE,
    ML,
    await_task,
    current_settings,
    is_id,
    ml_path,
    model_deletion,
    send_all,
)

META = f"{ML}/models/_register_meta"
OLDEST = (3, 6, 0)
CHUNK_BYTES = 10_000_000  # the most that ml-commons takes
LEAST_HEAP = 3 << 29  # bytes, 1.5 GB: with 1 GB requests were refused while a model of 91 MB was taken in
PATIENCE_S = 120.0  # 429 while a small heap is full, 503 while the plugin makes its own index
DEPLOY_TIMEOUT_S = 300.0  # the first model of a node loads PyTorch
MOST_DIFFERENCE = 0.014  # of a vector's length: a cosine of 0.9999
NEEDED_SETTINGS = {
    ANY_NODE: "false",
    "plugins.ml_commons.allow_registering_model_via_local_file": "true",
    # Above these it refuses, and what it takes for used memory holds the files that the system caches.
    "plugins.ml_commons.native_memory_threshold": "100",
    "plugins.ml_commons.jvm_heap_memory_threshold": "100",
}
OURS = re.compile("hybridr-[0-9a-f]{16}")  # the name of a model
UNFINISHED = ("UPLOADING", "REGISTERING")
PROBED = ("wing", "Größe, 日本語 and 🎉", "What is [SEP]?", "a text that is longer than any limit " * 200)


@dataclass(frozen=True)
class ModelFile:
    """A model as ml-commons takes it: a zip, and what it is to be told. The name tells both."""

    path: Path
    sha256: str
    config: dict[str, Any]

    @property
    def name(self) -> str:
        """Name the model: the same name is the same content and configuration."""
        return f"hybridr-{fingerprint([self.sha256, self.config])[:16]}"

    @property
    def sizes(self) -> list[int]:
        """List the sizes of the parts in bytes."""
        whole, rest = divmod(self.path.stat().st_size, CHUNK_BYTES)
        return [CHUNK_BYTES] * whole + ([rest] if rest else [])

    def body(self) -> dict[str, Any]:
        """Build the request that announces the parts."""
        return {
            "name": self.name,
            "version": "1",
            "function_name": "TEXT_EMBEDDING",
            "model_format": "ONNX",
            "model_content_hash_value": self.sha256,
            "model_content_size_in_bytes": sum(self.sizes),
            "total_chunks": len(self.sizes),
            "model_config": self.config,
        }


def settings_to_run(cluster: Cluster) -> dict[str, str]:
    """Give the cluster settings that a model inside needs and that are not set."""
    current = current_settings(cluster)
    return {name: value for name, value in NEEDED_SETTINGS.items() if current.get(name) != value}


def check_version(cluster: Cluster) -> None:
    """Raise ClusterError where ml-commons would pool anew what is pooled."""
    if cluster.version < OLDEST:
        found = ".".join(map(str, cluster.version))
        raise ClusterError(
            f"--way local needs OpenSearch 3.6.0, this is {found}: before, ml-commons cannot take a vector "
            "that the graph has pooled",
            hint="--way neural asks `hybridr serve`",
        )


def check_nodes(cluster: Cluster) -> None:
    """Raise ClusterError where a node that may run the model lacks heap, or an embedded one libraries."""
    for node in cluster.request("GET", "/_nodes/jvm")["nodes"].values():
        if not {"data", "ml"} & set(node["roles"]):
            continue
        heap, own = node["jvm"]["mem"]["heap_max_in_bytes"], node.get("attributes", {})
        if heap < LEAST_HEAP:
            raise ClusterError(
                f"the node '{node['name']}' has a heap of {heap / 2**30:.1f} GB: taking in a model fills it, "
                "and other requests are refused meanwhile (429)",
                hint="hybridr node start --with-ml --with-natives --heap 2g; --way neural needs no heap",
            )
        if "hybridr_embedded" in own and own.get("hybridr_natives") != "true":
            raise ClusterError(
                f"the embedded node '{node['name']}' lacks PyTorch's libraries, which a model needs",
                hint="hybridr node stop --name {0}; hybridr node start --name {0} --with-ml --with-natives "
                "--heap 2g".format(node["name"]),
            )


def model_requests(encoder: OnnxEncoder, model_id: str) -> list[dict[str, Any]]:
    """List what makes the model, with sizes in the place of its parts."""
    with packed(encoder) as file:
        sizes, body = file.sizes, file.body()
    paths = [(f"upload_chunk/{number}", f"<{size} bytes>") for number, size in enumerate(sizes)]
    return [
        {"method": "POST", "path": META, "body": body},
        *({"method": "POST", "path": f"{ML}/models/{model_id}/{path}", "body": part} for path, part in paths),
        {"method": "POST", "path": f"{ML}/models/{model_id}/_deploy"},
    ]


def ensure_model(cluster: Cluster, encoder: OnnxEncoder, *, progress: Progress = silent) -> str:
    """Give the id of a deployed model of this encoder, the one that is there or a new one.

    Its vectors of a few texts are compared with the encoder's own. Raises ModelError when they differ,
    ClusterError when the cluster cannot run it; then, and when it is interrupted, a model that no pipeline
    uses is deleted.
    """
    cluster = cluster.patient(PATIENCE_S)
    with packed(encoder) as file:
        found = find_model(cluster, file.name)
        model_id = found or upload(cluster, file, progress)
    try:
        progress("load the model inside the cluster", 0, 2)
        run_model(cluster, model_id)
        progress("load the model inside the cluster", 1, 2, "compare its vectors")
        require_same_vectors(cluster, model_id, encoder)
        progress("load the model inside the cluster", 2, 2)
    except BaseException:
        if not is_used(cluster, model_id):
            remove_model(cluster, model_id)
        raise
    return model_id


@contextmanager
def packed(encoder: OnnxEncoder) -> Iterator[ModelFile]:
    """Write the model's file for the length of the block; the same encoder gives the same bytes."""
    tokenizer = Tokenizer.from_file(str(encoder.folder / TOKENIZER_FILE))
    tokenizer.no_padding()
    tokenizer.enable_truncation(encoder.max_tokens)
    with TemporaryDirectory(prefix="hybridr-model-") as folder:
        path = Path(folder) / "model.zip"
        with zipfile.ZipFile(path, "w") as archive:
            with regular(encoder.folder / GRAPHS["fp32"]).open("rb") as graph:
                with archive.open(zipfile.ZipInfo("model.onnx"), "w", force_zip64=True) as member:
                    while part := graph.read(1 << 20):
                        member.write(part)
            archive.writestr(zipfile.ZipInfo(TOKENIZER_FILE), tokenizer.to_str())
        yield ModelFile(path, sha256_of(path), model_config(encoder))


def model_config(encoder: OnnxEncoder) -> dict[str, Any]:
    """Tell how the model is used; kinds of tokens are given to the models of BERT only."""
    told = orjson.loads(read_within(encoder.folder / "tokenizer_config.json"))
    config = {
        "model_type": "bert" if "token_type_ids" in told["model_input_names"] else "distilbert",
        "embedding_dimension": encoder.dim,
        "framework_type": "sentence_transformers",
        "pooling_mode": "none",
        "normalize_result": False,
    }
    prefix = encoder.query_prefix
    return config | ({"query_prefix": prefix} if prefix else {})


def find_model(cluster: Cluster, name: str) -> str | None:
    """Find a model that is whole; what an upload that ended early left behind is deleted."""
    body = {"query": {"term": {"name.keyword": name}}, "_source": ["model_state"]}
    try:
        hits = cluster.request("POST", f"{ML}/models/_search", body)["hits"]["hits"]
    except NotFound:
        return None
    whole = []
    for hit in hits:
        if hit["_source"].get("model_state") in UNFINISHED:
            remove_model(cluster, hit["_id"])
        else:
            whole.append(str(hit["_id"]))
    return whole[0] if whole else None


def upload(cluster: Cluster, file: ModelFile, progress: Progress) -> str:
    """Send the parts in their order, for the last one makes the model whole; give its id."""
    model_id = str(cluster.request("POST", META, file.body())["model_id"])
    try:
        with regular(file.path).open("rb") as content:
            for number, size in enumerate(file.sizes):
                path = f"{ml_path('models', model_id)}/upload_chunk/{number}"
                cluster.request("POST", path, content.read(size))
                progress("upload the model", number + 1, len(file.sizes))
        await_registered(cluster, model_id)
    except BaseException:
        remove_model(cluster, model_id)
        raise
    return model_id


def await_registered(cluster: Cluster, model_id: str) -> None:
    """Wait until the model is known to be whole, which is noted after the last part was answered."""
    deadline = time.monotonic() + PATIENCE_S
    while cluster.request("GET", ml_path("models", model_id))["model_state"] in UNFINISHED:
        if time.monotonic() > deadline:
            raise ClusterError(f"the cluster did not take the model {model_id} in {PATIENCE_S:.0f} s")
        time.sleep(0.2)


def run_model(cluster: Cluster, model_id: str) -> None:
    """Deploy a model to every node that may run it; again does no harm. Raises ClusterError."""
    task = cluster.request("POST", f"{ml_path('models', model_id)}/_deploy")["task_id"]
    try:
        await_task(cluster, task, DEPLOY_TIMEOUT_S)
    except ClusterError as error:
        raise ClusterError(
            f"{error.message} (a node without PyTorch's libraries downloads them, if it can)",
            hint="hybridr node start --with-ml --with-natives; for other nodes: docs/query.md",
        ) from error


def require_same_vectors(cluster: Cluster, model_id: str, encoder: OnnxEncoder) -> None:
    """Raise ModelError unless the model gives the encoder's own vectors of queries."""
    own, found = encoder.encode_queries(PROBED), predict(cluster, model_id, PROBED, encoder)
    lengths = np.linalg.norm(own, axis=1)
    difference = (
        float((np.linalg.norm(found - own, axis=1) / lengths).max()) if found.shape == own.shape else np.inf
    )
    if not difference <= MOST_DIFFERENCE:
        raise ModelError(
            f"the model inside the cluster gives other vectors than the encoder: they differ by "
            f"{difference:.3f} of their length, at most {MOST_DIFFERENCE} is allowed",
            hint="--way neural asks `hybridr serve`",
        )


def predict(cluster: Cluster, model_id: str, texts: Sequence[str], encoder: OnnxEncoder) -> Vectors:
    """Let a deployed model encode queries to `(n, dim)`."""
    body: dict[str, Any] = {
        "text_docs": list(texts),
        "return_number": True,
        "target_response": ["sentence_embedding"],
    }
    if encoder.query_prefix:
        body["parameters"] = {"content_type": "query"}
    answer = cluster.request("POST", ml_path("_predict/text_embedding", model_id), body)
    return np.array([result["output"][0]["data"] for result in answer["inference_results"]], dtype=np.float32)


def removal_requests(cluster: Cluster, model_id: str) -> list[dict[str, Any]]:
    """List what undeploys and deletes a model of ours and its group, in this order; nothing if it is gone."""
    try:
        found = cluster.request("GET", ml_path("models", model_id))
    except NotFound:
        return []
    group = {"method": "DELETE", "path": ml_path("model_groups", found["model_group_id"])}
    return [*model_deletion(model_id), group] if OURS.fullmatch(str(found.get("name"))) else []


def deletion_of(cluster: Cluster, known: Deployment | None) -> list[dict[str, Any]]:
    """List what deletes a model inside the cluster; it stays while other pipelines name it."""
    if known is None or known.way != "local" or not known.model_id or not is_id(known.model_id):
        return []
    if is_used(cluster, known.model_id, besides=known.pipeline):
        return []
    return removal_requests(cluster, known.model_id)


def remove_model(cluster: Cluster, model_id: str) -> None:
    """Undeploy and delete a model; what is gone already is no error."""
    send_all(cluster, removal_requests(cluster, model_id))


def is_used(cluster: Cluster, model_id: str, *, besides: str | None = None) -> bool:
    """Tell whether a search or ingest pipeline other than `besides` names a model."""
    found: dict[str, Any] = {}
    for path in ("/_search/pipeline", "/_ingest/pipeline"):
        try:
            found |= {f"{path}/{name}": body for name, body in cluster.request("GET", path).items()}
        except NotFound:
            pass
    found.pop(f"/_search/pipeline/{besides}", None)
    return any(f'"{model_id}"' in orjson.dumps(body).decode() for body in found.values())
