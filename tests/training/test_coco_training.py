"""COCO as a training: the gradient cache, exact continuation, and what it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import save_file
from tokenizers import Tokenizer, models

from hybridr.errors import DataError, ModelError, SettingsError
from hybridr.files.local import read_manifest
from hybridr.records import Document
from hybridr.training.backbone import read_dam
from hybridr.training.dam import continues_word, fit_dam, is_full_stop, read_frame
from hybridr.training.loop import Processes, make_optimizer, take_step
from hybridr.training.objectives.coco import SpansAndMaskedLm, cut_spans, draw_pairs, sequence_contrastive
from hybridr.training.rankers import assemble
from hybridr.training.settings import DamSettings
from hybridr.training.token_cache import Frame, TokenCache, build_cache
from support.dam_training import dam_settings, tiny_dam, weights_of
from support.tiny import tiny_corpus, tiny_tokenizer

pytestmark = pytest.mark.usefixtures("one_thread")

SMALL, LARGE = 120, 100_000  # token budgets: many micro-batches, and one
STOP = 105  # the tiny tokenizer's full stop


def objective(folder: Path, cache: TokenCache, precision: Any = "fp32", **changes: Any) -> SpansAndMaskedLm:
    dam = read_dam(folder)
    values = {"batch_size": 16, "max_tokens": 40, "seed": 1, "held_out": 20, "learning_rate": 1e-3} | changes
    return SpansAndMaskedLm(dam, read_frame(dam), cache, DamSettings(**values), precision, Processes("cpu"))


def stepped(found: SpansAndMaskedLm, steps: int = 3) -> tuple[list[float], dict[str, torch.Tensor]]:
    optimizer = make_optimizer(found.weights, found.recipe)
    found.module.train(found.dropout)
    taken = range(1, steps + 1)
    losses = [take_step(found, optimizer, step)[0] for step in taken]
    return losses, {name: weight.detach() for name, weight in found.weights.items()}


# --- what it computes


@pytest.mark.parametrize("kind", ["bert", "roberta", "distilbert"])
def test_micro_batches_train_as_one_batch(kind: str, tmp_path: Path) -> None:
    folder = tiny_dam(tmp_path / kind, kind)
    dam = read_dam(folder)
    cache = build_cache(tiny_corpus(100), str(dam.tokenizer), tmp_path / "tokens", seed=1)
    runs = []
    for budget in (SMALL, LARGE):
        found = objective(folder, cache, token_budget=budget, head_layers=1, learning_rate=1e-4)
        assert (len(list(found.parts(1))) > 3) is (budget == SMALL)
        runs.append(stepped(found))
    (cut, one), (cut_weights, one_weights) = zip(*runs, strict=True)
    assert cut == pytest.approx(one, abs=1e-5)
    gaps = {name: float((cut_weights[name] - one_weights[name]).abs().max()) for name in one_weights}
    keys = {name: gaps.pop(name) for name in list(gaps) if name.endswith(("key.bias", "k_lin.bias"))}
    assert len(keys) >= 2  # their gradient is rounding, which AdamW blows up to a step
    assert max(gaps.values()) < 1e-6, max(gaps.items(), key=lambda item: item[1])


def test_memory_follows_the_micro_batch_and_not_the_batch(dam: Path, cache: TokenCache) -> None:
    def most_kept(size: int) -> int:
        found = objective(dam, cache, token_budget=256, batch_size=size)
        largest = 0
        for part in found.parts(1):
            kept: dict[int, int] = {}

            def note(tensor: torch.Tensor, kept: dict[int, int] = kept) -> torch.Tensor:
                kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
                return tensor

            with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
                found.loss(part)
            largest = max(largest, sum(kept.values()))
        return largest

    assert most_kept(240) < 1.2 * most_kept(15)


def test_both_passes_drop_the_same(dam: Path, cache: TokenCache) -> None:
    found = objective(dam, cache, token_budget=SMALL, dropout=0.3)
    found.module.train()
    parts = list(found.parts(1))
    again, other = found.forward(parts[0])[0], found.forward(parts[0]._replace(seed=99))[0]
    assert torch.equal(found.forward(parts[0])[0], again)
    assert not torch.allclose(again, other)
    assert stepped(found)[0] == stepped(objective(dam, cache, token_budget=SMALL, dropout=0.3))[0]


def test_bf16_is_near(dam: Path, cache: TokenCache) -> None:
    exact, _ = stepped(objective(dam, cache, token_budget=SMALL, head_layers=1))
    near, _ = stepped(objective(dam, cache, "bf16", token_budget=SMALL, head_layers=1))
    assert near == pytest.approx(exact, rel=0.02)
    assert near != exact


def test_a_temperature_divides_the_products() -> None:
    states = torch.from_numpy(np.random.default_rng(1).normal(size=(6, 4)))
    torch.testing.assert_close(sequence_contrastive(states, 0.25), sequence_contrastive(2 * states))


# --- what it is trained on

FRAME = Frame(2, 3, 4, (0, 2, 3, 4), 107, stops=(STOP,))


@pytest.mark.parametrize("kind", ["bert", "roberta"])
def test_the_tokenizer_tells_full_stops_and_word_pieces(kind: str) -> None:
    pieces = {
        "bert": (models.WordPiece, ["[UNK]", "play", "##ing", ".", "##.", "...", "?", ",", "。", "a."]),
        "roberta": (models.BPE, ["<unk>", "Ġplay", "ing", ".", "Ġ.", "...", "?", ",", "Ġ", "a."]),
    }
    make, words = pieces[kind]
    vocabulary = {word: number for number, word in enumerate(words)}
    given = {"vocab": vocabulary, "unk_token": words[0]} | ({"merges": []} if kind == "roberta" else {})
    tokenizer = Tokenizer(make(**given))
    stops = {"bert": {".", "##.", "...", "?", "。"}, "roberta": {".", "Ġ.", "...", "?"}}
    assert set(filter(is_full_stop, words)) == stops[kind]
    rests = {"bert": {"##ing", "##."}, "roberta": {"ing", "a."}}
    assert set(filter(continues_word(tokenizer), words)) == rests[kind]


def sentences(*lengths: int) -> np.ndarray:
    return np.concatenate([[*range(5, 4 + length), STOP] for length in lengths]).astype(np.int64)


def test_spans_are_whole_sentences_up_to_their_length() -> None:
    spans = set()
    for seed in range(60):
        borders = cut_spans(sentences(10, 10, 10, 25, 8), 0, FRAME, 30, seed)
        assert set(borders) <= {0, 10, 20, 30, 55, 63}
        assert np.diff(borders).max() <= 33
        assert borders == cut_spans(sentences(10, 10, 10, 25, 8), 0, FRAME, 30, seed)
        spans.add(tuple(borders))
    assert (0, 30, 55, 63) in spans  # most often; one sentence in ten begins a span earlier
    assert len(spans) > 2


def test_a_long_sentence_is_cut_and_a_short_rest_goes_along() -> None:
    long = np.arange(5, 5 + 62)
    assert cut_spans(long, 0, FRAME, 30, 1) == [0, 30, 62]
    assert cut_spans(np.concatenate([long[:30], [STOP]]), 0, FRAME, 30, 1) == [0, 31]
    assert cut_spans(sentences(1, 1, 1)[:2], 0, FRAME, 30, 1) == [0, 2]


def test_a_document_of_one_sentence_gives_it_twice_and_masks_each_by_itself(dam: Path, tmp_path) -> None:
    documents = [Document(f"d{i}", document.text.split(".")[0]) for i, document in enumerate(tiny_corpus(60))]
    cache = build_cache(documents, tiny_tokenizer(), tmp_path / "tokens", seed=1)
    begins, lengths = draw_pairs(cache, FRAME, np.arange(9), 30, 1, np.random.default_rng(0))
    assert (begins[::2] == begins[1::2]).all()
    assert (lengths[::2] == lengths[1::2]).all()
    windows = objective(dam, cache, held_out=0, batch_size=50).windows(1)
    rows = np.split(windows.ids, np.cumsum(windows.lengths)[:-1])
    assert sum(not np.array_equal(*pair) for pair in zip(rows[::2], rows[1::2], strict=True)) > 40


def test_two_spans_of_a_document_are_disjoint(cache: TokenCache) -> None:
    begins, lengths = draw_pairs(cache, FRAME, np.arange(200), 30, 1, np.random.default_rng(0))
    first, second = begins[::2], begins[1::2]
    assert ((first + lengths[::2] <= second) | (second + lengths[1::2] <= first)).all()
    assert {len(begins), len(lengths)} == {400}
    assert 0.3 < (first < second).mean() < 0.7


def test_a_batch_holds_no_document_twice(dam: Path, cache: TokenCache, monkeypatch) -> None:
    found = objective(dam, cache, batch_size=4096)
    assert found.batch_size == found.documents == len(cache) - 20
    assert len(found.windows(1).lengths) == 2 * found.documents
    small = objective(dam, cache, batch_size=30)
    steps = small.documents // 30  # of an epoch
    drawn: list[np.ndarray] = []
    monkeypatch.setattr(small, "pairs", lambda rows, random: drawn.append(rows))
    for step in range(1, 2 * steps + 1):
        small.windows(step)
    epochs = np.concatenate(drawn[:steps]), np.concatenate(drawn[steps:])
    assert [len(set(rows.tolist())) for rows in epochs] == [30 * steps] * 2
    assert epochs[0].min() >= small.held_out
    assert not np.array_equal(*epochs)


def test_documents_too_short_for_a_span_are_left_out(dam: Path, tmp_path: Path) -> None:
    short = [Document(f"s{i}", word) for i, word in enumerate(("balan", "bason", "balar misot"))]
    cache = build_cache([*tiny_corpus(40), *short], tiny_tokenizer(), tmp_path / "tokens", seed=1)
    assert len(cache) == 43
    assert objective(dam, cache, held_out=0).documents == 40
    settings = dam_settings(dam, tmp_path / "dam", objective="coco", steps=1, held_out=0)
    assert fit_dam([*tiny_corpus(40), *short], settings).documents == 40


@pytest.mark.parametrize("held_out", [1, 7])
def test_held_out_documents_are_compared_by_two_spans_of_each(dam, cache, held_out):
    """A document beside the next one is no pair, and any number of documents can be held out."""
    asked = objective(dam, cache, held_out=held_out)
    windows = asked.unseen_windows()
    assert len(windows.lengths) == 2 * held_out
    assert max(windows.lengths) <= asked.span_tokens + 2
    assert asked.unseen_loss() == asked.unseen_loss() > 0


# --- the whole


def test_a_trained_dam_opens_everywhere_and_its_head_goes_on(dam: Path, tmp_path: Path) -> None:
    asked = {"objective": "coco", "steps": 30, "learning_rate": 3e-3}
    settings = dam_settings(dam, tmp_path / "source", head_layers=2, **asked)
    found = fit_dam(tiny_corpus(200), settings)
    assert found.unseen_loss_end < found.unseen_loss_start - 0.5
    model, report = transformers.AutoModelForMaskedLM.from_pretrained(found.folder, output_loading_info=True)
    assert not any(report.values())
    assert assemble(found.folder).usage.pooling == "cls", "as its spans were contrasted"
    manifest = read_manifest(found.folder) or {}
    assert (manifest["dam"]["objective"], manifest["settings"]["objective"]) == ("coco", "coco")
    assert "condenser.safetensors" in manifest["outputs"]
    head = weights_of(found.folder, "condenser.safetensors")
    assert len(head) == 2 * 16
    target = dam_settings(found.folder, tmp_path / "target", **asked | {"steps": 1, "learning_rate": 1e-9})
    after = weights_of(fit_dam(tiny_corpus(150, seed=2), target).folder, "condenser.safetensors")
    assert all(torch.allclose(value, head[name], atol=1e-6) for name, value in after.items())
    with pytest.raises(ModelError, match="a head of 2 layers, not of 1"):
        fit_dam(tiny_corpus(150), dam_settings(found.folder, tmp_path / "other", head_layers=1, **asked))
    without = dam_settings(found.folder, tmp_path / "without", head_layers=0, **asked | {"steps": 1})
    assert not (fit_dam(tiny_corpus(150), without).folder / "condenser.safetensors").exists()


def test_a_head_of_another_width_is_refused(dam: Path, cache: TokenCache, tmp_path: Path) -> None:
    folder = tiny_dam(tmp_path / "base")
    weights = {
        name: weight.detach()
        for name, weight in objective(dam, cache, head_layers=1).condenser.named_weights().items()
    }
    weights["condenser.0.output.dense.bias"] = torch.zeros(7)
    save_file(weights, folder / "condenser.safetensors")
    with pytest.raises(ModelError, match="condenser.safetensors do not fit the DAM beside them"):
        objective(folder, cache)


def test_settings_that_an_objective_does_not_use_do_not_train_it_anew(dam: Path, tmp_path: Path) -> None:
    for objective, again in (("mlm", True), ("coco", False)):
        out = tmp_path / objective
        asked: dict[str, Any] = {"objective": objective, "steps": 1}
        fit_dam(tiny_corpus(50), dam_settings(dam, out, **asked))
        assert fit_dam(tiny_corpus(50), dam_settings(dam, out, **asked)).reused
        found = fit_dam(tiny_corpus(50), dam_settings(dam, out, pooling="mean", **asked))
        assert found.reused is again


# --- refusals


def test_too_few_documents_are_refused(dam: Path, tmp_path: Path) -> None:
    same_text = dam_settings(dam, tmp_path / "same", objective="coco")
    with pytest.raises(DataError, match="1 different texts; 2 are needed"):
        fit_dam([Document("a", "balan bason. misot kolan.")] * 9, same_text)
    settings = dam_settings(dam, tmp_path / "short", objective="coco")
    with pytest.raises(DataError, match="1 document of 3 tokens, enough for a span; 2 are needed"):
        fit_dam([Document("a", "balan bason. misot kolan."), Document("b", "balan")], settings)


def test_a_batch_of_one_is_refused(dam: Path, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="batch of 1 document has no other spans") as caught:
        fit_dam(tiny_corpus(50), dam_settings(dam, tmp_path / "dam", objective="coco", batch_size=1))
    assert "--batch-size 2" in str(caught.value.hint)


def test_a_layer_that_is_not_there_is_refused(dam: Path, cache: TokenCache) -> None:
    with pytest.raises(SettingsError, match="--skip-from 3: the model has 2 layers"):
        objective(dam, cache, head_layers=1, skip_from=3)
