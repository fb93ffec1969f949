"""A cross-encoder as teacher: it reads positives and negatives once, and goes on where it was stopped."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hybridr.encoders.graph_folders import PairScorer
from hybridr.errors import ModelError, SettingsError
from hybridr.records import silent
from hybridr.training.judged import Judged, mine
from hybridr.training.rem import train_rem
from hybridr.training.teaching import PAIRS, pairs_of, taught
from support.pairs import exported
from support.rem_training import rem_settings


def test_scores_are_the_teachers_and_a_killed_run_goes_on(
    judged: Judged, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    negatives = mine(judged, tmp_path, 4)
    pairs = pairs_of(judged, negatives)
    file = taught(exported(), judged, negatives, tmp_path, silent)
    whole = file.read_text()
    rows = [json.loads(line) for line in whole.splitlines()]
    assert [(row["query-id"], row["corpus-id"]) for row in rows] == pairs
    texts = {one.doc_id: one.contents for one in judged.documents()}
    wanted = PairScorer(exported()).score([(judged.queries[query], texts[doc]) for query, doc in pairs])
    assert [row["score"] for row in rows] == pytest.approx(wanted.tolist(), abs=1e-4)
    file.write_text("".join(whole.splitlines(keepends=True)[: PAIRS + 3]) + '{"query-id": "q')
    read, score = [], PairScorer.score

    def counted(self: PairScorer, pairs: Any, **more: Any) -> Any:
        read.append(len(pairs))
        return score(self, pairs, **more)

    monkeypatch.setattr(PairScorer, "score", counted)
    assert taught(exported(), judged, negatives, tmp_path, silent) == file
    assert sum(read) == len(pairs) - PAIRS - 3
    again = [json.loads(line) for line in file.read_text().splitlines()]
    assert [row["score"] for row in again] == pytest.approx(wanted.tolist(), abs=1e-4)


def test_a_rem_is_trained_by_it(judged: Judged, dam: Path, tmp_path: Path) -> None:
    given = {"loss": "distil", "teacher": exported(), "steps": 2}
    trained = train_rem(judged, rem_settings(dam, tmp_path / "rem", **given))
    assert trained.queries == len(judged.queries)
    assert train_rem(judged, rem_settings(dam, tmp_path / "rem", **given)).reused
    with pytest.raises(ModelError, match="holds no pair scorer"):
        train_rem(judged, rem_settings(dam, tmp_path / "other", **given | {"teacher": dam}))
    with pytest.raises(SettingsError, match="a cross-encoder teaches by negatives"):
        train_rem(judged, rem_settings(dam, tmp_path / "other", **given | {"mined": 0}))
