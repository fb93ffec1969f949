"""Make an existing OpenSearch index search better, without labels and without breaking anything."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .adaptation.adaptation import Adaptation, adapt
    from .adaptation.settings import AdaptSettings
    from .assembly.assembly import assemble
    from .clicks.clicks import Clicks, read_clicks
    from .cluster.connection import Cluster, connect
    from .cluster.loading import load
    from .cluster.settings import LoadSettings
    from .deploying.deploying import Deploying, deploy, undeploy
    from .deploying.settings import DeploySettings
    from .encoding.contract import Encoder
    from .encoding.multi_vector import MultiVectorEncoder
    from .encoding.opening import load_encoder
    from .encoding.pair_scorer import PairScorer
    from .encoding.sparse_encoder import SparseEncoder
    from .errors import HybridrError
    from .evaluation.evaluation import Evaluation, evaluate
    from .exporting.exporting import export
    from .files.formats import read_beir
    from .inspection import Inspection, inspect_index
    from .node.settings import NodeSettings
    from .records import Document, Hit, Query
    from .reindexing.reindexing import Reindexing, reindex
    from .reindexing.rollback import rollback
    from .reindexing.settings import ReindexSettings
    from .reindexing.syncing import Syncing, sync
    from .reindexing.verification import Verification, verify
    from .rules.rule import Rule
    from .rules.rules import add_rules, remove_rules, rules_of
    from .search.search import Search
    from .search.settings import SearchSettings
    from .standing.standing import Standing, remove, status
    from .tuning.answering import Calibration, calibrate
    from .tuning.experiments import (
        ExperimentReport,
        ExperimentStep,
        promote_ranking,
        report_experiment,
        start_experiment,
        stop_experiment,
    )
    from .tuning.learning import Learning, learn, unlearn
    from .tuning.settings import TuneSettings
    from .tuning.tuning import Tuning, tune

__version__ = "0.2.0"

_HOMES = {
    "adaptation.adaptation": ("Adaptation", "adapt"),
    "adaptation.settings": ("AdaptSettings",),
    "assembly.assembly": ("assemble",),
    "clicks.clicks": ("Clicks", "read_clicks"),
    "cluster.connection": ("Cluster", "connect"),
    "cluster.loading": ("load",),
    "cluster.settings": ("LoadSettings",),
    "deploying.deploying": ("Deploying", "deploy", "undeploy"),
    "deploying.settings": ("DeploySettings",),
    "encoding.contract": ("Encoder",),
    "encoding.multi_vector": ("MultiVectorEncoder",),
    "encoding.opening": ("load_encoder",),
    "encoding.pair_scorer": ("PairScorer",),
    "encoding.sparse_encoder": ("SparseEncoder",),
    "errors": ("HybridrError",),
    "evaluation.evaluation": ("Evaluation", "evaluate"),
    "exporting.exporting": ("export",),
    "files.formats": ("read_beir",),
    "inspection": ("Inspection", "inspect_index"),
    "node.settings": ("NodeSettings",),
    "records": ("Document", "Hit", "Query"),
    "reindexing.reindexing": ("Reindexing", "reindex"),
    "reindexing.rollback": ("rollback",),
    "reindexing.settings": ("ReindexSettings",),
    "reindexing.syncing": ("Syncing", "sync"),
    "reindexing.verification": ("Verification", "verify"),
    "rules.rule": ("Rule",),
    "rules.rules": ("add_rules", "remove_rules", "rules_of"),
    "search.search": ("Search",),
    "search.settings": ("SearchSettings",),
    "standing.standing": ("Standing", "remove", "status"),
    "tuning.answering": ("Calibration", "calibrate"),
    "tuning.experiments": (
        *("ExperimentReport", "ExperimentStep"),
        *("promote_ranking", "report_experiment", "start_experiment", "stop_experiment"),
    ),
    "tuning.learning": ("Learning", "learn", "unlearn"),
    "tuning.settings": ("TuneSettings",),
    "tuning.tuning": ("Tuning", "tune"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "AdaptSettings",
    "Adaptation",
    "Calibration",
    "Clicks",
    "Cluster",
    "DeploySettings",
    "Deploying",
    "Document",
    "Encoder",
    "Evaluation",
    "ExperimentReport",
    "ExperimentStep",
    "Hit",
    "HybridrError",
    "Inspection",
    "Learning",
    "LoadSettings",
    "MultiVectorEncoder",
    "NodeSettings",
    "PairScorer",
    "Query",
    "ReindexSettings",
    "Reindexing",
    "Rule",
    "Search",
    "SearchSettings",
    "SparseEncoder",
    "Standing",
    "Syncing",
    "TuneSettings",
    "Tuning",
    "Verification",
    "adapt",
    "add_rules",
    "assemble",
    "calibrate",
    "connect",
    "deploy",
    "evaluate",
    "export",
    "inspect_index",
    "learn",
    "load",
    "load_encoder",
    "promote_ranking",
    "read_beir",
    "read_clicks",
    "reindex",
    "remove",
    "remove_rules",
    "report_experiment",
    "rollback",
    "rules_of",
    "start_experiment",
    "status",
    "stop_experiment",
    "sync",
    "tune",
    "undeploy",
    "unlearn",
    "verify",
]


def __getattr__(name: str) -> Any:
    """Import a public name from its module when it is first used, so that the package stays light."""
    if name not in _HOME_OF:
        raise AttributeError(f"module 'hybridr' has no attribute '{name}'")
    value = getattr(import_module(f".{_HOME_OF[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
