"""The parts of a record: one model per kind of state of an index (deployment, tuning, memory, rules …)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ..errors import DataError

VERSION = 3
"""The version of records; records of another version are not read."""
Fingerprint = Annotated[str, Field(pattern=r"^([A-Za-z0-9_][A-Za-z0-9_.:+=@-]{0,127})?$")]
"""64 hex digits, or the name that a user's own encoder gives itself."""


class Part(BaseModel):
    """Base of the record and its parts: immutable models that preserve unknown values."""

    model_config = ConfigDict(frozen=True, extra="allow", protected_namespaces=(), defer_build=True)


class Deployment(Part):
    """How clients search the index by plain REST (`hybridr deploy`): the way, pipeline and model.

    `job` identifies the deployed settings, `boost` is a formula, `recall` what transparent searches find.
    `cache_before` is the index's earlier setting of its request cache, which a fusing pipeline replaces.
    """

    way: str
    pipeline: str
    job: str = ""
    model_id: str | None = None
    connector_id: str | None = None
    server: str | None = None
    boost: str = ""
    recall: str = ""
    cache_before: str | None = Field(None, pattern=r"^(true|false)$")

    @property
    def fuses(self) -> bool:
        """Return whether the pipeline fuses result lists in the cluster; the request cache is off then."""
        return self.way != "transparent"


class SemanticModels(Part):
    """Fields that the cluster itself embeds, with hybridr's encoder on a server: the models for documents and
    queries, and their connectors. `added` names the fields with embeddings of text fields of the source."""

    fields: tuple[str, ...] = Field(min_length=1)
    added: tuple[str, ...] = ()
    server: str
    model_id: str
    search_model_id: str
    connector_id: str
    search_connector_id: str


class Tuned(Part):
    """Result of `tune`: search settings, a `chain` of re-rankers, and settings of stored pipelines."""

    search: dict[str, Any] | None = None
    chain: dict[str, Any] | None = None
    pipeline: dict[str, Any] | None = None

    @property
    def gains(self) -> bool:
        """Return whether any tuned value is in use."""
        return any((self.search, self.chain, self.pipeline))


class Spread(Part):
    """Distribution of cosines: their standard deviation over the documents of a query, and their mean.

    `packaged` is the standard deviation of the packaged encoder's cosines between the same texts; None if it
    does not know their language or could not be opened.
    """

    spread: float = Field(gt=0)
    mean: float
    packaged: float | None = Field(None, gt=0)


class WhitenedSpread(Spread):
    """The cosines of whitened queries, and the text of the `Whitening` that whitens them."""

    directions: str = Field(max_length=200_000)


class Cosines(Spread):
    """The cosines between queries and documents that do not answer them, measured on the index's own texts.

    With `whitened` None queries are used unchanged.
    """

    whitened: WhitenedSpread | None = None


class FittedTable(Part):
    """The term table of an index: its numbers of terms, of the documents it comes from, of stored parts."""

    fingerprint: str = Field(pattern=r"^[0-9a-f]{64}$")
    terms: int
    documents: int
    parts: int = Field(ge=1, le=16)


class Remembered(Part):
    """The memory of learnt queries: how many judged queries, by which encoder, in which job.

    `least` is the smallest cosine at which another query counts as similar.
    """

    queries: int
    encoder: Fingerprint
    job: str = Field(pattern=r"^[0-9a-f]{1,16}$")
    least: float = Field(0.0, ge=0, lt=1)


class Calibrated(Part):
    """Best scores of queries without answers in the index, as ascending percentiles; answers score higher.

    They were measured with `queries` queries when the index had `documents` documents; `answered` more
    queries were left out because the index may answer them. `ranking` identifies the ranking that made the
    scores.
    """

    ranking: str = Field(pattern=r"^[0-9a-f]{64}$")
    scores: tuple[Annotated[float, Field(allow_inf_nan=False)], ...] = Field(min_length=2, max_length=101)
    queries: int
    answered: int
    documents: int


class KeptRules(Part):
    """The query rules in force for the index: their version, their number, and the job that wrote them."""

    version: int = Field(ge=1)
    rules: int = Field(ge=0)
    job: str


class Ranking(Part):
    """Ranking of an index: the choice of `tune`, and the memory of learnt queries."""

    search: dict[str, Any] | None = None
    chain: dict[str, Any] | None = None
    memory: Remembered | None = None

    def is_as(self, ranking: Ranking) -> bool:
        """Return whether another ranking is equal."""
        return self.model_dump(exclude_none=True) == ranking.model_dump(exclude_none=True)


class Experiment(Part):
    """An interleaving experiment of two rankings, `a` and `b`; searches outside of it use `a`.

    `before` is the ranking before the experiment. `ended` names its end: "stopped", or the promoted ranking.
    """

    id: str = Field(pattern=r"^[0-9a-f]{8}$")
    at: str
    names: tuple[str, str]
    a: Ranking
    b: Ranking
    before: Ranking
    ended: Literal["", "stopped", "a", "b"] = ""


class Load(Part):
    """State of a `hybridr load`: the job, whether it finished, and the number of rejected documents."""

    job: str
    state: Literal["filling", "complete"]
    rejected: int = 0


class RepresentationState(BaseModel):
    """State (JSON) of a representation with its own encoder: its fingerprint, and the spread of scores."""

    model_config = ConfigDict(frozen=True, defer_build=True)
    encoder: str = Field(pattern=r"^[0-9a-f]{64}$")
    spread: float | None = Field(None, gt=0)

    @classmethod
    def of(cls, representations: Mapping[str, str], name: str) -> RepresentationState | None:
        """Return the state that a record keeps of a representation, if any. Raises DataError."""
        return cls.parse(representations[name]) if representations.get(name) else None

    @classmethod
    def parse(cls, text: str) -> RepresentationState:
        """Return the state in a record's JSON text. Raises DataError."""
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            problem = error.errors()[0]["msg"].lower()
            raise DataError(f"hybridr's record of a representation is damaged: {problem}") from None
