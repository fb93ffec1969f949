"""Tuning: which way to join the legs ranks best, from judged queries; and what is safe without any."""

from __future__ import annotations

from .judged import draw_curve, read_judged
from .tuning import Choice, Tuning, tune

__all__ = ["Choice", "Tuning", "draw_curve", "read_judged", "tune"]
