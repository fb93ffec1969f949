"""Hostile things, made when they are needed: models, archives, graphs and texts. None is stored."""

from __future__ import annotations

import base64
import gzip
import io
import json
import pickle
import shutil
import struct
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper

from hybridr.encoders.registry import MINILM_WHEEL
from hybridr.files.local import sha256_of
from support.golden_ddr import rem_of
from support.tiny import damage_json

DEEP = "[" * 100_000 + "]" * 100_000
PACKAGE, VERSION = MINILM_WHEEL.coordinates.split("==")
SHAPES: dict[str, Any] = {
    "nothing": None,
    "a number": 5,
    "a list": [1],
    "a text": "x",
    "half a pair": "\ud800",
    "a huge number": 10**400,
    "an object": {"a": {}},
}


def model(encoder: Path, folder: Path) -> Path:
    """Copy an encoder folder without its manifest: a model as others publish them."""
    copy = Path(shutil.copytree(encoder, folder))
    (copy / "manifest.json").unlink(missing_ok=True)
    return copy


def with_config(encoder: Path, folder: Path, **values: Any) -> Path:
    """Give a model whose `config.json` says something else."""
    copy = model(encoder, folder)
    damage_json(copy / "config.json", **values)
    return copy


def linked(encoder: Path, folder: Path, name: str, target: Path) -> Path:
    """Give a model in which `name` is a link to a place outside."""
    copy = model(encoder, folder)
    (copy / name).parent.mkdir(exist_ok=True)
    (copy / name).unlink(missing_ok=True)
    (copy / name).symlink_to(target)
    return copy


def with_manifest(encoder: Path, folder: Path, **entry: Any) -> Path:
    """Give an encoder folder whose manifest says something else of the encoder."""
    copy = Path(shutil.copytree(encoder, folder))
    manifest = json.loads((copy / "manifest.json").read_text())
    manifest["encoder"] |= entry
    (copy / "manifest.json").write_text(json.dumps(manifest))
    return copy


def with_graph(encoder: Path, folder: Path, graph: bytes) -> Path:
    """Give an encoder folder with another graph, and a manifest that says it belongs there."""
    copy = Path(shutil.copytree(encoder, folder))
    (copy / "onnx" / "model.onnx").write_bytes(graph)
    manifest = json.loads((copy / "manifest.json").read_text())
    manifest["outputs"]["onnx/model.onnx"] = sha256_of(copy / "onnx" / "model.onnx")
    (copy / "manifest.json").write_text(json.dumps(manifest))
    return copy


def graph(nodes: list[Any], *constants: Any, width: str | int = "d") -> bytes:
    """Give a graph of ids and mask `(b, t)` to vectors."""
    inputs = [
        helper.make_tensor_value_info(name, TensorProto.INT64, ["b", "t"])
        for name in ("input_ids", "attention_mask")
    ]
    output = helper.make_tensor_value_info("sentence_embedding", TensorProto.FLOAT, ["b", width])
    made = helper.make_graph(nodes, "hostile", inputs, [output], list(constants))
    return bytes(
        helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()
    )


def narrow_graph() -> bytes:
    """Give a graph of one number a text, `(n, 1)`, which numpy would stretch to any width."""
    axes = helper.make_tensor("axes", TensorProto.INT64, [1], [1])
    nodes = [
        helper.make_node("Cast", ["input_ids"], ["numbers"], to=TensorProto.FLOAT),
        helper.make_node("ReduceSum", ["numbers", "axes"], ["sentence_embedding"], keepdims=1),
    ]
    return graph(nodes, axes)


def crowded_graph(many: str) -> bytes:
    """Give a graph of 60,000 nodes, each of whose results is an output if these are to be `many`."""
    names = [f"n{number}" for number in range(60_000 if many == "nodes" else 10_000)]
    nodes = [helper.make_node("Cast", ["input_ids"], [name], to=TensorProto.FLOAT) for name in names]
    whole = onnx.load_from_string(narrow_graph())
    whole.graph.node.extend(nodes)
    if many == "outputs":
        whole.graph.output.extend(
            helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in names
        )
    return bytes(whole.SerializeToString())


def numberless_graph(width: int) -> bytes:
    """Give a graph of vectors `(n, width)` of NaN: logarithms of -1."""
    axes = helper.make_tensor("axes", TensorProto.INT64, [1], [1])
    minus = helper.make_tensor("minus", TensorProto.FLOAT, [1, width], [-1.0] * width)
    nodes = [
        helper.make_node("Cast", ["input_ids"], ["numbers"], to=TensorProto.FLOAT),
        helper.make_node("ReduceSum", ["numbers", "axes"], ["sums"], keepdims=1),
        helper.make_node("Mul", ["sums", "minus"], ["negative"]),
        helper.make_node("Log", ["negative"], ["sentence_embedding"]),
    ]
    return graph(nodes, axes, minus)


def hungry_graph() -> bytes:
    """Give a graph of a few bytes that asks for 40 GB."""
    sizes = helper.make_tensor("sizes", TensorProto.INT64, [2], [100_000, 100_000])
    nodes = [
        helper.make_node("ConstantOfShape", ["sizes"], ["zeros"]),
        helper.make_node("ReduceMax", ["zeros"], ["most"], keepdims=0),
        helper.make_node("Cast", ["input_ids"], ["numbers"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["numbers", "most"], ["sentence_embedding"]),
    ]
    return graph(nodes, sizes)


def reaching_graph(location: str) -> bytes:
    """Give a graph whose weights lie in a file elsewhere."""
    weights = helper.make_tensor("weights", TensorProto.FLOAT, [1], [0.0])
    weights.ClearField("float_data")
    weights.data_location = TensorProto.EXTERNAL
    for key, value in (("location", location), ("offset", "0"), ("length", "4")):
        entry = weights.external_data.add()
        entry.key, entry.value = key, value
    nodes = [
        helper.make_node("Cast", ["input_ids"], ["numbers"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["numbers", "weights"], ["sentence_embedding"]),
    ]
    return graph(nodes, weights)


def unknown_graph() -> bytes:
    """Give a graph with an operator of somebody else's library."""
    return graph([helper.make_node("Run", ["input_ids"], ["sentence_embedding"], domain="evil")])


def swelling_tokenizer(definition: str) -> str:
    """Give a tokenizer that makes a million letters of each, before it cuts."""
    steps = [{"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 100}] * 3
    return json.dumps(json.loads(definition) | {"normalizer": {"type": "Sequence", "normalizers": steps}})


def with_tokenizer(encoder: Path, folder: Path, **parts: Any) -> Path:
    """Give an encoder folder with another tokenizer, and a manifest that says it belongs there."""
    copy = Path(shutil.copytree(encoder, folder))
    damage_json(copy / "tokenizer.json", **parts)
    outputs = json.loads((copy / "manifest.json").read_text())["outputs"]
    damage_json(
        copy / "manifest.json", outputs=outputs | {"tokenizer.json": sha256_of(copy / "tokenizer.json")}
    )
    return copy


def splitting(*patterns: str) -> dict[str, Any]:
    """Give a step that splits texts by regular expressions, one after another."""
    common = {"type": "Split", "behavior": "Isolated", "invert": False}
    steps = [common | {"pattern": {"Regex": pattern}} for pattern in patterns]
    return {"type": "Sequence", "pretokenizers": steps}


def framing(tokens: int) -> dict[str, Any]:
    """Give a step that puts a thousand special tokens before each text, so often."""
    piece, text = {"SpecialToken": {"id": "[CLS]", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}
    special = {"id": "[CLS]", "ids": [2] * 1000, "tokens": ["[CLS]"] * 1000}
    single = [piece] * (tokens // 1000) + [text]
    pair = [text, {"Sequence": {"id": "B", "type_id": 1}}]
    return {
        "type": "TemplateProcessing",
        "single": single,
        "pair": pair,
        "special_tokens": {"[CLS]": special},
    }


def swelling_charsmap() -> dict[str, Any]:
    """Give SentencePiece's normaliser with a table that puts a kilobyte in place of a character."""
    return {
        "type": "Precompiled",
        "precompiled_charsmap": base64.b64encode(bytes(4) + b"x" * 1024 + b"\0").decode(),
    }


def zipped_rem(file: Path, name: Callable[[str], str] = str, **contents: bytes) -> Path:
    """Zip a REM under other names; `contents` replace or add files."""
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in rem_of("dense_lora192-pa4").iterdir():
            if path.stem not in contents:
                archive.writestr(name(path.name), path.read_bytes())
        for stem, content in contents.items():
            archive.writestr(name(f"{stem}.bin"), content)
    return file


def rem_bomb(file: Path) -> Path:
    """Make a REM's zip of some 100 kB that unpacks to 100 MB."""
    return zipped_rem(file, pytorch_adapter=bytes(100_000_000))


def packed_weights(file: Path) -> Path:
    """Make a torch file that is compressed, as torch never does: 20 MB of zeros in 20 kB."""
    plain = io.BytesIO()
    torch.save({"weight": torch.zeros(5_000_000)}, plain)
    with zipfile.ZipFile(plain) as source, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as target:
        for member in source.infolist():
            target.writestr(member.filename, source.read(member))
    return file


def stretched_weights(file: Path) -> Path:
    """Make a torch file of one number that says it is 4 TB of them."""
    torch.save({"weight": torch.zeros(1).expand(1_000_000, 1_000_000)}, file)
    return file


def giant_safetensors(file: Path) -> Path:
    """Make a safetensors file of 100 bytes whose header speaks of 4 TB."""
    header = json.dumps({"w": {"dtype": "F32", "shape": [10**12], "data_offsets": [0, 4 * 10**12]}}).encode()
    file.write_bytes(struct.pack("<Q", len(header)) + header)
    return file


def crowded_header(file: Path) -> Path:
    """Make a safetensors file of 100,000 tensors without a number in them."""
    nothing = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}
    header = json.dumps({f"tensor-{number}": nothing for number in range(100_000)}).encode()
    file.write_bytes(struct.pack("<Q", len(header)) + header)
    return file


def endless_header(file: Path) -> Path:
    """Make a safetensors file whose header is longer than the file."""
    file.write_bytes(struct.pack("<Q", 2**62) + b"{}")
    return file


def gzip_bomb(file: Path) -> Path:
    """Make a gzip file of one line of 64 million characters."""
    with gzip.open(file, "wb", compresslevel=9) as packed:
        packed.write(b"id\t")
        for _ in range(64):
            packed.write(bytes(1_000_000))
    return file


def source_package(folder: Path, proof: Path) -> Path:
    """Make a source package under the pinned model's name whose setup.py writes down its environment."""
    code = (
        "import json, os, pathlib\n"
        f"pathlib.Path({str(proof)!r}).write_text(json.dumps(dict(os.environ)))\n"
        f"from setuptools import setup\nsetup(name={PACKAGE!r}, version={VERSION!r})\n"
    ).encode()
    folder.mkdir(exist_ok=True)
    file = folder / f"{PACKAGE}-{VERSION}.tar.gz"
    with tarfile.open(file, "w:gz") as archive:
        for name, content in (
            ("setup.py", code),
            ("PKG-INFO", f"Name: {PACKAGE}\nVersion: {VERSION}\n".encode()),
        ):
            member = tarfile.TarInfo(f"{PACKAGE}-{VERSION}/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return file


def other_wheel(folder: Path) -> Path:
    """Make a wheel under the pinned model's name that is not the pinned one."""
    folder.mkdir(exist_ok=True)
    stem = PACKAGE.replace("-", "_")
    file = folder / f"{stem}-{VERSION}-py3-none-any.whl"
    info = f"{stem}-{VERSION}.dist-info"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(f"{stem}/model/model.safetensors", b"other")
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {PACKAGE}\nVersion: {VERSION}\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return file


def pickled(file: Path, value: Any) -> Path:
    """Write a bare pickle."""
    file.write_bytes(pickle.dumps(value))
    return file


def noise(count: int, seed: int = 0) -> bytes:
    """Give random bytes."""
    return np.random.default_rng(seed).bytes(count)
