"""Models of the hub: published checkpoints, whether it answers, what a fetch says offline."""

from __future__ import annotations

import fnmatch
import json
import shutil
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from huggingface_hub import constants
from transformers import AutoTokenizer, BertConfig, BertForMaskedLM

import hybridr
from hybridr.encoders.export import fetched_models
from hybridr.encoders.export.fetched_models import (
    REM_FILE,
    bar_class,
    fetch_published,
    try_hub,
)
from hybridr.encoders.registry import checkpoints, published_checkpoint
from hybridr.errors import DownloadError, ModelError
from hybridr.training.rankers import assemble, export_joined
from support.places import DDR
from support.tiny import SPECIAL, WORDS, tiny_corpus
from support.waiting import within


def test_the_48_checkpoints_of_ddr_and_the_8_of_coco_dr() -> None:
    ddr = {entry.name: entry for entry in checkpoints() if entry.owner == "jingtao"}
    coco = [entry for entry in checkpoints() if entry.owner == "OpenMatch"]
    assert (len(ddr), len(coco), len(checkpoints())) == (48, 8, 56)
    assert Counter(entry.kind for entry in ddr.values()) == {"rem": 18, "dam": 12, "full": 18}
    assert Counter(entry.language for entry in ddr.values()) == {"en": 25, "zh": 23}
    for name in (
        *("DAM-bert_base-mlm-msmarco", "DAM-bert_base-mlm-msmarco-lotte_write_test"),
        *("DAM-bert_base-mlm-dureader-cmedqav2", "REM-bert_base-splade-distil-dureader"),
        *("REM-bert_base-rerank-msmarco", "uniCOIL-bert_base-distil-msmarco", "Rerank-bert_base-dureader"),
    ):
        assert ddr[name].repository == f"jingtao/{name}"
        for source in (name, f"jingtao/{name}", Path("/somewhere") / name, f"/somewhere/{name}/"):
            assert published_checkpoint(source) == ddr[name]
    chinese = ddr["REM-bert_base-dense-contrast-dureader"]
    assert (chinese.pooling, chinese.similarity) == ("mean", "cosine")
    assert ddr["DAM-bert_base-mlm-msmarco"].similarity == "ip"
    assert {entry.name for entry in coco} == {
        f"cocodr-{size}{form}"
        for size in ("base", "large")
        for form in ("", "-msmarco", "-msmarco-idro-only", "-msmarco-warmup")
    }
    assert {(entry.kind, entry.pooling, entry.similarity) for entry in coco} == {("full", "cls", "ip")}
    assert published_checkpoint("all-MiniLM-L6-v2") is None
    with pytest.raises(ModelError, match="no published checkpoint 'DAM'"):
        fetch_published("DAM")


def test_every_dam_and_rem_has_partners_of_its_language() -> None:
    for entry in checkpoints():
        partners = [other for other in checkpoints() if fnmatch.fnmatch(other.name, entry.partner)]
        assert bool(partners) == (entry.kind != "full")
        assert all(other.language == entry.language for other in partners)
        assert {other.kind for other in partners} <= {"dam", "rem"} - {entry.kind}


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Give the folder where fetched checkpoints lie, and keep the hub out of reach."""
    monkeypatch.setenv("HYBRIDR_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    return tmp_path / "hub"


def test_without_a_hub_the_words_are_clear(hub: Path) -> None:
    rem, dam = "REM-bert_base-rerank-msmarco", "DAM-bert_base-mlm-msmarco"
    for name, files in ((rem, REM_FILE), (dam, "config.json")):
        with pytest.raises(DownloadError, match=f"jingtao/{name} could not be fetched") as caught:
            fetch_published(name)
        hint = str(caught.value.hint)
        assert files in hint
        assert "to resume" in hint
        assert caught.value.exit_code == 1


def stored(hub: Path, name: str, owner: str = "jingtao") -> Path:
    """Lay a checkpoint down as the hub's client does."""
    place = hub / f"models--{owner}--{name}"
    (place / "refs").mkdir(parents=True)
    (place / "refs" / "main").write_text("1" * 40)
    (place / "snapshots" / ("1" * 40)).mkdir(parents=True)
    return place / "snapshots" / ("1" * 40)


def test_a_fetched_checkpoint_is_used_without_the_hub(hub: Path) -> None:
    golden = DDR
    dam = shutil.copytree(
        golden / "dams" / "dam_source", stored(hub, "DAM-bert_base-mlm-msmarco"), dirs_exist_ok=True
    )
    rem = stored(hub, "REM-bert_base-dense-contrast-msmarco") / REM_FILE
    shutil.copy(golden / "rems" / "rem_dense_lora192-pa4.flat.zip", rem)
    named = assemble("jingtao/DAM-bert_base-mlm-msmarco", "REM-bert_base-dense-contrast-msmarco")
    assert named.fingerprint == assemble(dam, rem).fingerprint


def tiny_coco_dr(folder: Path) -> Path:
    """Write a checkpoint of the published shape: a plain BERT, no sentence-transformers files."""
    torch.manual_seed(0)
    words = [*SPECIAL, *WORDS, ".", ","]
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    model = BertForMaskedLM(BertConfig(vocab_size=len(words), max_position_embeddings=130, **sizes))
    torch.nn.init.normal_(model.bert.embeddings.word_embeddings.weight, std=0.3)
    folder.mkdir(parents=True, exist_ok=True)
    model.config.architectures = ["BertForMaskedLM"]
    model.config.to_json_file(folder / "config.json")
    torch.save(model.state_dict(), folder / "pytorch_model.bin")
    (folder / "vocab.txt").write_text("\n".join(words))
    (folder / "added_tokens.json").write_text("{}")
    named = {"pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]"}
    (folder / "special_tokens_map.json").write_text(json.dumps(named | {"unk_token": "[UNK]"}))
    (folder / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": True} | named))
    return folder


def test_coco_dr_is_opened_by_name_or_folder_and_exported(hub: Path, tmp_path: Path) -> None:
    name = "cocodr-base-msmarco"
    fetched = tiny_coco_dr(stored(hub, name, "OpenMatch"))
    own = tiny_coco_dr(tmp_path / name)
    texts = [document.text for document in tiny_corpus(40)]
    ids = AutoTokenizer.from_pretrained(fetched)(texts, padding=True, return_tensors="pt")
    with torch.inference_mode():
        states = BertForMaskedLM.from_pretrained(fetched, local_files_only=True).eval().bert(**ids)[0]
    wanted = states[:, 0].numpy()  # as its authors say: the state of [CLS], as it is
    for source in (name, own):
        folder = export_joined(source, None, tmp_path / "encoder", texts=texts)
        encoder = hybridr.load_encoder(folder)
        np.testing.assert_allclose(encoder.encode_documents(texts), wanted, atol=1e-4)
        np.testing.assert_allclose(encoder.encode_queries(texts), wanted, atol=1e-4)
        assert encoder.similarity == "ip"
        shutil.rmtree(folder)


def test_half_a_download_is_not_used(hub: Path) -> None:
    (stored(hub, "DAM-bert_base-mlm-dureader") / "config.json").write_text("{}")
    with pytest.raises(DownloadError, match="lacks pytorch_model.bin"):
        fetch_published("DAM-bert_base-mlm-dureader")


def test_the_hubs_bars_become_progress(capfd: pytest.CaptureFixture[str]) -> None:
    seen: list[tuple[str, int, int | None]] = []
    bar = bar_class("X", lambda stage, done, total=None, note="": seen.append((stage, done, total)))
    with bar(total=100, unit="B", mininterval=0) as bytes_bar:
        bytes_bar.update(40)
        bytes_bar.update(60)
    with bar(total=3, desc="Fetching 3 files") as files_bar:
        files_bar.update(3)
    assert ("download X", 40, 100) in seen
    assert seen[-1] == ("download X", 100, 100)
    captured = capfd.readouterr()
    assert captured.out + captured.err == ""


def test_a_hub_that_does_not_answer_is_not_waited_for(hub: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "offline" in try_hub("BAAI/bge-small-zh-v1.5").lower()
    monkeypatch.setattr(fetched_models, "HUB_WAIT_S", 0.1)
    monkeypatch.setattr("huggingface_hub.HfApi.model_info", lambda *_, **__: time.sleep(2))
    with within(1):
        assert "no answer within" in try_hub("BAAI/bge-small-zh-v1.5")
    monkeypatch.setattr("huggingface_hub.HfApi.model_info", lambda *_, **__: None)
    assert try_hub("BAAI/bge-small-zh-v1.5") == ""
