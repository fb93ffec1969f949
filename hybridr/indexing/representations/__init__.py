"""Representations: what an encoder leaves in a document, one file each.

The class of a member sets its `name`, that of the file, and a `help`. An index has one or more of them, all
made in one pass of the encoder over a text: see `TextRecipe`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar, NamedTuple, Protocol, TypeAlias

from ...cluster.connection import Cluster
from ...cluster.dialects import Version
from ...cluster.record import Record
from ...cluster.record_parts import RepresentationState
from ...cluster.token_field import BITS_MAPPING, stored_bytes
from ...encoders.contract import Encoder, Reading, Vectors, reads_tokens
from ...encoders.graph_folders import GraphFolder, graph_entry, open_once
from ...encoders.passages import Split, require_tokens
from ...errors import ModelError, SettingsError
from ...families import load_member, member_names
from ...records import Windows
from ..settings import ReindexSettings

FAMILY = "indexing.representations"
FURTHER = "representations"
Sample: TypeAlias = Callable[[int], list[str]]
"""Returns the texts of that many randomly drawn documents of the index; some may be empty."""
TextReader: TypeAlias = Callable[[Sequence[str]], Sequence[Any]]
"""Turns query texts into what a retriever searches by."""


class EncodedDocument(NamedTuple):
    """Output of an encoder for a text that is not empty.

    `vectors` are `(n, dim)`, one for each span of `split`. `kept` maps the name of a representation to what
    it keeps of each window of the text, or of the whole text if it has a separate encoder.
    """

    vectors: Vectors
    split: Split
    kept: Mapping[str, list[Any]] = {}


class Representation(Protocol):
    """One form in which an encoder's output is stored in a document, such as a vector; members subclass this.

    An instance is made from the settings and the encoder of an index and the state that was fitted for it
    (None before). Class methods work for settings and for the record of an index alike. By default a
    representation reads the tokens of each text to their end. With `setting = "representations"` that setting
    selects it by name, and the record's `representations` keep its state.
    """

    name: ClassVar[str]
    help: ClassVar[str]
    setting: ClassVar[str]
    """Setting that selects it, and key of the record for its state: "representations" or its own name."""
    compared: ClassVar[str]
    """Name in a verification and a plan."""
    freeing: ClassVar[str] = "leave it out of the setting representations"
    """Hint for a user whose field has the name of one of its fields."""
    reads_tokens: ClassVar[bool] = True
    """Whether it is computed from token states; else from the vectors alone."""
    hidden: ClassVar[bool] = False
    """Whether a new index excludes its fields from `_source`."""
    shows: ClassVar[bool] = True
    """Whether an `exists` query finds the documents with its fields; `rank_features` fields
    do not support it."""
    works_in_place: ClassVar[bool] = True
    """Whether it can be added to an existing index."""
    staged: ClassVar[str] = "they are read from the index's own texts"
    """Why the three stages do not make it; empty if they do, as vectors of spans."""
    windows: Windows | None = None
    """Windows into which it splits documents."""
    settings: ReindexSettings
    encoder: Encoder
    state: Any

    def __init__(self, settings: ReindexSettings, encoder: Encoder, state: Any = None) -> None:
        """Keep the settings, the encoder and the fitted state, all of which `check` has accepted."""
        self.settings, self.encoder, self.state = settings, encoder, state

    @classmethod
    def is_chosen(cls, named: ReindexSettings | Record) -> bool:
        """Return whether the settings select this representation, or an index has it."""
        value = getattr(named, cls.setting)
        return cls.name in value if cls.setting == FURTHER else bool(value)

    @classmethod
    def fields(cls, named: ReindexSettings | Record) -> tuple[str, ...]:
        """Return the names of its fields in a document."""

    @classmethod
    def state_in(cls, record: Record) -> Any:
        """Return the fitted state that the record of an index keeps."""
        state = getattr(record, cls.setting)
        return state.get(cls.name) if cls.setting == FURTHER else state

    @classmethod
    def settings_in(cls, record: Record) -> dict[str, Any]:
        """Return the settings of this representation that an index was written with."""
        return {cls.setting: bool(getattr(record, cls.setting))}

    @classmethod
    def described(cls, record: Record) -> str:
        """Return a line on this representation of an index; empty for vectors, which every index has."""
        return cls.compared if cls.reads_tokens else ""

    @classmethod
    def option(cls) -> str:
        """Return the command-line option that selects it."""
        return "--" + cls.setting.replace("_", "-")

    @classmethod
    def check(cls, cluster: Cluster, encoder: Encoder, settings: ReindexSettings) -> None:
        """Raise ClusterError, ModelError or SettingsError if this representation cannot be made with them."""
        if not cls.reads_tokens:
            return
        flag = cls.option()
        if settings.passages:
            raise SettingsError(
                f"{flag} and --passages exclude each other: {cls.compared} reach the end of every document",
                hint="leave --passages out",
            )
        if not reads_tokens(encoder):
            raise ModelError(
                f"the encoder does not show the states of its tokens, which {flag} needs",
                hint="export it again: hybridr export",
            )
        require_tokens(encoder)

    @property
    def job(self) -> dict[str, Any]:
        """Return what decides its values, for the fingerprint of a job."""
        return {self.name if self.setting == FURTHER else self.setting: True}

    def mapping(self, version: Version) -> dict[str, Any]:
        """Return the mappings of its fields, by name."""

    def fitted(self, sample: Sample) -> Any:
        """Fit this representation to sampled texts of the index; return the state to remember (a string if
        `setting` is "representations").
        """
        return ""

    @classmethod
    def reader(cls, record: Record, settings: Any) -> TextReader:
        """Return a function that turns query texts into what the retriever of the same name searches by.

        `settings` are those of the search.
        """
        raise NotImplementedError

    def encode(self, texts: Sequence[str]) -> Sequence[Any] | None:
        """Return what the representation's own encoder makes of each text; None without such an encoder."""
        return None

    def keep(self, text: str, reading: Reading) -> Any:
        """Return what the representation stores for one window of a text, computed from its token states."""

    def values(self, encoded: EncodedDocument) -> dict[str, Any]:
        """Return the fields of a document and their values."""

    def stored_values(
        self, cluster: Cluster, index: str, sources: Mapping[str, dict[str, Any]]
    ) -> dict[str, Any]:
        """Return id -> stored value of the documents that have one; `sources` are their bodies."""
        name = self.fields(self.settings)[0]
        values = {doc_id: source.get(name) for doc_id, source in sources.items()}
        return {doc_id: value for doc_id, value in values.items() if value not in (None, [])}

    def fits(self, encoded: EncodedDocument, stored: Any) -> bool:
        """Return whether the `stored` value is that of the document's text, but for rounding."""
        return bool(next(iter(self.values(encoded).values())) == stored)

    def bytes_each(self, sample: Sample) -> float:
        """Return the estimated bytes on disk of a document, without vectors and graph."""
        return 0.0

    def planned(self, vectors: int, size: int) -> str:
        """Return a line of the plan on its size; empty for plain vectors."""
        is_further = self.reads_tokens or self.setting == FURTHER
        return f"{self.compared}: about {size / 1e6:,.1f} MB a copy" if is_further else ""


class InDocValues(Representation):
    """A representation in a binary field with doc values, which a new index keeps out of `_source`."""

    hidden = True

    def mapping(self, version: Version) -> dict[str, Any]:
        """Return the mapping of each field of the representation: binary, with doc values."""
        return {name: BITS_MAPPING for name in self.fields(self.settings)}

    def stored_values(self, cluster: Cluster, index: str, sources: Mapping[str, object]) -> dict[str, Any]:
        """Return the stored bytes of each document, by id, from the doc values."""
        (name,) = self.fields(self.settings)
        return stored_bytes(cluster, index, list(sources), name)

    def planned(self, vectors: int, size: int) -> str:
        """Return the line of the plan on its size; merges free half of it later."""
        return f"{super().planned(vectors, size)}, half of it until merges end"


class ByOwnEncoder(Representation, Protocol):
    """A representation made by a separate encoder, from the folder that the setting `folder` names.

    A member sets the `kind` of the folder, the `field` of documents, and the number of texts on which its
    scores are `measured`.
    """

    kind: ClassVar[type[GraphFolder]]
    folder: ClassVar[str]
    field: ClassVar[str]
    measured: ClassVar[int]
    reads_tokens: ClassVar[bool] = False
    shows: ClassVar[bool] = False

    @classmethod
    def fields(cls, named: ReindexSettings | Record) -> tuple[str, ...]:
        """Return the name of its field."""
        return (cls.field,)

    @classmethod
    def described(cls, record: Record) -> str:
        """Return a line with the encoder's fingerprint."""
        return f"{cls.compared} by {RepresentationState.parse(record.representations[cls.name]).encoder[:12]}"

    def fitted(self, sample: Sample) -> str:
        """Measure the spread of scores on sampled texts; return the state with it, as JSON."""
        texts = [text for text in sample(self.measured) if text.strip()]
        return str(self.own_state.model_copy(update={"spread": self.spread_of(texts)}).model_dump_json())

    def spread_of(self, texts: Sequence[str]) -> float | None:
        """Return the spread of scores measured on some texts; None for too few texts."""

    @classmethod
    def check(cls, cluster: Cluster, encoder: Encoder, settings: ReindexSettings) -> None:
        """Raise SettingsError or ModelError without an encoder folder that can be opened."""
        if (folder := getattr(settings, cls.folder)) is None:
            option = cls.folder.replace("_", "-")
            raise SettingsError(
                f"the representation '{cls.name}' needs --{option} DIR", hint=cls.kind.how_to_make
            )
        open_once(cls.kind, folder)

    @cached_property
    def own_state(self) -> RepresentationState:
        """Return its state: from the record of the index, else from the settings."""
        if self.state:
            return RepresentationState.parse(self.state)
        encoder = graph_entry(self.kind, getattr(self.settings, self.folder)).fingerprint
        return RepresentationState(encoder=encoder)

    @property
    def job(self) -> dict[str, Any]:
        """Return the encoder's fingerprint, without what was measured."""
        return {self.name: self.own_state.encoder}

    @cached_property
    def own_encoder(self) -> Any:
        """Return its encoder, opened."""
        return open_once(self.kind, getattr(self.settings, self.folder), self.own_state.encoder)


def representations_in(named: ReindexSettings | Record) -> list[type[Representation]]:
    """Return the representations that settings or a record name. Raises SettingsError for unknown names."""
    for name in named.representations:
        load_member(FAMILY, name)
    return [kind for kind in kinds() if kind.is_chosen(named)]


def kinds() -> list[type[Representation]]:
    """Return the classes of all representations, in alphabetical order."""
    return [load_member(FAMILY, name) for name in member_names(FAMILY)]


def fields_of(named: ReindexSettings | Record, *, visible: bool = False) -> tuple[str, ...]:
    """Return the names of the fields that hold what the encoder made of a document; with `visible`, those
    that an `exists` query can match.
    """
    kinds = (kind for kind in representations_in(named) if kind.shows or not visible)
    return tuple(name for kind in kinds for name in kind.fields(named))


def name_conflict_hints(settings: ReindexSettings) -> dict[str, str]:
    """Return field -> advice for when the documents already have a field of that name."""
    return {name: kind.freeing for kind in representations_in(settings) for name in kind.fields(settings)}


def fitted_states(record: Record) -> dict[str, Any]:
    """Return the fitted states of an index's representations, by name."""
    return {kind.name: kind.state_in(record) for kind in representations_in(record)}


def settings_in(record: Record) -> dict[str, Any]:
    """Return the settings that select the representations of an index, with their own settings."""
    settings: dict[str, Any] = {}
    for kind in kinds():
        settings |= kind.settings_in(record)
    return settings | {FURTHER: tuple(record.representations)}
