"""The contrastive loss by its formula."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from hybridr.training.judged import Judged
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
