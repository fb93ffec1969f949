"""The demo: the whole line from an empty machine to hybrid search, on the Python documentation."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..adaptation.settings import AdaptSettings
from ..cluster.connection import Cluster
from ..cluster.loading import Loading, load
from ..cluster.settings import ClusterSettings, LoadSettings
from ..encoding.machine import is_installed
from ..evaluation.evaluation import Evaluation, JudgedQueries
from ..exporting.exporting import minilm_encoder
from ..files.folders import data_folder
from ..files.formats import write_beir
from ..node.process import start
from ..node.settings import NodeSettings
from ..node.state import NodeState
from ..progress import Progress, silent
from ..records import Hit, Hits
from ..reindexing.reindexing import Reindexing, reindex
from ..search.encoders import promote
from ..search.systems import Compared, evaluate_index, open_search
from ..tuning.answering import calibrate
from .pydocs import read_pydocs

if TYPE_CHECKING:
    from ..adaptation.adaptation import Adaptation

INDEX = "pydocs"
TRAINED = ("torch", "transformers", "peft", "accelerate")  # without them the packaged encoder stays as it is
QUESTION = "wait until all threads have reached a point"
UNANSWERED, AT_LEAST = "prune a rose bush in winter", 0.95
"""What no documentation of a programming language answers."""
QUERIES = 500
"""Summary lines of documents, fewer where so many are not fit; 200 cannot tell .01 from chance."""


@dataclass(frozen=True)
class Demonstration:
    """Everything the demo did, and the seconds that each step took; without torch no `adaptation`.

    `foreign` is what a question without an answer finds.
    """

    node: NodeState
    loading: Loading
    adaptation: Adaptation | None
    reindexing: Reindexing
    hits: list[Hit]
    foreign: Hits
    evaluation: Evaluation
    seconds: dict[str, float]


def demonstrate(
    *,
    documents: int = 1500,
    node_settings: NodeSettings | None = None,
    adapt_settings: AdaptSettings | None = None,
    progress: Progress = silent,
) -> Demonstration:
    """Start a node, load the Python documentation, adapt where torch is installed, reindex, search, evaluate.

    `adapt_settings` change how the encoder is adapted, but not where it is stored. The node keeps running.
    What an earlier run has done is not done again. Raises what the steps raise.
    """
    clock, wanted = Clock(), node_settings or NodeSettings()
    with clock.timing("node"):
        node = start(wanted, progress=progress)
        cluster = Cluster.connect(ClusterSettings(url=node.url))
    folder = demo_folder()
    with clock.timing("load"):
        write_beir(folder, *read_pydocs(max_documents=documents, queries=QUERIES))
        analyzer = "standard" if wanted.is_core else None  # that of a language is in a module
        into = LoadSettings(index=INDEX, language="en", analyzer=analyzer)
        loading = load(cluster, folder, into, progress=progress)
    with clock.timing("adapt"):
        settings = (adapt_settings or AdaptSettings()).model_copy(update={"out": folder / "encoder"})
        adaptation = adapted(cluster, settings, progress) if all(map(is_installed, TRAINED)) else None
    with clock.timing("reindex"):
        encoder = adaptation.folder if adaptation else minilm_encoder(progress=progress)
        reindexing = reindex(cluster, INDEX, encoder, progress=progress)
    with clock.timing("calibrate"):
        calibrate(cluster, INDEX, progress=progress)
    with clock.timing("search"):
        search = open_search(cluster, INDEX)
        careful = search.requiring(AT_LEAST) if search.answers.known else search
        hits, foreign = search(QUESTION, 3), careful(UNANSWERED, 3)
    with clock.timing("evaluate"):
        compared = Compared(("bm25", "dense", "hybrid-plain", "hybrid"))
        evaluation = evaluate_index(cluster, INDEX, JudgedQueries(folder), compared, progress=progress)
    return Demonstration(node, loading, adaptation, reindexing, hits, foreign, evaluation, clock.seconds)


def adapted(cluster: Cluster, settings: AdaptSettings, progress: Progress) -> Adaptation:
    """Adapt the packaged encoder to the documents, and remember the result for them."""
    from ..adaptation.adaptation import adapt

    adaptation = adapt((cluster, INDEX), settings, progress=progress)
    promote(cluster, INDEX, adaptation.folder)
    return adaptation


class Clock:
    """Notes how long each step takes."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def timing(self, step: str) -> Iterator[None]:
        """Time the block as `step`."""
        started = time.monotonic()
        yield
        self.seconds[step] = time.monotonic() - started


def demo_folder() -> Path:
    """Name the folder of the demo's corpus and encoder; only its owner can read it."""
    folder = data_folder() / "demo"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    return folder
