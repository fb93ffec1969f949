"""The contrastive losses, by the formula and against golden/losses."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from hybridr.training.judged import Judged
from hybridr.training.objectives import contrast
from support.golden_losses import assert_close, golden, text_of
from support.rem_training import objective


def test_the_contrastive_loss_is_the_formula(judged: Judged, dam: Path) -> None:
    found = objective(judged, dam, inv_temperature=0.5)
    batch = found.parts(1)[0]
    queries, corpus = list(judged.queries.values()), list(judged.documents())
    numbers = [*batch.positives, *batch.negatives.ravel()]
    q = found.module.encode_queries([queries[number] for number in batch.queries], max_tokens=24)
    d = found.module.encode_documents([corpus[number].contents for number in numbers], max_tokens=128)
    scores = 0.5 * q.astype(np.float64) @ d.T.astype(np.float64)
    masked = 0
    for row, query in enumerate(batch.queries):
        relevant = judged.positives[list(judged.queries)[query]]
        for column, number in enumerate(numbers):
            if corpus[number].doc_id in relevant and column != row:
                scores[row, column] -= 10_000
                masked += 1
    assert masked >= 5  # queries of two documents, the other one's own query is in the batch too
    scores -= scores.max(1, keepdims=True)
    wanted = np.mean(np.log(np.exp(scores).sum(1)) - np.diag(scores))
    with torch.inference_mode():
        assert abs(float(found.loss(batch)) - wanted) <= 1e-4


@pytest.mark.parametrize("name", ["ddr_contrastive_t1", "ddr_contrastive_t20"])
def test_contrastive_with_its_mask_and_gradients(name: str) -> None:
    case = golden(name)
    leaves = [case[key].requires_grad_() for key in ("q", "d", "neg")]
    relevant = {int(query): set(docs) for query, docs in text_of(name, "qrels").items()}
    docs = [*case["docids"].tolist(), *case["neg_docids"].tolist()]
    mask = contrast.find_false_negatives(case["qids"].tolist(), docs, relevant)
    assert_close(mask.float(), case["mask"])
    queries, *documents = leaves
    scores = queries @ torch.cat(documents).T
    loss = contrast.contrastive_rows(scores, mask, 1 / float(case["inv_temperature"]), "mean")
    assert_close(loss, case["loss"])
    for found, key in zip(torch.autograd.grad(loss, leaves), ("q", "d", "neg"), strict=True):
        assert_close(found, case[f"grad_{key}"])


@pytest.mark.parametrize("name", ["ddr_contrastive_t1", "ddr_contrastive_t20"])
def test_in_batch(name: str) -> None:
    case = golden(name)
    leaves = [case[key].requires_grad_() for key in ("q", "d")]
    mask = case["mask"][:, : len(case["d"])].bool()
    temperature = 1 / float(case["inv_temperature"])
    loss = contrast.contrastive_rows(leaves[0] @ leaves[1].T, mask, temperature, "mean")
    assert_close(loss, case["loss_inbatch"])
    for found, key in zip(torch.autograd.grad(loss, leaves), ("q", "d"), strict=True):
        assert_close(found, case[f"grad_{key}_inbatch"])
