"""The parts of a record: what an index remembers of one matter each."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ..errors import DataError

S = TypeVar("S", bound="RepresentationState")
VERSION = 3
"""The stamp of records: another one is not read."""
Fingerprint = Annotated[str, Field(pattern=r"^([A-Za-z0-9_][A-Za-z0-9_.:+=@-]{0,127})?$")]
"""64 hex digits, or the name that somebody's own encoder goes by."""


class Part(BaseModel):
    """What all parts of a record share: values never change."""

    model_config = ConfigDict(frozen=True, extra="allow", protected_namespaces=())


class Deployment(Part):
    """How the index is asked through plain REST; `job` identifies what was deployed, `boost` is a formula."""

    way: str
    pipeline: str
    job: str = ""
    model_id: str | None = None
    connector_id: str | None = None
    server: str | None = None
    boost: str = ""


class Tuned(Part):
    """What `tune` found: settings for searches, a `chain` of re-rankers behind them, and stored pipelines."""

    search: dict[str, Any] | None = None
    chain: dict[str, Any] | None = None
    pipeline: dict[str, Any] | None = None

    @property
    def gains(self) -> bool:
        """Return whether any of it is in use."""
        return any((self.search, self.chain, self.pipeline))


class Cosines(Part):
    """How cosines lie between queries and documents that do not answer them, measured on the index's own
    texts: the standard deviation over the documents of a query, and the mean."""

    spread: float = Field(gt=0)
    mean: float


class FittedTable(Part):
    """The term table of an index: how many terms, from how many documents, in how many parts it is kept."""

    fingerprint: str = Field(pattern=r"^[0-9a-f]{64}$")
    terms: int
    documents: int
    parts: int = Field(ge=1, le=16)


class Remembered(Part):
    """How many judged queries were learnt, by which encoder, in which job, like others from which cosine."""

    queries: int
    encoder: Fingerprint
    job: str
    least: float = Field(0.0, ge=0, lt=1)


class Calibrated(Part):
    """Best scores of queries that do not belong to the index, ascending: as 0 to 100 in 100 lie below.

    They are of `queries` asked when it had so many `documents`; `answered` others were left out since the
    index may answer them. `ranking` identifies what made the scores.
    """

    ranking: str = Field(pattern=r"^[0-9a-f]{64}$")
    scores: tuple[Annotated[float, Field(allow_inf_nan=False)], ...] = Field(min_length=2, max_length=101)
    queries: int
    answered: int
    documents: int


class KeptRules(Part):
    """Which version of the rules beside the source is in force, of how many rules, written in which job."""

    version: int = Field(ge=1)
    rules: int = Field(ge=0)
    job: str


class Ranking(Part):
    """What searches of an index rank by: what `tune` chose for it, and what `learn` remembers."""

    search: dict[str, Any] | None = None
    chain: dict[str, Any] | None = None
    memory: Remembered | None = None

    def is_as(self, ranking: Ranking) -> bool:
        """Return whether both rank alike."""
        return self.model_dump(exclude_none=True) == ranking.model_dump(exclude_none=True)


class Experiment(Part):
    """Two rankings that people see in one list, `a` alone where they do not; the index ranked as `before`.

    `ended` says how it ended: stopped, or which of the two was promoted.
    """

    id: str = Field(pattern=r"^[0-9a-f]{8}$")
    at: str
    names: tuple[str, str]
    a: Ranking
    b: Ranking
    before: Ranking
    ended: Literal["", "stopped", "a", "b"] = ""


class Load(Part):
    """What `load` put into the index, and how far it came."""

    job: str
    state: Literal["filling", "complete"]
    rejected: int = 0


class RepresentationState(BaseModel):
    """What an index remembers of a representation by an encoder of its own, as JSON: that encoder."""

    model_config = ConfigDict(frozen=True)
    about: ClassVar[str]
    encoder: str = Field(pattern=r"^[0-9a-f]{64}$")

    @classmethod
    def read(cls: type[S], text: str) -> S:
        """Read what a record holds. Raises DataError."""
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            said = error.errors()[0]["msg"].lower()
            raise DataError(f"hybridr's record says something odd of the {cls.about}: {said}") from None
