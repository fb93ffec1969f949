"""The demo: everything from an empty machine to hybrid search, on the Python documentation."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..cluster.embedded.process import start
from ..cluster.embedded.state import NodeState
from ..cluster.loading import Loading
from ..cluster.settings import ClusterSettings, LoadSettings, NodeSettings
from ..evaluation.evaluation import Evaluation, JudgedQueries
from ..files.folders import data_folder
from ..files.formats import write_beir
from ..index import Connection
from ..indexing.reindexing import ReindexResult
from ..records import Hit, Hits, Progress, silent
from ..search.systems import Compared
from ..training.settings import AdaptSettings
from .pydocs import read_pydocs

if TYPE_CHECKING:
    from ..training.adaptation import AdaptResult

INDEX = "pydocs"
QUESTION = "wait until all threads have reached a point"
UNANSWERED, AT_LEAST = "prune a rose bush in winter", 0.95
"""What no documentation of a programming language answers."""
QUERIES = 500
"""Summary lines of documents, fewer where so many are not fit; 200 cannot tell .01 from chance."""


@dataclass(frozen=True)
class Demonstration:
    """Results of all steps of the demo, and the seconds of each step.

    `foreign` are the hits of a question without an answer.
    """

    node: NodeState
    loading: Loading
    adaptation: AdaptResult
    reindexing: ReindexResult
    hits: list[Hit]
    foreign: Hits
    evaluation: Evaluation
    seconds: dict[str, float]


def demonstrate(
    *,
    documents: int = 1_000,
    node_settings: NodeSettings | None = None,
    adapt_settings: AdaptSettings | None = None,
    progress: Progress = silent,
) -> Demonstration:
    """Start a node, load the Python documentation, adapt the encoder, reindex, search, evaluate.

    `adapt_settings` change how the encoder is adapted, but not where it is stored. The node keeps running.
    Steps done by an earlier run are not repeated. Raises what the steps raise.
    """
    clock, node_wish = Clock(), node_settings or NodeSettings()
    with clock.timing("node"):
        node = start(node_wish, progress=progress)
        index = Connection.connect(ClusterSettings(url=node.url)).index(INDEX)
    folder = data_folder() / "demo"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    with clock.timing("load"):
        write_beir(folder, *read_pydocs(max_documents=documents, queries=QUERIES))
        analyzer = "standard" if node_wish.is_core else None  # that of a language is in a module
        into = LoadSettings(index=INDEX, language="en", analyzer=analyzer)
        loading = index.load(folder, into, progress=progress)
    with clock.timing("adapt"):
        settings = (adapt_settings or AdaptSettings()).model_copy(update={"out": folder / "encoder"})
        adaptation = index.adapt(settings, progress=progress)
    with clock.timing("reindex"):
        reindexing = index.reindex(progress=progress)
    with clock.timing("search"):
        search = index.open_search()
        careful = search.requiring(AT_LEAST) if search.answers.known else search
        hits, foreign = search(QUESTION, 3), careful(UNANSWERED, 3)
    with clock.timing("evaluate"):
        compared = Compared(("bm25", "dense", "hybrid-plain", "hybrid"))
        evaluation = index.evaluate(JudgedQueries(folder), compared, progress=progress)
    return Demonstration(node, loading, adaptation, reindexing, hits, foreign, evaluation, clock.seconds)


class Clock:
    """Measures the seconds of each step."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def timing(self, step: str) -> Iterator[None]:
        """Measure the time of the block as `step`."""
        started = time.monotonic()
        yield
        self.seconds[step] = time.monotonic() - started
