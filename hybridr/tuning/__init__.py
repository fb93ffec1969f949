"""Tuning: which way to join the legs ranks best, from judged queries; and what is safe without any."""

from __future__ import annotations

from .judged import draw_curve, read_judged
from .judgement import Choice
from .tuning import Bm25, Tuning, tune

__all__ = ["Bm25", "Choice", "Tuning", "draw_curve", "read_judged", "tune"]
