"""DAM and REM joined to one ranker (Zhan et al. 2022): LoRA and parallel adapters on a fitted backbone."""

from .assembling import assemble
from .ranker import Ranker
from .rankers import Colbert, Dense, Reranker, Splade, Unicoil

__all__ = ["Colbert", "Dense", "Ranker", "Reranker", "Splade", "Unicoil", "assemble"]
