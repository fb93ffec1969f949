"""Models that lie, reach out of their folder, bring code or ask for too much: each is refused by name."""

from __future__ import annotations

import builtins
import json
import os
import resource
import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hybridr.cluster.retrievers.dense import to_stored_values
from hybridr.encoders.export.exporting import export
from hybridr.encoders.export.fetched_models import minilm
from hybridr.encoders.opening import load_encoder
from hybridr.errors import DownloadError, ModelError
from hybridr.files import fetching
from hybridr.training.backbone import read_dam
from hybridr.training.torch_models import read_retriever
from support import hostile
from support.golden_ddr import SOURCE
from support.tiny import damage_json, tiny_texts


@pytest.mark.attack(48)
@pytest.mark.parametrize("make", [hostile.source_package, lambda folder, _: hostile.other_wheel(folder)])
def test_no_package_but_the_pinned_wheel_is_opened(make, tmp_path, monkeypatch):
    ran = tmp_path / "ran"
    make(tmp_path / "mirror", ran)
    monkeypatch.setenv("HYBRIDR_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "mirror"))
    monkeypatch.setenv("HYBRIDR_PASSWORD", "secret")
    with pytest.raises(DownloadError, match="is not the genuine one|No matching distribution"):
        minilm()
    assert not ran.exists()


@pytest.mark.attack(48)
def test_pip_is_not_told_what_hybridr_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environments: list[dict[str, str]] = []
    monkeypatch.setattr(subprocess, "run", lambda *_, env, **__: environments.append(env))
    monkeypatch.setenv("HYBRIDR_PASSWORD", "secret")
    fetching.run_pip("download", "some", [], tmp_path, [])
    assert environments == [{k: v for k, v in os.environ.items() if not k.startswith("HYBRIDR_")}]


@pytest.mark.attack(49)
@pytest.mark.parametrize("name", ["losses.jsonl", "vocab.txt", "dam", "onnx/other", "tokenizer.json"])
def test_a_link_out_of_the_folder_is_not_followed(name: str, encoder: Path, secret: Path, tmp_path) -> None:
    target = secret.parent if name == "dam" else secret
    folder = hostile.linked(encoder, tmp_path / "model", name, target)
    with pytest.raises(ModelError, match=f"{name} is a link that leads out of the folder") as caught:
        export(folder, tmp_path / "out")
    assert caught.value.hint == "copy the files into it"
    assert not (tmp_path / "out").exists()


@pytest.mark.attack(49)
def test_every_reader_refuses_such_a_link(encoder: Path, secret: Path, tmp_path: Path) -> None:
    with_manifest = hostile.with_manifest(encoder, tmp_path / "encoder")
    (with_manifest / "vocab.txt").symlink_to(secret)
    with pytest.raises(ModelError, match=r"vocab\.txt is a link that leads out"):
        load_encoder(with_manifest)
    dam = hostile.model(SOURCE, tmp_path / "dam")
    (dam / "merges.txt").symlink_to(secret)
    with pytest.raises(ModelError, match=r"merges\.txt is a link that leads out"):
        read_dam(dam)


@pytest.mark.attack(49)
def test_a_pipe_in_a_model_folder_stops_nobody(folder: Path, tmp_path: Path) -> None:
    os.mkfifo(folder / "losses.jsonl")
    with pytest.raises(ModelError, match=r"losses\.jsonl is neither a file nor a folder"):
        export(folder, tmp_path / "out")


def test_the_hubs_own_links_are_followed(encoder: Path, tmp_path: Path) -> None:
    snapshot = tmp_path / "models--me--tiny" / "snapshots" / ("1" * 40)
    snapshot.parent.mkdir(parents=True)
    folder = hostile.model(encoder, snapshot)
    blob = tmp_path / "models--me--tiny" / "blobs" / "weights"
    blob.parent.mkdir()
    (folder / "model.safetensors").rename(blob)
    (folder / "model.safetensors").symlink_to(blob)
    assert read_retriever(folder).dim == 32
    (folder / "vocab.txt").symlink_to(tmp_path)
    with pytest.raises(ModelError, match="leads out"):
        read_retriever(folder)


@pytest.mark.attack(50)
@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"model_type": "own", "auto_map": {"AutoModel": "own.Model"}}, "auto_map"),
        ({"auto_map": {"AutoModel": "own.Model"}}, "auto_map"),
        ({"auto_map": {"AutoModel": "somebody/else--own.Model"}}, "auto_map"),
        ({"model_type": "own"}, "is of the kind 'own'; one of albert, bert"),
        ({"model_type": None}, "is of the kind None"),
        ({"model_type": ["bert"]}, r"is of the kind \['bert'\]"),
        ({"quantization_config": {"quant_method": "own"}}, "quantization_config"),
    ],
)
def test_a_model_that_brings_code_is_refused_without_a_question(
    config: dict[str, Any], words: str, encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = hostile.with_config(encoder, tmp_path / "model", **config)
    (folder / "own.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass Model: pass\n")
    monkeypatch.setattr(builtins, "input", lambda *_: pytest.fail("a question was asked"))
    with pytest.raises(ModelError, match=words):
        export(folder, tmp_path / "out")
    assert not (tmp_path / "ran").exists()


@pytest.mark.attack(50)
def test_a_tokenizer_that_brings_code_is_refused(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    damage_json(folder / "tokenizer_config.json", auto_map={"AutoTokenizer": ["own.Tokenizer", None]})
    with pytest.raises(ModelError, match=r"asks in tokenizer_config\.json for auto_map"):
        read_retriever(folder)


@pytest.mark.attack(51)
@pytest.mark.parametrize("name", ["_attn_implementation", "attn_implementation"])
def test_kernels_of_a_hub_are_refused(name: str, encoder: Path, tmp_path: Path) -> None:
    folder = hostile.with_config(encoder, tmp_path / "model", **{name: "kernels-community/flash-attn"})
    with pytest.raises(
        ModelError, match=f"{name} = 'kernels-community/flash-attn', which is third-party code"
    ):
        read_retriever(folder)


@pytest.mark.attack(51)
def test_only_known_keys_reach_transformers(encoder: Path, tmp_path: Path) -> None:
    folder = hostile.with_config(
        encoder, tmp_path / "model", _attn_implementation="sdpa", use_kernels=True, own={"a": 1}
    )
    config = read_retriever(folder).config
    assert config._attn_implementation == "eager"
    assert not hasattr(config, "own")
    assert not hasattr(config, "use_kernels")


@pytest.mark.attack(55)
@pytest.mark.parametrize("location", ["../../secret/shadow", "{secret}", "link"])
def test_a_graph_reads_no_file_outside_its_folder(location, encoder, secret, tmp_path):
    graph = hostile.reaching_graph(location.format(secret=secret))
    folder = hostile.with_graph(encoder, tmp_path / "encoder", graph)
    if location == "link":
        (folder / "onnx" / "link").symlink_to(secret)
    with pytest.raises(ModelError, match="cannot be opened|leads out of the folder"):
        load_encoder(folder)


@pytest.mark.attack(55)
def test_a_graph_with_an_operator_of_others_is_refused(encoder: Path, tmp_path: Path) -> None:
    folder = hostile.with_graph(encoder, tmp_path / "encoder", hostile.unknown_graph())
    with pytest.raises(ModelError, match="cannot be opened"):
        load_encoder(folder)


@pytest.mark.attack(56)
def test_a_graph_that_asks_for_any_memory_gets_a_bounded_one(encoder: Path, tmp_path: Path) -> None:
    folder = hostile.with_graph(encoder, tmp_path / "encoder", hostile.hungry_graph())
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ModelError, match="the encoder's graph failed: .*ConstantOfShape") as caught:
        load_encoder(folder).encode_documents(tiny_texts(2))
    assert "HYBRIDR_MEMORY_GB" in str(caught.value.hint)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1_000_000, "kB"


@pytest.mark.attack(57)
def test_a_graph_of_another_width_is_refused(encoder: Path, tmp_path: Path) -> None:
    folder = hostile.with_graph(encoder, tmp_path / "encoder", hostile.narrow_graph())
    words = r"gives vectors \(2, 1\) of float32; its manifest promises \(2, 32\) of float32"
    with pytest.raises(ModelError, match=words):
        load_encoder(folder).encode_documents(["kolan", "kolan"])


@pytest.mark.attack(58)
@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({"dim": 10**12}, r"encoder\.dim: input should be less than or equal to 65536"),
        ({"dim": "384"}, r"encoder\.dim: input should be a valid integer"),
        ({"max_tokens": -5}, r"encoder\.max_tokens: input should be greater than or equal to 3"),
        ({"max_positions": 1e400}, r"encoder\.max_positions: input should be a finite number|valid integer"),
        ({"prefixes": {}}, r"encoder\.prefixes\.query: field required"),
        ({"prefixes": 5}, r"encoder\.prefixes: input should be"),
        ({"similarity": "evil"}, r"encoder\.similarity: input should be 'cosine' or 'ip'"),
        ({"fingerprint": "../../x"}, r"encoder\.fingerprint: string should match"),
    ],
)
def test_a_manifest_that_says_nonsense_is_refused(entry, words, encoder, tmp_path):
    folder = hostile.with_manifest(encoder, tmp_path / "encoder", **entry)
    with pytest.raises(ModelError, match=words):
        load_encoder(folder)


@pytest.mark.attack(58)
@pytest.mark.parametrize("name", ["outputs", "encoder", "settings"])
def test_a_manifest_of_another_shape_is_refused(name: str, encoder: Path, tmp_path: Path) -> None:
    folder = hostile.with_manifest(encoder, tmp_path / "encoder")
    damage_json(folder / "manifest.json", **{name: 5})
    with pytest.raises(ModelError, match=f"'{name}' is not an object"):
        load_encoder(folder)


@pytest.mark.attack(59)
@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"num_hidden_layers": 2_000_000}, r"has 2000000 layers; 1\.\.1000 are supported"),
        ({"num_hidden_layers": "2"}, "has 2 layers"),
        ({"num_hidden_layers": 200}, "describes .* weights; the files hold"),
        ({"hidden_size": 2**40}, "cannot be opened|describes"),
        ({"vocab_size": -1}, "cannot be opened"),
        ({"intermediate_size": 2**33}, "describes"),
        ({"max_position_embeddings": 2**40}, "cannot be opened|describes"),
        ({"num_attention_heads": 0}, "cannot be opened"),
        ({"hidden_size": "32"}, "cannot be opened"),
    ],
)
def test_a_configuration_of_a_giant_is_refused_at_once(config, words, encoder, tmp_path):
    folder = hostile.with_config(encoder, tmp_path / "model", **config)
    with pytest.raises(ModelError, match=words):
        read_retriever(folder)


@pytest.mark.attack(59)
@pytest.mark.parametrize("make", [hostile.giant_safetensors, hostile.endless_header, hostile.crowded_header])
def test_weights_that_are_not_there_are_refused(make, folder):
    make(folder / "model.safetensors")
    with pytest.raises(ModelError, match="cannot be opened: .*([Hh]eader|has a list of 7 MB of its tensors)"):
        read_retriever(folder)


@pytest.mark.attack(59)
def test_larger_weights_than_are_allowed_are_not_read(folder: Path, monkeypatch) -> None:
    monkeypatch.setenv("HYBRIDR_MODEL_GB", "0.00001")
    with pytest.raises(ModelError, match="HYBRIDR_MODEL_GB"):
        read_retriever(folder)


@pytest.mark.attack(59)
@pytest.mark.parametrize(
    ("file", "content", "words"),
    [
        ("tokenizer.json", hostile.DEEP, "cannot be opened"),
        ("tokenizer.json", "{}", "cannot be opened"),
        ("config.json", hostile.DEEP, "nested too deep"),
        ("config.json", "[]", "is not a JSON object"),
        ("modules.json", "5", "cannot be opened"),
        ("modules.json", hostile.DEEP, "nested too deep"),
        ("sentence_bert_config.json", '{"max_seq_length": -5}', "reads -5 tokens"),
        ("sentence_bert_config.json", '{"max_seq_length": 0}', "reads 0 tokens"),
        ("sentence_bert_config.json", '{"max_seq_length": 1e999}', None),
        ("tokenizer_config.json", '{"model_max_length": "x"}', None),
        ("config_sentence_transformers.json", '{"prompts": 5}', "cannot be opened"),
        ("special_tokens_map.json", "[1]", None),
    ],
)
def test_files_of_another_shape_are_refused(file, content, words, folder):
    (folder / file).write_text(content)
    if words is None:
        assert read_retriever(folder).max_tokens <= 128
    else:
        with pytest.raises(ModelError, match=words):
            read_retriever(folder)


@pytest.mark.attack(59)
def test_a_module_outside_the_folder_is_refused(folder: Path, secret: Path) -> None:
    modules = json.loads((folder / "modules.json").read_text())
    for path in ("../secret", str(secret.parent)):
        modules[1]["path"] = path
        (folder / "modules.json").write_text(json.dumps(modules))
        with pytest.raises(ModelError, match="which is outside it"):
            read_retriever(folder)


@pytest.mark.attack(49)
@pytest.mark.parametrize("key", ["vocab_file", "tokenizer_file", "merges_file"])
def test_a_tokenizer_takes_no_file_from_elsewhere(key: str, folder: Path, secret: Path) -> None:
    (folder / "tokenizer.json").unlink()
    (folder / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nkolan\n")
    damage_json(folder / "tokenizer_config.json", **{key: str(secret)})
    with pytest.raises(ModelError, match=f"takes its {key} from elsewhere"):
        read_retriever(folder)


def test_an_older_tokenizer_is_still_read(encoder: Path, tmp_path: Path) -> None:
    folder = hostile.model(encoder, tmp_path / "model")
    words = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer_config.json").write_text('{"do_lower_case": true, "model_max_length": 64}')
    (folder / "vocab.txt").write_text("\n".join(sorted(words, key=lambda word: words[word])))
    text = ["kolan milat"]
    found, wanted = read_retriever(folder), read_retriever(hostile.model(encoder, tmp_path / "other"))
    assert list(found.tokenizer.ids(text, None)) == list(wanted.tokenizer.ids(text, None))


@pytest.mark.attack(58)
@pytest.mark.parametrize("entry", [{"promoted": 5}, {"promoted": True, "parameters": "x"}])
def test_a_record_that_cannot_be_shown_is_refused(entry: dict[str, Any], encoder: Path, tmp_path) -> None:
    folder = hostile.with_manifest(encoder, tmp_path / "encoder")
    damage_json(folder / "manifest.json", adaptation=entry)
    with pytest.raises(ModelError, match="has an invalid adaptation or assembly"):
        export(folder, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.attack(96)
@pytest.mark.parametrize("many", ["outputs", "nodes"])
def test_a_graph_of_more_parts_than_an_encoder_has_is_refused_at_once(many, encoder, tmp_path):
    """Opening one of 100,000 outputs took minutes before anything was said."""
    folder = hostile.with_graph(encoder, tmp_path / "encoder", hostile.crowded_graph(many))
    started = time.monotonic()
    with pytest.raises(ModelError, match=f"more than [0-9,]+ {many}; no encoder has that many"):
        load_encoder(folder)
    assert time.monotonic() - started < 10


@pytest.mark.attack(96)
def test_a_graph_that_is_cut_off_or_none_ends_as_a_model_error(encoder: Path, tmp_path: Path) -> None:
    whole = (encoder / "onnx" / "model.onnx").read_bytes()
    for name, content in {"cut": whole[:-7], "none": b"\xff" * 40, "empty": b""}.items():
        folder = hostile.with_graph(encoder, tmp_path / name, content)
        with pytest.raises(ModelError):
            load_encoder(folder)


@pytest.mark.attack(97)
def test_a_graph_that_gives_no_numbers_is_named(encoder: Path, tmp_path: Path) -> None:
    width = load_encoder(encoder).dim
    folder = hostile.with_graph(encoder, tmp_path / "encoder", hostile.numberless_graph(width))
    for encode in (load_encoder(folder).encode_queries, load_encoder(folder).encode_documents):
        with pytest.raises(ModelError, match="the encoder gives NaN or infinity"):
            encode(["kolan"])


@pytest.mark.attack(97)
def test_a_foreign_encoder_that_gives_no_numbers_asks_nothing() -> None:
    with pytest.raises(ModelError, match="the encoder gives NaN"):
        to_stored_values(np.array([[1.0, np.inf]], dtype=np.float32), "float")


@pytest.mark.attack(100)
def test_a_prompt_of_megabytes_is_refused_before_it_is_exported(folder: Path, tmp_path: Path) -> None:
    file = folder / "config_sentence_transformers.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"prompts": {"query": "x" * 10_000_000}}))
    with pytest.raises(ModelError, match="a prompt of 10,000,000 characters; at most 10,000 are allowed"):
        export(folder, tmp_path / "out")
    assert not (tmp_path / "out").exists()
