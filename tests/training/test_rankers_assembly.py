"""DAM and REM joined, against vectors of the authors' code (golden/ddr/README.md)."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hybridr.encoders.registry import checkpoints
from hybridr.errors import DataError, HybridrError, ModelError, SettingsError
from hybridr.training.objectives.labelled import max_sim
from hybridr.training.rankers import assemble
from support.golden_ddr import INPUTS, SOURCE, TARGET, TOLERANCE, gap, rem_of
from support.places import DDR

CASES = {case["name"]: case for case in json.loads((DDR / "manifest.json").read_text())["cases"]}
OUR_NAMES = {"average": "mean", "cos": "cosine", None: None}
LIMITS = {"queries": INPUTS["query_max_length"], "passages": INPUTS["passage_max_length"]}


def opened(case: dict[str, Any]) -> Any:
    usage = {key: OUR_NAMES.get(case.get(key), case.get(key)) for key in ("pooling", "similarity")}
    return assemble(
        DDR / case["dam"],
        DDR / case["rem"] if case["rem"] else None,
        ranker=case["ranker"],
        merge=case.get("merge_lora", False),
        load_rem_embeddings=case.get("load_embeddings_bin", True),
        **usage,
    )


def expected(file: str) -> np.ndarray:
    return np.load(DDR / file)


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
    ids = json.loads((DDR / "token_ids.json").read_text())["passages"]
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
    ids = json.loads((DDR / "token_ids.json").read_text())["queries"]["input_ids"]
    assert gap(encoder.encode_queries(ids), encoder.encode_queries(INPUTS["queries"])) <= TOLERANCE
    assert gap(encoder.encode_queries(np.array(ids)), encoder.encode_queries(ids)) == 0
    long = encoder.encode_documents([[101, *range(104, 160), 102]], max_tokens=10)
    assert gap(long, encoder.encode_documents([[101, *range(104, 112), 102]])) <= TOLERANCE


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
    assert (colbert.dim, colbert.encode_documents(["one", "one more text"]).shape[2]) == (16, 16)
    assert assemble(SOURCE, ranker="splade").encode_queries(["one"]).shape == (1, 280)


def test_a_retriever_has_the_same_vectors_and_fingerprint() -> None:
    dense = assemble(SOURCE, rem_of("dense_lora192"), merge=False)
    retriever = dense.retriever()
    assert retriever.fingerprint == dense.fingerprint
    found = retriever.encode_documents(INPUTS["passages"])
    assert gap(found, dense.encode_documents(INPUTS["passages"])) <= TOLERANCE
    assert not any("lora" in name or "base_layer" in name for name in retriever.backbone.state_dict())


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
    name = next(entry.name for entry in checkpoints() if entry.kind == "dam" and entry.language == "zh")
    dam = shutil.copytree(SOURCE, tmp_path / name)
    assert assemble(dam).similarity == "cosine"
    assert assemble(dam, similarity="ip").similarity == "ip"
    rem = shutil.copytree(rem_of("dense_lora192"), tmp_path / "REM-bert_base-dense-contrast-msmarco")
    with pytest.raises(ModelError, match="is a colbert ranker, not dense"):
        assemble("ColBERT-bert_base-distil-msmarco")
    with pytest.raises(ModelError, match="is zh and REM-bert_base-dense-contrast-msmarco is en"):
        assemble(dam, rem)
