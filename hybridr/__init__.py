"""Make an existing OpenSearch index search better, without labels and without breaking anything."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .cluster.settings import LoadSettings as LoadSettings
    from .cluster.settings import NodeSettings as NodeSettings
    from .doctor.inspection import Inspection as Inspection
    from .encoders.contract import Encoder as Encoder
    from .encoders.opening import load_encoder as load_encoder
    from .errors import HybridrError as HybridrError
    from .evaluation.evaluation import Evaluation as Evaluation
    from .evaluation.evaluation import JudgedQueries as JudgedQueries
    from .files.formats import read_beir as read_beir
    from .index import Connection as Connection
    from .index import Index as Index
    from .index import connect as connect
    from .indexing.reindexing import ReindexResult as ReindexResult
    from .indexing.reindexing import SyncResult as SyncResult
    from .indexing.settings import ReindexSettings as ReindexSettings
    from .indexing.verification import Verification as Verification
    from .records import Document as Document
    from .records import Hit as Hit
    from .records import Query as Query
    from .relevance.clicks.clicks import Clicks as Clicks
    from .relevance.experiments import ExperimentReport as ExperimentReport
    from .relevance.experiments import ExperimentStep as ExperimentStep
    from .relevance.learning import LearnResult as LearnResult
    from .relevance.settings import TuneSettings as TuneSettings
    from .relevance.tuning import TuneResult as TuneResult
    from .search.rules.rule import Rule as Rule
    from .search.search import Search as Search
    from .search.settings import SearchSettings as SearchSettings
    from .search.systems import Compared as Compared
    from .serving.deploy.deploying import DeployResult as DeployResult
    from .serving.settings import DeploySettings as DeploySettings
    from .status.standing import Status as Status
    from .training.adaptation import AdaptResult as AdaptResult
    from .training.settings import AdaptSettings as AdaptSettings


__version__ = "0.3.0"

_HOMES = {
    "cluster.settings": ("LoadSettings", "NodeSettings"),
    "doctor.inspection": ("Inspection",),
    "encoders.contract": ("Encoder",),
    "encoders.opening": ("load_encoder",),
    "errors": ("HybridrError",),
    "evaluation.evaluation": ("Evaluation", "JudgedQueries"),
    "files.formats": ("read_beir",),
    "index": ("Connection", "Index", "connect"),
    "indexing.reindexing": ("ReindexResult", "SyncResult"),
    "indexing.settings": ("ReindexSettings",),
    "indexing.verification": ("Verification",),
    "records": ("Document", "Hit", "Query"),
    "relevance.clicks.clicks": ("Clicks",),
    "relevance.experiments": ("ExperimentReport", "ExperimentStep"),
    "relevance.learning": ("LearnResult",),
    "relevance.settings": ("TuneSettings",),
    "relevance.tuning": ("TuneResult",),
    "search.rules.rule": ("Rule",),
    "search.search": ("Search",),
    "search.settings": ("SearchSettings",),
    "search.systems": ("Compared",),
    "serving.deploy.deploying": ("DeployResult",),
    "serving.settings": ("DeploySettings",),
    "status.standing": ("Status",),
    "training.adaptation": ("AdaptResult",),
    "training.settings": ("AdaptSettings",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = sorted(_HOME_OF)


def __getattr__(name: str) -> Any:
    """Import a public name from its module when it is first used, so that the package stays light."""
    if name not in _HOME_OF:
        raise AttributeError(f"module 'hybridr' has no attribute '{name}'")
    value = getattr(import_module(f".{_HOME_OF[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
