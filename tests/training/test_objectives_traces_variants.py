"""Settings that no open trace has: cases made here, replayed, and checked by arithmetic of their own."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForMaskedLM

from support.places import DDR, GOLDEN
from support.traces import replay

TRACES = GOLDEN / "traces"
ARCHITECTURES = {"dam_source": "bert", "dam_distilbert": "distilbert", "dam_roberta": "roberta"}
Arrays = dict[str, np.ndarray]


def varied(folder, base, start="dam_source", arrays=None, **changes):
    """Write a case like an open one, from another model or with other settings; plain descent, no clip."""
    case = json.loads((TRACES / base / "case.json").read_text())
    settings = case["settings"] | changes.pop("settings", {})
    case |= {"start": f"dams/{start}", "architecture": ARCHITECTURES[start], "settings": settings}
    case |= {"optimiser": {"name": "sgd", "rate": 0.01}, "clip": 0.0, **changes}
    with np.load(TRACES / base / "batches.npz") as stored:
        given = {name: stored[name] for name in stored.files} | (arrays or {})
    folder.mkdir()
    (folder / "case.json").write_text(json.dumps(case))
    np.savez(folder / "batches.npz", **given)
    return folder, given


class Reference:
    """A model and a head of its own: vectors and losses of a case's first step, and their gradients."""

    def __init__(self, start: str, pooling: str, arrays: Arrays) -> None:
        self.model = AutoModelForMaskedLM.from_pretrained(DDR / "dams" / start).eval()
        self.pooling = pooling
        self.head = {
            name.removeprefix("start/head."): torch.from_numpy(one).requires_grad_()
            for name, one in arrays.items()
            if name.startswith("start/head.")
        }
        self.arrays = arrays

    def encoded(self, name: str) -> tuple[torch.Tensor, torch.Tensor]:
        """Give vectors and token states of the first step's texts."""
        ids, mask = (torch.from_numpy(self.arrays[f"{name}_{kind}"][0]).long() for kind in ("ids", "mask"))
        states = self.model.base_model(input_ids=ids, attention_mask=mask).last_hidden_state
        pooled = states[:, 0]
        if self.pooling == "mean":
            pooled = (states * mask.unsqueeze(-1)).sum(1) / mask.sum(1, keepdim=True)
        if self.head:
            shifted = pooled @ self.head["linear.weight"].T + self.head["linear.bias"]
            centred = shifted - shifted.mean(1, keepdim=True)
            scaled = centred / (centred.pow(2).mean(1, keepdim=True) + 1e-5).sqrt()
            pooled = scaled * self.head["norm.weight"] + self.head["norm.bias"]
        return pooled, states

    def rows(self) -> torch.Tensor:
        """Give the pairwise losses."""
        query, positive, negative = (self.encoded(name)[0] for name in ("query", "positive", "negative"))
        return torch.log1p(torch.exp((query * (negative - positive)).sum(1)))

    def step(self, loss: torch.Tensor, rate: float = 0.01) -> dict[str, np.ndarray]:
        """Give all weights after one step of plain descent."""
        inner = self.model.base_model.named_parameters(prefix=self.model.base_model_prefix)
        weights = dict(inner) | {f"head.{name}": one for name, one in self.head.items()}
        gradients = torch.autograd.grad(loss, list(weights.values()), allow_unused=True)
        pairs = zip(weights.items(), gradients, strict=True)
        return {
            name: (one if grad is None else one - rate * grad).detach().numpy() for (name, one), grad in pairs
        }


def head_arrays(dim: int = 32) -> Arrays:
    random = np.random.default_rng(3)
    return {
        "start/head.linear.weight": random.normal(0, dim**-0.5, (dim, dim)).astype(np.float32),
        "start/head.linear.bias": random.normal(0, 0.1, dim).astype(np.float32),
        "start/head.norm.weight": random.normal(1, 0.1, dim).astype(np.float32),
        "start/head.norm.bias": random.normal(0, 0.1, dim).astype(np.float32),
    }


def assert_same(found: dict[str, np.ndarray], wanted: dict[str, np.ndarray]) -> None:
    assert {name.removeprefix("final/") for name in found if name.startswith("final/")} == set(wanted)
    for name, value in wanted.items():
        assert np.abs(found[f"final/{name}"] - value).max() <= 1e-5, name


STARTS = [("dam_source", "mean", None), ("dam_distilbert", "mean", "ance"), ("dam_roberta", "cls", "ance")]


@pytest.mark.parametrize(("start", "pooling", "head"), STARTS)
def test_groupdro_from_other_models_with_other_vectors(start, pooling, head, tmp_path):
    """In its first step all weights are 1: the mean over the rows."""
    extra = head_arrays() if head else None
    folder, arrays = varied(
        tmp_path / "case", "groupdro_greedy_sgd", start, extra, pooling=pooling, head=head, steps=1
    )
    found = replay(folder, DDR)
    reference = Reference(start, pooling, arrays)
    rows = reference.rows()
    assert found["row_losses"][0] == pytest.approx(rows.detach().numpy(), rel=1e-5, abs=1e-5)
    assert_same(found, reference.step(rows.mean()))


@pytest.mark.parametrize(
    ("variant", "layers", "head"),
    [("code", [0], None), ("code", "all", "ance"), ("paper", [1], "ance"), ("paper", "all", None)],
)
def test_idro_weights_from_gradients_of_chosen_layers(variant, layers, head, tmp_path):
    rule = {"power": 0.25, "rate": 0.01, "decay": 0.5, "floor": 0.05}
    settings = rule | {"variant": variant, "gradient_layers": layers, "weights_used": "new"}
    folder, arrays = varied(
        tmp_path / "case",
        "idro_code_sgd",
        "dam_distilbert",
        head_arrays() if head else None,
        pooling="mean",
        head=head,
        steps=1,
        settings=settings,
    )
    found = replay(folder, DDR)
    reference = Reference("dam_distilbert", "mean", arrays)
    rows, groups = reference.rows(), arrays["groups"][0]
    chosen = [
        weight
        for name, weight in reference.model.base_model.named_parameters()
        if layers == "all" or any(f"layer.{number}." in name for number in layers)
    ]
    means, gradients = [], []
    for group in range(4):
        own = rows[torch.from_numpy(groups == group)]
        means.append(own.mean() if len(own) else rows.sum() * 0)
        parts = torch.autograd.grad(means[-1], chosen, retain_graph=True, materialize_grads=True)
        gradients.append(torch.cat([part.flatten() for part in parts]).numpy().astype(np.float64))
    losses, there = np.array([float(mean.detach()) for mean in means]), np.bincount(groups, minlength=4) > 0
    matrix = np.stack(gradients)
    if variant == "code":
        matrix /= np.maximum(np.linalg.norm(matrix, axis=1, keepdims=True), 1e-12)
    gains = (np.outer(losses, losses) ** 0.25 * (matrix @ matrix.T)).sum(0) * rule["rate"]
    gains = (gains / 4 if variant == "code" else gains) * there
    weights = np.exp(gains - gains.max())
    if variant == "code":
        weights = np.maximum(weights * there / (weights * there).sum(), rule["floor"])
    else:
        weights = weights / weights.sum()
    assert found["weights_after"][0] == pytest.approx(weights, abs=3e-5)
    factors = weights if variant == "code" else weights * losses**0.25
    total = sum(float(factor) * mean for factor, mean in zip(factors, means, strict=True))
    assert_same(found, reference.step(torch.as_tensor(total)))


def test_berm_with_a_head_a_reader_and_mean_vectors(tmp_path: Path) -> None:
    """Texts go through the head, units do not; the reader decides where it is sure."""
    with np.load(TRACES / "berm_paper_sgd" / "batches.npz") as stored:
        ids, mask = stored["positive_ids"], stored["positive_mask"]
    read = np.zeros(ids.shape, dtype=np.float32)
    read[:, :, 1:] = np.random.default_rng(5).random(ids[:, :, 1:].shape) * 1000
    folder, arrays = varied(
        tmp_path / "case",
        "berm_paper_sgd",
        arrays=head_arrays() | {"reader_scores": read},
        pooling="mean",
        head="ance",
        steps=1,
    )
    found = replay(folder, DDR)
    reference = Reference("dam_source", "mean", arrays)
    queries, texts = reference.encoded("query")[0], reference.encoded("positive")[0]
    states, loss = reference.encoded("positive")[1], reference.rows().mean()
    for row in range(len(ids[0])):
        length = int(mask[0, row].sum())
        cuts = [0, *np.flatnonzero(ids[0, row, :length] == 166).tolist(), length - 1]
        spans = [(a + 1, b) for a, b in zip(cuts, cuts[1:], strict=False) if b > a + 1]
        assert found["unit_counts"][0, row] == len(spans)
        units = torch.stack([states[row, start:end].mean(0) for start, end in spans])
        shares = torch.log_softmax(units @ texts[row], 0)
        pointed = torch.log_softmax(units @ torch.nn.functional.gelu(queries[row] * texts[row]), 0)
        best = int(np.argmax([read[0, row, start:end].max() for start, end in spans]))
        assert found["essential"][0, row] == best
        loss = loss + (0.1 * (-np.log(len(spans)) - shares.mean()) - pointed[best]) / len(ids[0])
    assert_same(found, reference.step(loss, 0.01))


@pytest.mark.parametrize("head", [None, "ance"])
def test_modir_with_a_head_and_another_optimiser_of_the_classifier(head: str | None, tmp_path: Path) -> None:
    """One entry, one update: a step of AdamW by hand, then the confusion of the very vectors."""
    rate = 0.01
    adam = {"name": "adamw", "rate": rate, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.1}
    settings = {"queue": 1, "entries_per_update": 1, "classifier_clip": 0.0, "classifier_optimiser": adam}
    folder, arrays = varied(
        tmp_path / "case",
        "modir_confusion_sgd",
        arrays=head_arrays() if head else None,
        pooling="mean",
        head=head,
        steps=1,
        settings=settings | {"clamp": 50.0, "traversal": "repeat"},
    )
    found = replay(folder, DDR)
    reference = Reference("dam_source", "mean", arrays)
    names = ("query", "negative", "target_query", "target_second")
    vectors = [reference.encoded(name)[0] for name in names]
    weights = torch.from_numpy(arrays["start/classifier"]).requires_grad_()
    logs = [torch.log_softmax(one.detach() @ weights.T, 1) for one in vectors]
    loss = -sum(one[:, domain].mean() for one, domain in zip(logs, (0, 0, 1, 1), strict=True))
    (gradient,) = torch.autograd.grad(torch.as_tensor(loss), [weights])
    moved = weights.detach() * (1 - rate * 0.1) - rate * gradient / (gradient.abs() + 1e-8)
    assert found["classifier"][0] == pytest.approx(moved.numpy(), abs=1e-5)
    confused = sum(-torch.log_softmax(one @ moved.T, 1).mean(0).sum() / 2 for one in vectors)
    total = reference.rows().mean() + confused
    assert found["loss"][0] == pytest.approx(float(total.detach()), rel=1e-5)
    assert_same(found, reference.step(total))
