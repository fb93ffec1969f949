"""Make an existing OpenSearch index search better, without labels and without breaking anything."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .adaptation.adaptation import Adaptation as Adaptation
    from .adaptation.adaptation import adapt as adapt
    from .adaptation.settings import AdaptSettings as AdaptSettings
    from .assembly.assembly import assemble as assemble
    from .clicks.clicks import Clicks as Clicks
    from .clicks.clicks import read_clicks as read_clicks
    from .cluster.connection import Cluster as Cluster
    from .cluster.connection import connect as connect
    from .cluster.loading import load as load
    from .cluster.settings import LoadSettings as LoadSettings
    from .deploying.deploying import Deploying as Deploying
    from .deploying.deploying import deploy as deploy
    from .deploying.deploying import undeploy as undeploy
    from .deploying.settings import DeploySettings as DeploySettings
    from .diagnosis.inspection import Inspection as Inspection
    from .diagnosis.inspection import inspect_index as inspect_index
    from .encoding.contract import Encoder as Encoder
    from .encoding.multi_vector import MultiVectorEncoder as MultiVectorEncoder
    from .encoding.opening import load_encoder as load_encoder
    from .encoding.pair_scorer import PairScorer as PairScorer
    from .encoding.sparse_encoder import SparseEncoder as SparseEncoder
    from .errors import HybridrError as HybridrError
    from .evaluation.evaluation import Evaluation as Evaluation
    from .evaluation.evaluation import evaluate as evaluate
    from .exporting.exporting import export as export
    from .files.formats import read_beir as read_beir
    from .node.settings import NodeSettings as NodeSettings
    from .records import Document as Document
    from .records import Hit as Hit
    from .records import Query as Query
    from .reindexing.reindexing import Reindexing as Reindexing
    from .reindexing.reindexing import reindex as reindex
    from .reindexing.rollback import rollback as rollback
    from .reindexing.settings import ReindexSettings as ReindexSettings
    from .reindexing.syncing import Syncing as Syncing
    from .reindexing.syncing import sync as sync
    from .reindexing.verification import Verification as Verification
    from .reindexing.verification import verify as verify
    from .rules.rule import Rule as Rule
    from .rules.rules import add_rules as add_rules
    from .rules.rules import remove_rules as remove_rules
    from .rules.rules import rules_of as rules_of
    from .search.search import Search as Search
    from .search.settings import SearchSettings as SearchSettings
    from .standing.standing import Standing as Standing
    from .standing.standing import remove as remove
    from .standing.standing import status as status
    from .tuning.answering import Calibration as Calibration
    from .tuning.answering import calibrate as calibrate
    from .tuning.experiments import ExperimentReport as ExperimentReport
    from .tuning.experiments import ExperimentStep as ExperimentStep
    from .tuning.experiments import promote_ranking as promote_ranking
    from .tuning.experiments import report_experiment as report_experiment
    from .tuning.experiments import start_experiment as start_experiment
    from .tuning.experiments import stop_experiment as stop_experiment
    from .tuning.learning import Learning as Learning
    from .tuning.learning import learn as learn
    from .tuning.learning import unlearn as unlearn
    from .tuning.settings import TuneSettings as TuneSettings
    from .tuning.tuning import Tuning as Tuning
    from .tuning.tuning import tune as tune


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
    "diagnosis.inspection": ("Inspection", "inspect_index"),
    "encoding.contract": ("Encoder",),
    "encoding.multi_vector": ("MultiVectorEncoder",),
    "encoding.opening": ("load_encoder",),
    "encoding.pair_scorer": ("PairScorer",),
    "encoding.sparse_encoder": ("SparseEncoder",),
    "errors": ("HybridrError",),
    "evaluation.evaluation": ("Evaluation", "evaluate"),
    "exporting.exporting": ("export",),
    "files.formats": ("read_beir",),
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
