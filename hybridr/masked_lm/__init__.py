"""Masked-LM training of a DAM on a corpus without labels (Zhan et al. 2022, methods.md A.8)."""

from .fitting import DamFit, fit_dam
from .sources import CorpusFile

__all__ = ["CorpusFile", "DamFit", "fit_dam"]
