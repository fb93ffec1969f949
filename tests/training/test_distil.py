"""Distillation: MarginMSE against golden/losses, and what it reaches."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hybridr.training.judged import Judged
from hybridr.training.objectives import distil
from hybridr.training.rankers import assemble
from hybridr.training.rem import attach_fresh, design_for, train_rem
from support.golden_losses import assert_close, golden
from support.rem_training import rem_settings


def test_distillation_reaches_the_teachers_margins(judged: Judged, dam: Path, tmp_path: Path) -> None:
    """The teacher is the DAM with a REM that the pupil does not know."""
    teacher: Any = assemble(dam)
    attach_fresh(teacher, design_for("parallel", 1), seed=8)
    generator = torch.Generator().manual_seed(1)
    for weight in teacher.parameters():
        if weight.requires_grad:
            torch.nn.init.normal_(weight, std=0.2, generator=generator)
    corpus = list(judged.documents())

    def margins(ranker: Any) -> tuple[np.ndarray, np.ndarray]:
        queries = ranker.encode_queries(list(judged.queries.values()), max_tokens=24)
        scores = queries @ ranker.encode_documents([d.contents for d in corpus], max_tokens=32).T
        return scores, np.diag(scores)[:, None] - scores

    scores, goals = margins(teacher)
    lines = [
        {"query-id": query_id, "corpus-id": document.doc_id, "score": float(scores[row, column])}
        for row, query_id in enumerate(judged.queries)
        for column, document in enumerate(corpus)
    ]
    file = tmp_path / "teacher.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    values = {"loss": "distil", "teacher": file, "design": "both", "dropout": False, "checkpoint_every": 1000}
    given = rem_settings(dam, tmp_path / "rem", steps=120, learning_rate=2e-2, **values)
    assert train_rem(judged, given).dropped == 0
    before, after = (np.mean((margins(assemble(dam, rem))[1] - goals) ** 2) for rem in (None, given.out))
    assert after < 0.1 * before


def test_margin_mse() -> None:
    case = golden("ddr_margin_mse")
    scores = torch.einsum("nd,nkd->nk", case["q"], case["docs"].reshape(4, 4, 8))
    assert_close(scores, case["model_scores"])
    assert_close(distil.margin_mse_rows(scores, case["ce_scores"]).mean(), case["loss"])
