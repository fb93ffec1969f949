"""One way to encode, in a process of its own: `python contender.py NAME FOLDER`, told line by line.

Nothing of hybridr is imported unless it is what is measured: the interpreter can be one that has other
packages than ours. A line in is {"texts": FILE, "vectors": FILE or null}, a line out is what it took.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any, TextIO

Encode = Callable[[Sequence[str]], Any]


def main() -> None:
    """Open the encoder, say so, and encode until there are no more lines."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print shall not end among the answers
    name, folder = sys.argv[1:3]
    os.environ |= {"HF_HUB_OFFLINE": "1", "ORT_DISABLE_TELEMETRY": "1", "TOKENIZERS_PARALLELISM": "true"}
    with tempfile.TemporaryDirectory() as scratch:
        try:
            encode = (OPENERS | ON_GPU)[name](Path(folder), Path(scratch))
        except Exception as error:  # whatever keeps it from running is the result
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            return answer(answers, {"reason": f"{type(error).__name__}: {reason}"})
        answer(answers, {"versions": versions(name)})
        for line in sys.stdin:
            answer(answers, timed(encode, json.loads(line)))


def answer(stream: TextIO, record: dict[str, Any]) -> None:
    """Write one line."""
    stream.write(json.dumps(record) + "\n")
    stream.flush()


def timed(encode: Encode, order: dict[str, Any]) -> dict[str, Any]:
    """Encode the texts of a file; give CPU seconds, seconds of the clock and the highest memory."""
    texts = json.loads(Path(order["texts"]).read_text(encoding="utf-8"))
    before, started = cpu_s(), time.perf_counter()
    vectors = encode(texts)
    found = {
        "cpu_s": cpu_s() - before,
        "wall_s": time.perf_counter() - started,
        "peak_mb": peak_mb(),
    }
    if order["vectors"]:
        import numpy as np

        np.save(order["vectors"], np.asarray(vectors, dtype=np.float32))
    return found


def cpu_s() -> float:
    """Give the processor seconds of this process and of those that it started and that ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def peak_mb() -> float:
    """Give the highest resident memory of this program so far.

    Linux hands getrusage's figure on from the process that started this one, whatever is run after.
    """
    status = Path("/proc/self/status")
    if status.is_file():
        return int(status.read_text(encoding="utf-8").split("VmHWM:")[1].split()[0]) / 1e3
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


def open_ours(precision: str, backend: str) -> Callable[[Path, Path], Encode]:
    """Make what opens hybridr's encoder."""

    def open_it(folder: Path, scratch: Path) -> Encode:
        from hybridr import load_encoder

        encoder = load_encoder(folder, precision=precision, backend=backend)  # type: ignore[arg-type]
        return encoder.encode_documents

    return open_it


def open_sentence_transformers(folder: Path, scratch: Path) -> Encode:
    """Open sentence-transformers as its documentation shows first."""
    from sentence_transformers import SentenceTransformer

    encode: Encode = SentenceTransformer(str(folder), device="cpu").encode
    return encode


def open_sentence_transformers_gpu(folder: Path, scratch: Path) -> Encode:
    """Open sentence-transformers on the GPU, with batches of 256 texts, not its own 32."""
    from sentence_transformers import SentenceTransformer

    return partial(SentenceTransformer(str(folder), device="cuda").encode, batch_size=256)


def open_sentence_transformers_int8(folder: Path, scratch: Path) -> Encode:
    """Open sentence-transformers with its own int8 ONNX graph, exported as its documentation shows."""
    from sentence_transformers import SentenceTransformer, export_dynamic_quantized_onnx_model

    copy = scratch / "model"
    shutil.copytree(folder, copy, ignore=shutil.ignore_patterns("model_int8.onnx"))
    model = SentenceTransformer(str(copy), backend="onnx", model_kwargs={"file_name": "onnx/model.onnx"})
    export_dynamic_quantized_onnx_model(model, "avx512_vnni", str(copy))
    names = {"file_name": "onnx/model_qint8_avx512_vnni.onnx"}
    encode: Encode = SentenceTransformer(str(copy), backend="onnx", model_kwargs=names).encode
    return encode


def open_fastembed(folder: Path, scratch: Path) -> Encode:
    """Open fastembed with the fp32 graph as a model of its user's own."""
    from fastembed import TextEmbedding
    from fastembed.common.model_description import ModelSource, PoolingType

    described = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))["encoder"]
    pooling = {"mean": PoolingType.MEAN, "cls": PoolingType.CLS}[described["pooling"]]
    TextEmbedding.add_custom_model(
        model="hybridr/contender",
        pooling=pooling,
        normalization=described["similarity"] == "cosine",
        sources=ModelSource(hf="hybridr/contender"),
        dim=described["dim"],
        model_file="onnx/model.onnx",
    )
    model = TextEmbedding("hybridr/contender", specific_model_path=str(folder))
    return lambda texts: list(model.embed(texts))


OPENERS: dict[str, Callable[[Path, Path], Encode]] = {
    "sentence-transformers": open_sentence_transformers,
    "sentence-transformers onnx int8": open_sentence_transformers_int8,
    "fastembed": open_fastembed,
    "hybridr onnx fp32": open_ours("fp32", "onnx"),
    "hybridr onnx int8": open_ours("int8", "onnx"),
    "hybridr openvino fp32": open_ours("fp32", "openvino"),
    "hybridr openvino bf16": open_ours("bf16", "openvino"),
    "hybridr openvino int8": open_ours("int8", "openvino"),
}
ON_GPU: dict[str, Callable[[Path, Path], Encode]] = {
    "sentence-transformers gpu": open_sentence_transformers_gpu,
    "hybridr torch fp32": open_ours("fp32", "torch"),
    "hybridr torch bf16": open_ours("bf16", "torch"),
}
PACKAGES = (
    "sentence-transformers",
    "transformers",
    "torch",
    "optimum-onnx",
    "fastembed",
    "onnxruntime",
    "openvino",
    "tokenizers",
)


def versions(name: str) -> dict[str, str]:
    """Name the versions of the imported packages."""
    loaded = {package for package in PACKAGES if package.split("-onnx")[0].replace("-", "_") in sys.modules}
    return {package: metadata.version(package) for package in sorted(loaded)}


if __name__ == "__main__":
    main()
