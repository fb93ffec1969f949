"""Servers that start at once."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from hybridr.serving import application


@pytest.fixture(scope="session", autouse=True)
def no_collection() -> Iterator[None]:
    """Spare each server the walk through all that the suite has loaded: it takes half a second."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(application, "gc", SimpleNamespace(collect=int, freeze=int))
        yield
