"""Tiny models and a toy collection for everything that trains."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from hybridr.training.judged import Judged, read_judged_beir
from hybridr.training.token_cache import TokenCache, build_cache
from support.dam_training import tiny_dam
from support.rem_training import write_toy
from support.tiny import tiny_corpus, tiny_tokenizer


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Let torch use one thread: sums come in one order, and tiny models are faster."""
    former = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(former)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> TokenCache:
    return build_cache(tiny_corpus(300), tiny_tokenizer(), tmp_path_factory.mktemp("tokens"), seed=5)


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_toy(tmp_path_factory.mktemp("toy") / "beir")


@pytest.fixture(scope="module")
def dam(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_dam(tmp_path_factory.mktemp("dam") / "tiny")


@pytest.fixture(scope="module")
def judged(toy: Path) -> Judged:
    return read_judged_beir(toy)
