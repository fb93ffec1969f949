"""Make an existing OpenSearch index search better, without labels and without breaking anything."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .adaptation import Adaptation, adapt
    from .assembly import assemble
    from .cluster import Cluster, connect
    from .encoder import Encoder, load_encoder
    from .errors import HybridrError
    from .evaluation import Evaluation, evaluate
    from .exporting import export
    from .formats import read_beir
    from .loading import load
    from .records import Document, Hit, Query
    from .reindexing import Reindexing, reindex, rollback
    from .retrieval import Search
    from .settings import AdaptSettings, LoadSettings, NodeSettings, ReindexSettings, SearchSettings

__version__ = "0.1.0"

_HOMES = {
    "adaptation": ("Adaptation", "adapt"),
    "assembly": ("assemble",),
    "cluster": ("Cluster", "connect"),
    "encoder": ("Encoder", "load_encoder"),
    "errors": ("HybridrError",),
    "evaluation": ("Evaluation", "evaluate"),
    "exporting": ("export",),
    "formats": ("read_beir",),
    "loading": ("load",),
    "records": ("Document", "Hit", "Query"),
    "reindexing": ("Reindexing", "reindex", "rollback"),
    "retrieval": ("Search",),
    "settings": ("AdaptSettings", "LoadSettings", "NodeSettings", "ReindexSettings", "SearchSettings"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "AdaptSettings", "Adaptation", "Cluster", "Document", "Encoder", "Evaluation", "Hit", "HybridrError",
    "LoadSettings", "NodeSettings", "Query", "ReindexSettings", "Reindexing", "Search", "SearchSettings",
    "adapt", "assemble", "connect", "evaluate", "export", "load", "load_encoder", "read_beir", "reindex",
    "rollback",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Import a public name from its module when it is first used, so that the package stays light."""
    if name not in _HOME_OF:
        raise AttributeError(f"module 'hybridr' has no attribute '{name}'")
    value = getattr(import_module(f".{_HOME_OF[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
