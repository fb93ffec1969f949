"""Adaptation of a retriever to the documents of one index, without labels."""

from .gate import Comparison, GateReport, compare
from .pipeline import Adaptation, adapt

__all__ = ["Adaptation", "Comparison", "GateReport", "adapt", "compare"]
