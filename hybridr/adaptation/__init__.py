"""Adaptation of a retriever to the documents of one index, without labels."""

from ..label_free import Comparison
from .gate import GateReport, compare
from .pipeline import Adaptation, adapt

__all__ = ["Adaptation", "Comparison", "GateReport", "adapt", "compare"]
