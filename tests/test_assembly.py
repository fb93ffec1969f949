"""DAM and REM joined: against vectors of the authors' code (golden/ddr/README.md), and what is refused."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
import transformers
from sentence_transformers import SentenceTransformer

from hybridr.adaptation.objectives.labelled import max_sim
from hybridr.assembly import adapters
from hybridr.assembly.assembly import assemble
from hybridr.assembly.designs import Design, Lora, Parallel, read_design
from hybridr.assembly.published import published
from hybridr.assembly.rem_files import read_rem
from hybridr.encoding.opening import load_encoder
from hybridr.encoding.sentence_transformers import read_retriever
from hybridr.errors import DataError, HybridrError, ModelError, SettingsError
from hybridr.exporting.exporting import export

GOLDEN = Path(__file__).parent / "golden" / "ddr"
CASES = {case["name"]: case for case in json.loads((GOLDEN / "manifest.json").read_text())["cases"]}
INPUTS = json.loads((GOLDEN / "inputs.json").read_text())
SOURCE, TARGET = GOLDEN / "dams" / "dam_source", GOLDEN / "dams" / "dam_target"
OUR_NAMES = {"average": "mean", "cos": "cosine", None: None}
LIMITS = {"queries": INPUTS["query_max_length"], "passages": INPUTS["passage_max_length"]}
TOLERANCE = 1e-5


def rem_of(name: str) -> Path:
    return GOLDEN / "rems" / f"rem_{name}" / "msmarco"


def opened(case: dict[str, Any]) -> Any:
    usage = {key: OUR_NAMES.get(case.get(key), case.get(key)) for key in ("pooling", "similarity")}
    return assemble(
        GOLDEN / case["dam"],
        GOLDEN / case["rem"] if case["rem"] else None,
        ranker=case["ranker"],
        merge=case.get("merge_lora", False),
        load_rem_embeddings=case.get("load_embeddings_bin", True),
        **usage,
    )


def expected(file: str) -> np.ndarray:
    return np.load(GOLDEN / file)


def gap(found: Any, wanted: np.ndarray) -> float:
    assert found.shape == wanted.shape
    assert found.dtype == np.float32
    return float(np.abs(found - wanted).max())


@pytest.mark.parametrize("name", sorted(CASES))
def test_golden_case(name: str) -> None:
    case = CASES[name]
    encoder = opened(case)
    if "pairs" in case:
        found = encoder.score(INPUTS["pairs"], max_tokens=INPUTS["pair_max_length"])
        assert gap(found[:, None], expected(case["pairs"])) <= TOLERANCE
        return
    queries = INPUTS["roberta_input_ids"] if "roberta" in case["dam"] else INPUTS["queries"]
    found = encoder.encode_queries(queries, max_tokens=LIMITS["queries"])
    assert gap(found, expected(case["queries"])) <= TOLERANCE
    if "passages" in case:
        documents = encoder.encode_documents(INPUTS["passages"], max_tokens=LIMITS["passages"])
        assert gap(documents, expected(case["passages"])) <= TOLERANCE
    if "maxsim_scores" in case:
        scores = max_sim(torch.from_numpy(found), torch.from_numpy(documents)).numpy()
        assert gap(scores, expected(case["maxsim_scores"])) <= 10 * TOLERANCE  # sums of 14 products
    if "merged_query_weight_layer0" in case:
        layer = encoder.backbone.encoder.layer[0].attention.self.query
        weight = layer.get_base_layer().weight.detach().numpy()
        assert gap(weight, expected(case["merged_query_weight_layer0"])) <= TOLERANCE
    if "passages_all_hidden_states" in case:
        assert_hidden_states(encoder, case)


def assert_hidden_states(encoder: Any, case: dict[str, Any]) -> None:
    ids = json.loads((GOLDEN / "token_ids.json").read_text())["passages"]
    rows = encoder.tokens.rows(INPUTS["passages"], LIMITS["passages"])
    found_ids, mask = encoder.tokens.batch(rows)
    assert found_ids.tolist() == ids["input_ids"]
    assert mask.tolist() == ids["attention_mask"]
    with torch.inference_mode():
        answer = encoder.backbone(
            input_ids=torch.from_numpy(found_ids),
            attention_mask=torch.from_numpy(mask),
            output_hidden_states=True,
        )
    kept = mask[:, :, None].astype(np.float32)  # states at padding are nobody's
    last = expected(case["passages_last_hidden_state"])
    assert gap(answer.last_hidden_state.numpy() * kept, last * kept) <= TOLERANCE
    layers = np.stack([states.numpy() for states in answer.hidden_states])
    assert gap(layers * kept, expected(case["passages_all_hidden_states"]) * kept) <= TOLERANCE


def test_padded_ids_are_the_same_as_texts() -> None:
    encoder = assemble(SOURCE, rem_of("dense_lora192-pa4"))
    ids = json.loads((GOLDEN / "token_ids.json").read_text())["queries"]["input_ids"]
    assert gap(encoder.encode_queries(ids), encoder.encode_queries(INPUTS["queries"])) <= TOLERANCE
    assert gap(encoder.encode_queries(np.array(ids)), encoder.encode_queries(ids)) == 0
    long = encoder.encode_documents([[101, *range(104, 160), 102]], max_tokens=10)
    assert gap(long, encoder.encode_documents([[101, *range(104, 112), 102]])) <= TOLERANCE


@pytest.mark.parametrize("form", ["folder", "flat"])
def test_zips_load_like_the_folder(form: str) -> None:
    zipped = assemble(SOURCE, GOLDEN / "rems" / f"rem_dense_lora192-pa4.{form}.zip")
    assert zipped.fingerprint == assemble(SOURCE, rem_of("dense_lora192-pa4")).fingerprint


def test_a_folder_that_holds_the_zip(tmp_path: Path) -> None:
    shutil.copy(GOLDEN / "rems" / "rem_dense_lora192-pa4.flat.zip", tmp_path / "lora192-pa4.zip")
    (tmp_path / "training_args.bin").write_bytes(b"not a pickle")
    assert read_rem(tmp_path).name == "msmarco"


def test_merging_is_undone_exactly() -> None:
    encoder = assemble(SOURCE, rem_of("dense_lora192-pa4"), merge=False)
    weight = encoder.backbone.encoder.layer[1].attention.self.value.get_base_layer().weight
    before, fingerprint = weight.detach().clone(), encoder.fingerprint
    encoder.merge()
    assert encoder.merged
    assert not torch.equal(weight, before)
    encoder.unmerge()
    assert torch.equal(weight, before)
    encoder.merge()
    assert encoder.fingerprint == fingerprint
    with pytest.raises(ModelError, match="merged already"):
        encoder.merge()
    with pytest.raises(ModelError, match="'msmarco', is merged into the backbone already"):
        encoder.add_rem(read_rem(rem_of("dense_pa4")))
    encoder.unmerge()
    with pytest.raises(ModelError, match="not merged"):
        encoder.unmerge()
    with pytest.raises(ModelError, match="'msmarco', is in the backbone already"):
        encoder.add_rem(read_rem(rem_of("dense_pa4")))


def test_a_parallel_adapter_alone_cannot_be_merged() -> None:
    encoder = assemble(SOURCE, rem_of("dense_pa4"))
    assert not encoder.merged
    with pytest.raises(ModelError, match="no LoRA to merge"):
        encoder.merge()


def test_what_the_encoder_protocol_asks() -> None:
    dense = assemble(SOURCE, rem_of("dense_lora192"), similarity="cosine")
    assert (dense.dim, dense.similarity, dense.max_tokens, len(dense.fingerprint)) == (32, "cosine", 64, 64)
    others = {
        assemble(SOURCE, similarity="cosine").fingerprint,
        assemble(TARGET, rem_of("dense_lora192"), similarity="cosine").fingerprint,
        assemble(SOURCE, rem_of("dense_lora192")).fingerprint,
        assemble(SOURCE, rem_of("dense_lora192"), pooling="cls", similarity="cosine").fingerprint,
    }
    assert len(others | {dense.fingerprint}) == 5
    assert dense.encode_queries([]).shape == (0, 32)
    colbert = assemble(SOURCE, rem_of("colbert_lora192-pa4"), ranker="colbert")
    assert colbert.dim == 16
    assert colbert.encode_documents(["one", "one more text"]).shape[2] == 16
    assert assemble(SOURCE, ranker="splade").encode_queries(["one"]).shape == (1, 280)


def test_a_retriever_has_the_same_vectors_and_fingerprint() -> None:
    dense = assemble(SOURCE, rem_of("dense_lora192"), merge=False)
    retriever = dense.retriever()
    assert retriever.fingerprint == dense.fingerprint
    found = retriever.encode_documents(INPUTS["passages"])
    assert gap(found, dense.encode_documents(INPUTS["passages"])) <= TOLERANCE
    assert not any("lora" in name or "base_layer" in name for name in retriever.backbone.state_dict())


def test_splade_takes_the_word_embeddings_unless_told_not_to() -> None:
    rem = rem_of("splade_lora192-pa4")
    head = torch.load(rem / "pytorch_model_head.bin", weights_only=True)["cls.predictions.decoder.weight"]
    own = assemble(TARGET, ranker="splade").backbone.get_input_embeddings().weight
    for load, wanted in ((True, head), (False, own)):
        encoder = assemble(TARGET, rem, ranker="splade", load_rem_embeddings=load)
        assert torch.equal(encoder.backbone.get_input_embeddings().weight, wanted)
        assert torch.equal(encoder.model.get_output_embeddings().weight, wanted)


def test_the_rerankers_token_ids() -> None:
    encoder = assemble(SOURCE, rem_of("rerank_lora192-pa4"), ranker="rerank")
    rows, segments = encoder.tokens.pair_rows(INPUTS["pairs"], 48)
    assert encoder.tokens.pair_rows(rows, 48) == (rows, segments)
    assert gap(encoder.score(rows), encoder.score(INPUTS["pairs"], max_tokens=48)) <= TOLERANCE
    with pytest.raises(DataError, match="pair 0"):
        encoder.score(["only a query"])


@pytest.mark.parametrize(
    ("design", "count", "share"),
    [
        (Design(Lora(96, 96)), 3_538_944, 3.23),
        (Design(Lora(192, 192)), 7_077_888, 6.46),
        (Design(parallel=Parallel(4)), 3_550_464, 3.24),
        (Design(Lora(192, 192), Parallel(4)), 10_628_352, 9.71),
    ],
)
def test_parameter_shares_of_the_paper(design: Design, count: int, share: float) -> None:
    with torch.device("meta"):
        bert = transformers.BertModel(transformers.BertConfig())
    whole = sum(weight.numel() for weight in bert.parameters())
    adapters.attach(bert, design)
    trained = sum(weight.numel() for weight in bert.parameters() if weight.requires_grad)
    assert sum(weight.numel() for weight in adapters.adapter_weights(bert, "any").values()) == count
    assert (whole, trained) == (109_482_240, count)
    assert round(100 * count / whole, 2) == share


def test_a_fresh_rem_changes_nothing() -> None:
    encoder = assemble(SOURCE)
    before = encoder.encode_documents(INPUTS["passages"])
    adapters.attach(encoder.backbone, Design(Lora(8, 16), Parallel(4)))
    assert gap(encoder.encode_documents(INPUTS["passages"]), before) == 0


def test_reduction_by_layer_and_learned_scaling(tmp_path: Path) -> None:
    def change(part: dict[str, Any]) -> None:
        part |= {"reduction_factor": {"1": 2, "default": 4}, "scaling": "learned"}

    rem = changed(rem_of("dense_pa4"), tmp_path, change)
    weights = torch.load(rem / "pytorch_adapter.bin", weights_only=True)
    place = "bert.encoder.layer.{}.output.adapters.msmarco."
    for layer in (0, 1):
        weights[place.format(layer) + "scaling"] = torch.tensor([4.0])
    plain = assemble(SOURCE, rem_of("dense_pa4")).encode_queries(INPUTS["queries"])
    for part in ("adapter_down.0.weight", "adapter_down.0.bias"):  # 8 more units that do nothing
        wide = weights[place.format(1) + part]
        weights[place.format(1) + part] = torch.cat([wide, torch.zeros_like(wide)])
    up = weights[place.format(1) + "adapter_up.weight"]
    weights[place.format(1) + "adapter_up.weight"] = torch.cat([up, torch.ones_like(up)], dim=1)
    torch.save(weights, rem / "pytorch_adapter.bin")
    assert gap(assemble(SOURCE, rem).encode_queries(INPUTS["queries"]), plain) <= TOLERANCE


def changed(rem: Path, folder: Path, change: Callable[[dict[str, Any]], Any]) -> Path:
    """Copy a REM with a changed configuration of its last method."""
    copy = shutil.copytree(rem, folder / "rem")
    record = json.loads((copy / "adapter_config.json").read_text())
    config = record["config"]
    change(config["configs"][-1] if "configs" in config else config)
    (copy / "adapter_config.json").write_text(json.dumps(record))
    return copy


@pytest.mark.parametrize(
    ("rem", "option", "value"),
    [
        ("dense_lora192", "composition_mode", "scale"),
        ("dense_lora192", "use_gating", True),
        ("dense_lora192", "selfattn_lora", False),
        ("dense_lora192", "intermediate_lora", True),
        ("dense_lora192", "output_lora", True),
        ("dense_lora192", "attn_matrices", ["q", "o"]),
        ("dense_lora192", "r", 0),
        ("dense_lora192", "alpha", "large"),
        ("dense_lora192", "architecture", "prefix_tuning"),
        ("dense_pa4", "architecture", "mam"),
        ("dense_pa4", "is_parallel", False),
        ("dense_pa4", "output_adapter", False),
        ("dense_pa4", "mh_adapter", True),
        ("dense_pa4", "cross_adapter", True),
        ("dense_pa4", "phm_layer", True),
        ("dense_pa4", "use_gating", True),
        ("dense_pa4", "inv_adapter", "nice"),
        ("dense_pa4", "leave_out", [0]),
        ("dense_pa4", "ln_before", True),
        ("dense_pa4", "ln_after", True),
        ("dense_pa4", "original_ln_before", True),
        ("dense_pa4", "original_ln_after", False),
        ("dense_pa4", "adapter_residual_before_ln", True),
        ("dense_pa4", "non_linearity", "leakyrelu"),
        ("dense_pa4", "reduction_factor", {"0": 4}),
        ("dense_pa4", "scaling", None),
    ],
)
def test_unsupported_options_are_refused_by_name(rem: str, option: str, value: Any, tmp_path: Path) -> None:
    copy = changed(rem_of(rem), tmp_path, lambda part: part.update({option: value}))
    with pytest.raises(ModelError, match=option) as caught:
        assemble(SOURCE, copy)
    assert "not supported" in caught.value.message
    assert caught.value.hint


def test_unknown_options_and_two_of_a_kind(tmp_path: Path) -> None:
    copy = changed(rem_of("dense_pa4"), tmp_path, lambda part: part.update({"of_the_future": 3}))
    assemble(SOURCE, copy)
    part = json.loads((rem_of("dense_pa4") / "adapter_config.json").read_text())["config"]
    with pytest.raises(ModelError, match="2 parallel adapters"):
        read_design({"architecture": "union", "configs": [part, part]})


def test_heads_of_more_than_one_layer_are_refused(tmp_path: Path) -> None:
    copy = shutil.copytree(rem_of("colbert_lora192-pa4"), tmp_path / "rem")
    record = json.loads((copy / "head_config.json").read_text())
    record["config"]["layers"] = 2
    (copy / "head_config.json").write_text(json.dumps(record))
    with pytest.raises(ModelError, match="layers 2"):
        assemble(SOURCE, copy, ranker="colbert")


class Payload:
    """What a malicious checkpoint holds: unpickling it would make a folder."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.target),)


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("file", ["pytorch_adapter.bin", "pytorch_model_head.bin"])
def test_a_rem_that_runs_code_is_refused(file: str, zipped: bool, tmp_path: Path) -> None:
    rem = shutil.copytree(rem_of("colbert_lora192-pa4"), tmp_path / "rem")
    torch.save({"weight": torch.zeros(1), "more": Payload(tmp_path / "ran")}, rem / file)
    if zipped:
        with zipfile.ZipFile(tmp_path / "rem.zip", "w") as archive:
            for path in rem.iterdir():
                archive.write(path, f"inside/{path.name}")
        rem = tmp_path / "rem.zip"
    with pytest.raises(ModelError, match="it may run code") as caught:
        assemble(SOURCE, rem, ranker="colbert")
    assert file in caught.value.message
    assert "trust" in str(caught.value.hint)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("save", [torch.save, lambda value, path: path.write_bytes(pickle.dumps(value))])
def test_a_dam_that_runs_code_is_refused(save: Callable[..., Any], tmp_path: Path) -> None:
    dam = shutil.copytree(SOURCE, tmp_path / "dam")
    save({"weight": Payload(tmp_path / "ran")}, dam / "pytorch_model.bin")
    with pytest.raises(ModelError, match="it may run code"):
        assemble(dam)
    assert not (tmp_path / "ran").exists()


def test_training_args_are_never_opened(tmp_path: Path) -> None:
    rem = shutil.copytree(rem_of("dense_lora192"), tmp_path / "rem")
    torch.save(Payload(tmp_path / "ran"), rem / "training_args.bin")
    assemble(SOURCE, rem)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("keep", [0, 100, -1000])
def test_truncated_files_are_refused(keep: int, tmp_path: Path) -> None:
    rem = shutil.copytree(rem_of("dense_lora192"), tmp_path / "rem")
    dam = shutil.copytree(SOURCE, tmp_path / "dam")
    for path in (rem / "pytorch_adapter.bin", dam / "pytorch_model.bin"):
        path.write_bytes(path.read_bytes()[: keep or None] if keep else b"")
    for arguments in ((SOURCE, rem), (dam, None)):
        with pytest.raises(ModelError) as caught:
            assemble(*arguments)
        assert caught.value.hint


def broken_zip(folder: Path) -> tuple[Path, Path]:
    path = folder / "rem.zip"
    path.write_bytes((GOLDEN / "rems" / "rem_dense_lora192-pa4.flat.zip").read_bytes()[:5000])
    return SOURCE, path


def not_finite(folder: Path) -> tuple[Path, Path]:
    rem = shutil.copytree(rem_of("dense_lora192"), folder / "rem")
    weights = torch.load(rem / "pytorch_adapter.bin", weights_only=True)
    next(iter(weights.values()))[0, 0] = torch.nan
    torch.save(weights, rem / "pytorch_adapter.bin")
    return SOURCE, rem


def other_width(folder: Path) -> tuple[Path, Path]:
    rem = shutil.copytree(rem_of("dense_lora192"), folder / "rem")
    record = json.loads((rem / "adapter_config.json").read_text())
    (rem / "adapter_config.json").write_text(json.dumps(record | {"hidden_size": 768}))
    return SOURCE, rem


def other_depth(folder: Path) -> tuple[Path, Path]:
    rem = shutil.copytree(rem_of("dense_lora192"), folder / "rem")
    weights = torch.load(rem / "pytorch_adapter.bin", weights_only=True)
    weights |= {key.replace("layer.1.", "layer.2."): value for key, value in weights.items()}
    torch.save(weights, rem / "pytorch_adapter.bin")
    return SOURCE, rem


def other_rank(folder: Path) -> tuple[Path, Path]:
    return SOURCE, changed(rem_of("dense_lora192"), folder, lambda part: part.update({"r": 96}))


def two_rems(folder: Path) -> tuple[Path, Path]:
    for name in ("dense_lora192", "dense_pa4"):
        shutil.copytree(rem_of(name), folder / "rems" / name)
    return SOURCE, folder / "rems"


def smaller_config(folder: Path) -> tuple[Path, None]:
    return with_config(folder, {"num_hidden_layers": 1})


def wider_config(folder: Path) -> tuple[Path, None]:
    return with_config(folder, {"hidden_size": 64})


def deeper_config(folder: Path) -> tuple[Path, None]:
    return with_config(folder, {"num_hidden_layers": 3})


def other_kind(folder: Path) -> tuple[Path, None]:
    return with_config(folder, {"model_type": "gpt2"})


def with_config(folder: Path, change: dict[str, Any]) -> tuple[Path, None]:
    dam = shutil.copytree(SOURCE, folder / "dam")
    record = json.loads((dam / "config.json").read_text())
    (dam / "config.json").write_text(json.dumps(record | change))
    return dam, None


def other_tokenizer(folder: Path) -> tuple[Path, None]:
    dam = shutil.copytree(SOURCE, folder / "dam")
    record = json.loads((dam / "tokenizer.json").read_text())
    record["model"]["vocab"]["onemore"] = 280
    (dam / "tokenizer.json").write_text(json.dumps(record))
    return dam, None


def no_weights(folder: Path) -> tuple[Path, None]:
    dam = shutil.copytree(SOURCE, folder / "dam")
    (dam / "pytorch_model.bin").unlink()
    return dam, None


MISFITS: list[tuple[Callable[[Path], tuple[Path, Path | None]], str]] = [
    (broken_zip, "cannot be read as a zip"),
    (not_finite, "not finite"),
    (other_width, "of the width 768, this one is 32"),
    (other_depth, "have room for, 4 weights, such as bert.encoder.layer.2"),
    (other_rank, "has the size .192, 32., .96, 32. is needed"),
    (two_rems, "holds 2 REMs"),
    (lambda _: (SOURCE, rem_of("dense_lora192-pa4__roberta")), "of the kind roberta, this one is bert"),
    (lambda _: (SOURCE, rem_of("splade_lora192-pa4")), "for the ranker splade, this one is dense"),
    (lambda folder: (SOURCE, folder), "it has no adapter_config.json"),
    (lambda folder: (folder / "none", None), "there is no DAM or REM"),
    (lambda folder: (folder, None), "has no config.json"),
    (smaller_config, "has too many weights, such as bert.encoder.layer.1"),
    (deeper_config, "lacks weights, such as bert.encoder.layer.2"),
    (wider_config, "has wrong sizes of weights"),
    (other_kind, "of the kind 'gpt2'"),
    (other_tokenizer, "tokenizer of 281 words and embeddings for 280"),
    (no_weights, "has no weights"),
]


@pytest.mark.parametrize(("made", "words"), MISFITS, ids=[words for _, words in MISFITS])
def test_what_does_not_fit_is_refused(
    made: Callable[[Path], tuple[Path, Path | None]], words: str, tmp_path: Path
) -> None:
    with pytest.raises(ModelError, match=words) as caught:
        assemble(*made(tmp_path))
    assert caught.value.exit_code == 1
    assert caught.value.hint or caught.value.message.endswith("is needed")


def test_vocabularies_that_differ(tmp_path: Path) -> None:
    for name, file in (("splade", "pytorch_model_head.bin"), ("rerank", "embeddings.bin")):
        rem = shutil.copytree(rem_of(f"{name}_lora192-pa4"), tmp_path / name)
        weights = torch.load(rem / file, weights_only=True)
        cut = {key: value[:200] if len(value) == 280 else value for key, value in weights.items()}
        torch.save(cut, rem / file)
        with pytest.raises(ModelError, match=r"\(200.*\(280.* is needed"):
            assemble(SOURCE, rem, ranker=name)


@pytest.mark.parametrize("ranker", ["unicoil", "colbert", "rerank"])
def test_a_missing_head_is_named(ranker: str) -> None:
    with pytest.raises(ModelError, match=f"the ranker {ranker} needs a head"):
        assemble(SOURCE, ranker=ranker)


def test_unicoil_without_a_tokenizer(tmp_path: Path) -> None:
    dam = tmp_path / "dam"
    dam.mkdir()
    for name in ("config.json", "pytorch_model.bin"):
        shutil.copy(SOURCE / name, dam / name)
    with pytest.raises(ModelError, match="cls_token, which unicoil has to leave out"):
        assemble(dam, rem_of("unicoil_lora192-pa4"), ranker="unicoil")
    with pytest.raises(ModelError, match="no tokenizer, so texts cannot be read"):
        assemble(dam).encode_queries(["text"])
    with pytest.raises(ModelError, match="no tokenizer"):
        assemble(dam, rem_of("rerank_lora192-pa4"), ranker="rerank").score([[101, 104, 102, 105, 102]])
    shutil.copy(SOURCE / "vocab.txt", dam / "vocab.txt")
    encoder = assemble(dam, rem_of("unicoil_lora192-pa4"), ranker="unicoil")
    whole = assemble(SOURCE, rem_of("unicoil_lora192-pa4"), ranker="unicoil")
    passages = INPUTS["passages"]
    assert gap(encoder.encode_documents(passages), whole.encode_documents(passages)) == 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"ranker": "bm25"}, "there is no ranker 'bm25'"),
        ({"pooling": "average"}, "there is no pooling 'average'"),
        ({"similarity": "l2"}, "there is no similarity 'l2'"),
        ({"ranker": "splade", "pooling": "cls"}, "for the dense ranker, not for splade"),
    ],
)
def test_settings_that_do_not_exist(options: dict[str, str], words: str) -> None:
    with pytest.raises(SettingsError, match=words) as caught:
        assemble(SOURCE, **options)  # type: ignore[arg-type]
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("inputs", [[[1, 280]], [[-1]], "one text", [3]])
def test_inputs_that_are_none(inputs: Any) -> None:
    with pytest.raises((DataError, HybridrError)):
        assemble(SOURCE).encode_queries(inputs)


def test_a_folder_with_a_published_name_is_used_as_published(tmp_path: Path) -> None:
    name = next(entry.name for entry in published() if entry.kind == "dam" and entry.language == "zh")
    dam = shutil.copytree(SOURCE, tmp_path / name)
    assert assemble(dam).similarity == "cosine"
    assert assemble(dam, similarity="ip").similarity == "ip"
    rem = shutil.copytree(rem_of("dense_lora192"), tmp_path / "REM-bert_base-dense-contrast-msmarco")
    with pytest.raises(ModelError, match="is a colbert ranker, not dense"):
        assemble("ColBERT-bert_base-distil-msmarco")
    with pytest.raises(ModelError, match="is zh and REM-bert_base-dense-contrast-msmarco is en"):
        assemble(dam, rem)


def test_old_names_of_layer_norms_and_bare_backbones(tmp_path: Path) -> None:
    dam = shutil.copytree(SOURCE, tmp_path / "dam")
    weights = torch.load(dam / "pytorch_model.bin", weights_only=True)
    bare = {
        key.removeprefix("bert.").replace("LayerNorm.weight", "LayerNorm.gamma"): value
        for key, value in weights.items()
        if key.startswith("bert.")
    }
    torch.save(bare, dam / "pytorch_model.bin")
    assert assemble(dam).fingerprint == assemble(SOURCE).fingerprint
    with pytest.raises(ModelError, match="no masked-LM head"):
        assemble(dam, ranker="splade")


def test_a_lora_only_encoder_is_exported_as_a_plain_bert(tmp_path: Path) -> None:
    dense = assemble(SOURCE, rem_of("dense_lora192"), similarity="cosine", merge=False)
    folder = export(dense, tmp_path / "encoder", texts=INPUTS["passages"])
    wanted = dense.encode_documents(INPUTS["passages"])
    opened = load_encoder(folder)
    assert opened.fingerprint == dense.fingerprint
    assert gap(opened.encode_documents(INPUTS["passages"]), wanted) <= 10 * TOLERANCE
    found = SentenceTransformer(str(folder), device="cpu").encode(INPUTS["passages"])
    assert gap(found, wanted) <= 10 * TOLERANCE
    again = read_retriever(folder)
    assert again.fingerprint == dense.fingerprint
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["assembly"] == {"dam": "dam_source", "rem": "msmarco"}


@pytest.mark.parametrize(
    ("dam", "rem"),
    [("dam_source", "dense_lora192-pa4"), ("dam_distilbert", "dense_lora192-pa4__distilbert")],
)
def test_an_encoder_with_a_parallel_adapter_is_exported_as_a_graph(
    dam: str, rem: str, tmp_path: Path
) -> None:
    dense = assemble(GOLDEN / "dams" / dam, rem_of(rem))
    folder = export(dense, tmp_path / "encoder", texts=INPUTS["passages"])
    found = load_encoder(folder)
    assert found.fingerprint == dense.fingerprint
    queries = INPUTS["queries"]
    assert gap(found.encode_queries(queries), dense.encode_queries(queries)) <= 10 * TOLERANCE
    assert not (folder / "model.safetensors").exists()
    card = (folder / "README.md").read_text()
    assert "transformers and sentence-transformers do not" in card
    assert f"backbone `{dam}` and the relevance module `msmarco`" in card
    with pytest.raises(ModelError, match=r"modules\.json"):
        read_retriever(folder)


@pytest.mark.parametrize("rem", ["dense_lora192", "dense_lora192-pa4"])
def test_int8_of_an_assembled_encoder(rem: str, tmp_path: Path) -> None:
    dense = assemble(SOURCE, rem_of(rem), similarity="cosine")
    folder = export(dense, tmp_path / "encoder", precision="int8", texts=INPUTS["passages"])
    narrow = load_encoder(folder)
    assert (narrow.precision, narrow.fingerprint) == ("int8", dense.fingerprint)
    wanted = dense.encode_documents(INPUTS["passages"])
    found = narrow.encode_documents(INPUTS["passages"])
    assert not np.array_equal(found, wanted)
    assert (found * wanted).sum(axis=1).mean() > 0.95
    operators = {node.op_type for node in onnx.load(folder / "onnx" / "model_int8.onnx").graph.node}
    assert "MatMulIntegerToFloat" in operators
    manifest = json.loads((folder / "manifest.json").read_text())
    assert {"torch", "fp32", "int8"} <= manifest["parity"]["ndcg"].keys()
    assert manifest["encoder"]["graph_only"] is (rem != "dense_lora192")
    card = (folder / "README.md").read_text()
    assert "| domain module (DAM) | `dam_source` |\n| relevance module (REM) | `msmarco` |\n" in card
    for words in ("cosine, mean pooling", "int8 against fp32: mean cosine", "| nDCG@10 | torch 0."):
        assert words in card


def test_only_dense_rankers_are_exported(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="a splade ranker cannot be exported"):
        export(assemble(SOURCE, ranker="splade"), tmp_path / "encoder")
    assert not (tmp_path / "encoder").exists()
