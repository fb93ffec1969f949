"""Settings of a search, merged with what `hybridr tune` found for its index."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from shlex import quote
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import AfterValidator, BeforeValidator, Field

from ..cluster.record import IndexInfo
from ..errors import SettingsError
from ..families import OneOf, member_names
from ..settings import NoOption, OwnSettings, Stage
from .boosts import GRAMMAR, read_boosts

FUSIONS = "search.fusions"
ONE_OR_SEVERAL = BeforeValidator(lambda value: (value,) if isinstance(value, str) else value)
NAMES_A_FUSION = {"fusion", "normalization"}
NAMES_A_FILE = {"query_template", "sparse_encoder", "token_encoder", "folder"}
RecallMode: TypeAlias = Literal["all", "lexical"]
"""Documents that a search finds: the neighbours of its vector too, or only what its words match."""


def checked_boost(formula: str) -> str:
    """Return a boost formula unchanged. Raises SettingsError if it cannot be parsed."""
    read_boosts(formula)
    return formula


class SearchSettings(Stage):
    """Settings of `Search`; `depth` is the number of candidates of each retriever."""

    table: ClassVar[str] = "search"

    fusion: Annotated[str, OneOf("search.fusions", "auto")] = Field(
        "auto", description="how the scores of the retrievers are combined"
    )
    normalization: NoOption[Literal["min_max", "l2", "z_score", "rrf"]] = Field(
        "min_max", description="how a search pipeline normalises the scores of each retriever"
    )
    dense_weight: float = Field(0.5, ge=0, le=1, description="weight of the dense retriever, 0 to 1")
    retrievers: NoOption[
        dict[Annotated[str, OneOf("cluster.retrievers")], Annotated[float, Field(gt=0, le=1)]]
    ] = Field({}, description="further retrievers of hybrid search and their weights")
    sparse_encoder: NoOption[Path | None] = Field(
        None, description="folder of the sparse encoder of the index; None: the one last used on this machine"
    )
    signals: tuple[Annotated[str, OneOf("search.signals", "auto", "all", "none")], ...] = Field(
        ("auto",), description="further parts of the score; auto: all default signals that the index supports"
    )
    boost: Annotated[str, AfterValidator(checked_boost)] = Field(
        "", description=f"boosts by field values, added to hybrid scores: {GRAMMAR}; empty: none"
    )
    whitened: NoOption[bool] = Field(
        True, description="whiten the vectors of queries, where the index knows how: docs/ranking.md"
    )
    depth: int = Field(100, ge=1, le=10_000, description="candidates of each retriever")
    recall: NoOption[RecallMode] = Field(
        "all",
        description="which documents hybrid searches find; all: by words or vectors; lexical: only by words",
    )
    at_least: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="return no hits if the best one has less confidence (0 to 1), such as 0.95; 0: no limit",
    )
    rerank: Annotated[tuple[Annotated[str, OneOf("search.rerankers", "none")], ...], ONE_OR_SEVERAL] = Field(
        ("none",), description="re-rankers for the best `depth` hits, applied in this order"
    )
    rerank_settings: NoOption[OwnSettings] = Field({}, description="settings of the re-rankers, by name")
    lexical_fields: NoOption[tuple[str, ...]] = Field(
        (), description="fields searched by BM25, NAME or NAME^BOOST; empty: those of the reindex"
    )
    query_template: Path | None = Field(
        None, description="file with your own lexical query, {{query}} stands for the text; None: multi_match"
    )
    tuned: bool = Field(
        True, description="use the values that `hybridr tune` chose for the index, unless given here"
    )

    @property
    def shares(self) -> dict[str, float]:
        """Return the weight of each retriever of a hybrid search, in their order."""
        return {"lexical": 1 - self.dense_weight, "dense": self.dense_weight, **self.retrievers}

    @property
    def chain(self) -> tuple[str, ...]:
        """Return the names of the re-rankers, in their order."""
        return tuple(name for name in self.rerank if name != "none")


def with_tuning(
    settings: SearchSettings, info: IndexInfo, part: Literal["search", "pipeline"] = "search"
) -> SearchSettings:
    """Return settings in which values that were not given come from `tune`, for searches or for stored
    pipelines.

    If the user names a fusion, its own defaults apply, because weights tuned for one fusion mean nothing for
    another. Raises SettingsError for an index that was tuned for a fusion unknown here.
    """
    tuned = info.record.tuning
    values = without_files((getattr(tuned, part) if tuned else None) or {})
    if not settings.tuned or not values or settings.model_fields_set & NAMES_A_FUSION:
        return settings
    if (fusion := values.get("fusion", "auto")) not in ("auto", *member_names(FUSIONS)):
        raise SettingsError(
            f"'{info.name}' was tuned for the fusion '{fusion}', which this version does not have",
            hint=f"hybridr tune {quote(info.record.source or info.name)} --reset",
        )
    if info.record.remembers and "signals" in values:
        # Tuning does not try the signal `memory`, so its choice of signals does not switch it off.
        values["signals"] = (*values["signals"], "memory")
    own_values = {name: getattr(settings, name) for name in settings.model_fields_set}
    return SearchSettings(**{**values, **own_values})


def tuned_chain(settings: SearchSettings, info: IndexInfo) -> SearchSettings:
    """Return settings with the re-rankers that `tune` found for the index.

    There are none if the user names re-rankers or a fusion, because they were tuned for other scores. Raises
    SettingsError for an unknown re-ranker.
    """
    chain = without_files((info.record.tuning.chain if info.record.tuning else None) or {})
    if not settings.tuned or settings.model_fields_set & {*NAMES_A_FUSION, "rerank"}:
        chain = {}
    reranker_settings = {**chain.get("rerank_settings", {}), **settings.rerank_settings}
    return SearchSettings(rerank=chain.get("rerank", ("none",)), rerank_settings=reranker_settings)


def without_files(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings without those that name a file or folder: other users may write a record, and must not
    make this process open files.
    """
    return {
        name: without_files(value) if isinstance(value, Mapping) else value
        for name, value in values.items()
        if name not in NAMES_A_FILE
    }
