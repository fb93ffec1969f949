from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hybridr.errors import DataError
from hybridr.training.judged import Judged
from support.rem_training import objective


def test_batches_follow_from_seed_and_step(judged: Judged, dam: Path) -> None:
    batches = objective(judged, dam, 8).batches
    epoch = [batches(step) for step in range(1, 6)]
    assert sorted(number for batch in epoch for number in batch.queries.tolist()) == list(range(40))
    again = objective(judged, dam, 8).batches(3)
    assert np.array_equal(again.queries, epoch[2].queries)
    assert np.array_equal(again.negatives, epoch[2].negatives)
    drawn = {
        batch.positives[place]
        for step in range(1, 60)
        if (batch := batches(step))
        for place, query in enumerate(batch.queries)
        if query == 0
    }
    assert drawn == {0, 10}
    for batch in epoch:
        for query, positive, negatives in zip(batch.queries, batch.positives, batch.negatives, strict=True):
            relevant = set(batches.examples.positives[query].tolist())
            assert positive in relevant
            assert len(set(negatives.tolist())) == 3
            assert not relevant & set(negatives.tolist())
    shares = [epoch[0].share(rank, 2) for rank in (0, 1)]
    assert np.array_equal(np.concatenate([s.negatives for s in shares]), epoch[0].negatives)
    with pytest.raises(DataError, match="found 40 queries to train on; a batch takes 41"):
        objective(judged, dam, 41)
