"""The named systems of `evaluate`, and the search that `hybridr search` opens."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from .cluster import Cluster
from .completion import CompletedSearch
from .destinations import resolve
from .errors import SettingsError
from .evaluation import MEASURES, Evaluation, System, evaluate
from .formats import read_topics
from .known_encoders import encoder_for
from .progress import Progress, silent
from .records import Run
from .retrieval import LEXICAL, Mode, Search
from .settings import SearchSettings
from .verification import SAMPLE, Verification, verify
from .writing import rejects_of


class Condition(NamedTuple):
    """What a named system is; `stock` ignores the user's search settings."""

    mode: Mode
    feedback: Literal["rm3"] | None = None
    stock: bool = False
    completed: bool = False


SYSTEMS = {
    "bm25": Condition("lexical"),
    "rm3": Condition("lexical", feedback="rm3"),
    "dense": Condition("dense"),
    "hybrid": Condition("hybrid"),
    "hybrid-stock": Condition("hybrid", stock=True),
    "hybrid-completed": Condition("hybrid", completed=True),
}


def open_search(
    cluster: Cluster,
    name: str,
    mode: Mode = "hybrid",
    encoder: Path | None = None,
    settings: SearchSettings | None = None,
    *,
    feedback: Literal["rm3"] | None = None,
    complete: bool = False,
    progress: Progress = silent,
) -> Search:
    """Open a search of `name` with the encoder that wrote its vectors, or the one in the given folder."""
    info = resolve(cluster, name)
    model = None if mode == LEXICAL else encoder_for(cluster, info, encoder, progress=progress)
    kind = CompletedSearch if complete and mode == "hybrid" else Search
    return kind(cluster, info.name, model, mode, feedback, settings=settings)


def verify_index(
    cluster: Cluster,
    name: str,
    encoder: Path | None = None,
    *,
    sample: int = SAMPLE,
    progress: Progress = silent,
) -> Verification:
    """Verify the destination of `name` with the encoder that wrote its vectors, less what was refused."""
    info = resolve(cluster, name)
    model = encoder_for(cluster, info, encoder, progress=progress)
    refused = rejects_of(info.name).ids()
    return verify(cluster, name, model, rejected=refused, sample=sample, progress=progress)


def evaluate_index(
    cluster: Cluster,
    name: str,
    beir: Path,
    *,
    split: str = "test",
    systems: Sequence[str] = ("bm25", "dense", "hybrid"),
    measures: Sequence[str] = MEASURES,
    encoder: Path | None = None,
    settings: SearchSettings | None = None,
    progress: Progress = silent,
) -> Evaluation:
    """Evaluate named systems of one index on the judged queries of a BEIR folder.

    Raises SettingsError for an unknown system, and what `open_search` and `evaluate` raise.
    """
    if unknown := [system for system in systems if system not in SYSTEMS]:
        raise SettingsError(f"unknown system '{unknown[0]}': {', '.join(SYSTEMS)}")
    queries, qrels = read_topics(beir, split)
    info = resolve(cluster, name)
    modes = {SYSTEMS[system].mode for system in systems}
    model = encoder_for(cluster, info, encoder, progress=progress) if modes - {LEXICAL} else None
    opened: dict[str, System | Run] = {}
    for system in systems:
        condition = SYSTEMS[system]
        kind = CompletedSearch if condition.completed else Search
        chosen = SearchSettings() if condition.stock else settings
        opened[system] = kind(cluster, info.name, model, condition.mode, condition.feedback, settings=chosen)
    return evaluate(opened, queries, qrels, measures, progress=progress)
