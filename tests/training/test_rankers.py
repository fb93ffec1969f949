"""What each ranker needs beside a backbone: heads, embeddings, a tokenizer."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

from hybridr.errors import DataError, ModelError
from hybridr.training.rankers import assemble
from support.golden_ddr import INPUTS, SOURCE, TARGET, TOLERANCE, gap, rem_of


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


def test_heads_of_more_than_one_layer_are_refused(tmp_path: Path) -> None:
    copy = shutil.copytree(rem_of("colbert_lora192-pa4"), tmp_path / "rem")
    record = json.loads((copy / "head_config.json").read_text())
    record["config"]["layers"] = 2
    (copy / "head_config.json").write_text(json.dumps(record))
    with pytest.raises(ModelError, match="layers 2"):
        assemble(SOURCE, copy, ranker="colbert")


def test_vocabularies_that_differ(tmp_path: Path) -> None:
    for name, file in (("splade", "pytorch_model_head.bin"), ("rerank", "embeddings.bin")):
        rem = shutil.copytree(rem_of(f"{name}_lora192-pa4"), tmp_path / name)
        weights = torch.load(rem / file, weights_only=True)
        cut = {key: value[:200] if len(value) == 280 else value for key, value in weights.items()}
        torch.save(cut, rem / file)
        with pytest.raises(ModelError, match=r"\(200.* instead of \(280"):
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
