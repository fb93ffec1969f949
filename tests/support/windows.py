"""The masked windows of a step, and those that never change, as masked-LM training draws them."""

from __future__ import annotations

import numpy as np
from numpy.random import default_rng

from hybridr.training.token_cache import (
    FIXED,
    WINDOWS,
    Frame,
    TokenCache,
    TokenWindows,
    masked_windows,
    visited_documents,
)


def step_windows(
    cache: TokenCache, frame: Frame, *, first: int, size: int, max_tokens: int, seed: int, step: int
) -> TokenWindows:
    rows = first + visited_documents(len(cache) - first, (step - 1) * size, size, seed)
    return masked_windows(cache, frame, cache.spans(rows), max_tokens, default_rng([seed, WINDOWS, step]))


def fixed_windows(cache: TokenCache, frame: Frame, rows: np.ndarray, max_tokens: int) -> TokenWindows:
    return masked_windows(cache, frame, cache.spans(rows), max_tokens, default_rng([1, FIXED]))
