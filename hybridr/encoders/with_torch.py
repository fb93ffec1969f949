"""What only torch does, found by name: `hybridr.training` is the only package that imports it."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from ..errors import extra


def from_training(module: str, name: str, purpose: str = "adapting or exporting a model") -> Any:
    """Return what `hybridr.training` has under that name. Raise MissingExtra where torch is not installed."""
    with extra("train", purpose):
        import_module("torch")
        return getattr(import_module(f"hybridr.training.{module}"), name)
