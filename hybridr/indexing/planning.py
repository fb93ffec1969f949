"""Plans a reindex before its first write: checks the index, estimates sizes, and keeps the plan of
requests.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from shlex import quote
from typing import Any

from ..cluster.connection import Cluster, IndexLookup, IndexView, json_bytes
from ..cluster.destinations import is_destination, require_known
from ..cluster.fields import empty_index, field_choice
from ..cluster.reading import sample_documents
from ..cluster.record import MARK_FIELD, ROLE, WHOLE, IndexInfo, Record
from ..cluster.retrievers.lexical import lexical_query
from ..cluster.rule_versions import newest_rules
from ..cluster.semantic import SemanticField, fields_with_models
from ..cluster.vector_forms import FORMS, Cost, cost_of, form_of, lacks_native_libraries, obstacle
from ..cluster.word_fields import chosen_word_fields, indexed_texts, searched_fields
from ..encoders.contract import Encoder, offers_of
from ..encoders.opening import OnnxEncoder, load_encoder
from ..encoders.precisions import usable_arithmetic, with_faster_precision
from ..errors import ClusterError, DataError
from ..languages import first_words
from .preflight import LANGUAGE_SAMPLE, Disk, check_language
from .recipe import TextRecipe
from .representations import FURTHER, fields_of, representations_in
from .runners import runner
from .settings import ReindexSettings

HITS = 10
NUMBER_BYTES = {"byte": 3.3}
FLOAT_BYTES = 12.2
"""Mean characters of one vector value in a response, comma included, for normally distributed values."""
SPLIT_DOCUMENTS = 200
MEASURED_DOCUMENTS = 32  # to choose the encoder's number format
PROBED_DOCUMENTS, PROBED_TEXTS, PROBED_WORDS = 64, 5, 20
JOB_SETTINGS = ("vector_field", "engine", "vectors", "m", "ef_construction", "max_tokens")


def added_fields(named: ReindexSettings | Record) -> list[str]:
    """Return the names of the fields in `_source` that hold what hybridr adds to a document."""
    if named.in_place or named.target == "in_place":
        return [*fields_of(named), MARK_FIELD]
    names = [name for kind in representations_in(named) if not kind.hidden for name in kind.fields(named)]
    models = named.semantic if isinstance(named, Record) else None
    return [*names, *(models.added if models else ())]


def answer_size_note(cluster: Cluster, index: IndexInfo, record: Record) -> str:
    """Return a line with the measured size of a response, with and without the fields that hybridr added."""
    fields = added_fields(record)
    full, filtered = answer_bytes(cluster, index, (), fields)
    return (
        f"an answer of {HITS} whole documents has {kilobytes(full)}, {kilobytes(filtered)} without what was "
        f"added; {source_filter_advice(fields)}"
    )


def kilobytes(size: int) -> str:
    """Return a size in bytes as text in kB."""
    return f"{size / 1000:,.1f} kB"


def source_filter_advice(fields: Sequence[str]) -> str:
    """Return advice for clients: the `_source` filter that keeps the added fields out of responses."""
    left_out = json.dumps({"excludes": list(fields)})
    return f'clients leave it out by "_source": {left_out}'


def answer_bytes(cluster: Cluster, index: IndexInfo, *excluded: Sequence[str]) -> list[int]:
    """Return the sizes in bytes of a response with HITS whole documents, each without the excluded fields.

    If the index allows only smaller pages, the sizes are extrapolated.
    """
    size = min(HITS, index.result_window)
    parts = {"size": size, "query": {"match_all": {}}}
    bodies = [{**parts, "_source": {"excludes": list(fields)}} for fields in excluded]
    answers = [answer | {"status": 200} for answer in cluster.msearch(index, bodies)]
    return [round((len(json_bytes(answer)) - len(',"status":200')) * HITS / size) for answer in answers]


@dataclass(frozen=True)
class Proposal:
    """The index to read, its text fields, the encoder and the settings, as checked before a target plans its
    writes.
    """

    cluster: Cluster
    info: IndexInfo
    encoder: Encoder
    settings: ReindexSettings
    documents: int
    fields: tuple[str, ...]
    lexical_fields: tuple[str, ...] = ()
    fields_named: bool = False
    fields_change: str = ""
    warning: str = ""
    alias_notes: tuple[str, ...] = ()
    texts: dict[int, list[str]] = field(default_factory=dict, repr=False, compare=False)
    """Texts of the samples read so far, by sample size."""
    view: IndexView | None = field(default=None, repr=False, compare=False)
    """Descriptions of indices when the plan began."""

    @cached_property
    def recipe(self) -> TextRecipe:
        """Return the recipe by which texts become vectors, before anything is fitted to the index."""
        return TextRecipe(self.encoder, self.settings, self.fields)

    @property
    def job_settings(self) -> dict[str, Any]:
        """Return the settings that decide what the vectors are; other settings may change between two runs of
        a job.
        """
        named = self.settings.model_dump(include=set(JOB_SETTINGS))
        named |= {"fields": self.fields, "compression": form_of(self.settings).compression}
        for representation in self.recipe.representations:
            named |= representation.job
        if self.settings.semantic:
            named["semantic"] = [*sorted(self.settings.semantic), self.settings.server]
        return named

    @property
    def mappings(self) -> dict[str, Any]:
        """Return the mappings of the fields of all representations, by field name."""
        mappings: dict[str, Any] = {}
        for representation in self.recipe.representations:
            mappings |= representation.mapping(self.cluster.version)
        return mappings

    @cached_property
    def vectors(self) -> int:
        """Return the number of vectors; if documents are split into passages, an estimate from a sample."""
        if self.recipe.windows is None:
            return self.documents
        texts = self.sample(SPLIT_DOCUMENTS)
        parts = sum(len(self.recipe.spans(text).spans) for text in texts)
        return round(self.documents * (parts / max(1, len(texts))))

    @cached_property
    def costs(self) -> list[Cost]:
        """Return the estimated cost of the chosen vector form, then of every other form that this cluster
        supports.
        """
        version, encoder, m = self.cluster.version, self.encoder, self.settings.m
        own_form, bare = form_of(self.settings), lacks_native_libraries(self.cluster)
        others = (form for form in FORMS if form != own_form)
        supported = [form for form in others if not obstacle(form, encoder.similarity, version, bare=bare)]
        return [
            cost_of(form, self.vectors, encoder.dim, m, version, is_chosen=form == own_form)
            for form in (own_form, *supported)
        ]

    @cached_property
    def representation_bytes(self) -> dict[str, int]:
        """Return the estimated bytes on disk of each representation, by name, without vectors and graph."""
        kinds = self.recipe.representations
        return {kind.name: round(self.documents * kind.bytes_each(self.sample)) for kind in kinds}

    @property
    def remarks(self) -> list[str]:
        """Return a line on each representation that is stored besides one vector a document."""
        kinds, sizes = self.recipe.representations, self.representation_bytes
        return [line for kind in kinds if (line := kind.planned(self.vectors, sizes[kind.name]))]

    @property
    def notes(self) -> list[str]:
        """Return remarks for the user: changed fields, fields of the lexical search, semantic fields copied
        as text, aliases that stay where they are.
        """
        words = f"words are searched in {', '.join(self.lexical_fields)}"
        differ = set(self.lexical_fields) != set(self.fields)
        semantic = replaced_fields(self.info, self.settings)
        copied = f"copied as text, without embeddings: {fields_with_models(semantic)}" if semantic else ""
        names, server = ", ".join(self.settings.semantic), self.settings.server
        embedded = f"semantic fields, embedded by the cluster, which asks {server}: {names}" if names else ""
        lines = (self.fields_change, words if differ else "", copied, embedded, *self.alias_notes)
        return [line for line in lines if line]

    @property
    def disk_bytes(self) -> int:
        """Return the estimated bytes on disk of vectors, graph and other representations, in one copy."""
        return self.costs[0].disk_bytes + sum(self.representation_bytes.values())

    def sample(self, count: int) -> list[str]:
        """Return the texts of `count` sampled documents, read once."""
        count = min(count, self.documents)
        if count not in self.texts:
            total = self.documents
            documents = sample_documents(self.cluster, self.info, count, fields=self.fields, total=total)
            self.texts[count] = [self.recipe.text_of(document.source) for document in documents]
        return self.texts[count]

    def with_chosen_precision(self, record: Record | None) -> Proposal:
        """Return the proposal with the encoder in the number format that `precision` "auto" chooses.

        An index that an earlier run created keeps the format in its `record`, and for int8 and bf16 the
        backend too (fp32 vectors of all backends are equal but for rounding), if it is installed here. For a
        new index the format is chosen by measuring sampled documents. Another setting, or an encoder opened
        as int8 or bf16, changes nothing.
        """
        encoder, settings = self.encoder, self.settings
        if settings.precision != "auto" or not isinstance(encoder, OnnxEncoder):
            return self
        if encoder.precision != "fp32":
            return self
        if record is None or record.precision is None:
            texts, limit = self.sample(MEASURED_DOCUMENTS), settings.max_tokens
            any_backend = settings.backend is None and settings.runner == "threads"
            encoder = with_faster_precision(
                encoder, texts, self.vectors, max_tokens=limit, any_backend=any_backend
            )
            return replace(self, encoder=encoder)
        precision, backend = usable_arithmetic(record.precision, record.backend)
        if precision != encoder.precision:
            encoder = load_encoder(encoder.folder, precision=precision, backend=backend)
        encoder.precision_reason = record.arithmetic
        if precision != record.precision:
            encoder.precision_reason = f"fp32: {record.backend}, which encoded earlier, is not installed here"
        return replace(self, encoder=encoder)

    def record_fields(self, job: str, record: Record | None = None) -> dict[str, Any]:
        """Return the fields of the record that say how vectors were made: source, encoder, settings, fitted
        states.

        Fitted states are those of the `record` of an earlier run. Without one they are fitted now, and the
        newest rules that earlier indices of the source have are added.
        """
        states: dict[str, Any] = {FURTHER: {}}
        for representation in self.recipe.representations:
            state = representation.state_in(record) if record else representation.fitted(self.sample)
            if representation.setting == FURTHER:
                states[FURTHER][representation.name] = state
            elif state:
                states[representation.setting] = state
        encoder, settings = self.encoder, self.settings
        rules = newest_rules(self.cluster, self.info, self.view) if record is None else None
        return {
            "role": ROLE,
            "source": self.info.name,
            "source_uuid": self.info.uuid,
            "source_lineage": self.info.lineage,
            "job": job,
            "encoder": encoder.fingerprint,
            "dim": encoder.dim,
            "similarity": encoder.similarity,
            "vector_field": settings.vector_field,
            "fields": self.fields,
            "fields_named": self.fields_named,
            "lexical_fields": self.lexical_fields,
            "max_tokens": settings.max_tokens,
            "engine": settings.engine,
            "vectors": settings.vectors,
            "compression": form_of(settings).compression,
            **offers_of(encoder).arithmetic,
            "arithmetic": offers_of(encoder).precision_reason,
            **({"target": settings.target} if settings.target else {}),
            **{name: state for name, state in states.items() if state},
            **({"warning": self.warning} if self.warning else {}),
            **({"rules": rules} if rules else {}),
        }


@dataclass(frozen=True)
class Plan:
    """Plan of a reindex.

    `record` is the record that the index `destination` will have. `live` means that the index is complete and
    is only brought up to date. `requests` are the exact requests, in order. `disk` is None for an existing
    index, or without the rights to read disk statistics. `remarks` are for the owner of the index; they
    include the `cautions` about who may read the new index. `details` are entries of `to_json` that only this
    target has. `seconds` (whole run) and `stages` (each stage) are set in a preview only.
    """

    proposal: Proposal = field(repr=False)
    destination: str
    record: Record
    exists: bool
    live: bool
    requests: list[dict[str, Any]] = field(repr=False)
    disk: Disk | None
    remarks: Sequence[str]
    details: dict[str, Any] = field(repr=False)
    seconds: float | None = None
    cautions: Sequence[str] = ()
    stages: Mapping[str, float] = field(default_factory=dict)
    begun: IndexInfo | None = field(default=None, repr=False)
    """The description of the index `destination` once it can take vectors; None before."""
    started: float = field(default=0.0, repr=False)
    """When preparing it began, by `time.monotonic`."""

    @cached_property
    def answer_note(self) -> str:
        """Return a line on how much larger search responses become, and how a client avoids that."""
        proposal = self.proposal
        fields = added_fields(self.record)
        numbers = proposal.encoder.dim * proposal.vectors / proposal.documents
        numbers *= 1 + len(self.record.semantic.added if self.record.semantic else ())
        value_bytes = NUMBER_BYTES.get(proposal.settings.vectors, FLOAT_BYTES)
        (size,) = answer_bytes(proposal.cluster, proposal.info, fields)
        return (
            f"an answer of {HITS} whole documents grows from {kilobytes(size)} to about "
            f"{kilobytes(size + round(HITS * numbers * value_bytes))}; {source_filter_advice(fields)}"
        )

    @property
    def vector_bytes(self) -> int:
        """Return the bytes on disk of all vectors and their graph, in one copy."""
        return self.proposal.costs[0].disk_bytes

    def to_json(self) -> dict[str, Any]:
        """Return the plan as printed by `--dry-run --json`."""
        return {
            **self.details,
            "exists": self.exists,
            "live": self.live,
            "documents": self.proposal.documents,
            "fields": self.record.fields,
            "lexical_fields": self.record.lexical_fields,
            "notes": [*self.proposal.notes, self.answer_note],
            "encoder": self.record.encoder,
            "vector_bytes": self.vector_bytes,
            "token_bytes": sum(self.proposal.representation_bytes.values()),
            "requests": self.requests,
            "disk": asdict(self.disk) if self.disk else None,
            "seconds": self.seconds,
            "stages": dict(self.stages),
            "costs": [asdict(cost) for cost in self.proposal.costs],
        }


def propose(
    cluster: Cluster, info: IndexInfo, encoder: Encoder, settings: ReindexSettings, view: IndexView
) -> Proposal:
    """Check that this encoder can write vectors for the index, and return what a reindex would write.

    Without `fields` in the settings they are chosen as by `inspect`. `view` describes the index and those
    with its vectors. Raises ClusterError (engine, plugin), DataError (empty, no
    text), ModelError (dimension, no states of tokens, an unknown language), SettingsError.
    """
    runner(settings).check()
    cluster.dialect.require("semantic" if settings.semantic else None)
    for kind in representations_in(settings):
        cluster.dialect.require("representations" if kind.reads_tokens or kind.setting == FURTHER else None)
        kind.check(cluster, encoder, settings)
    if (count := cluster.count(info.name)) == 0:
        raise empty_index(info)
    replaced = replaced_fields(info, settings)
    if replaced and not settings.replace_semantic:
        raise DataError(
            f"index '{info.name}' has semantic fields, {fields_with_models(replaced)}: "
            "the cluster would run their models, at its cost, for every document that is written",
            hint=f"hybridr reindex {quote(info.name)} --replace-semantic   makes an index with their text, "
            "without their embeddings; `neural` and `semantic` queries of these fields are refused there; "
            f"with --semantic {quote(','.join(sorted(replaced)))} they are answered, by the encoder of "
            "`hybridr serve`",
        )
    choice = field_choice(cluster, info, settings.fields, view=view)
    as_text = replace(info, semantic={})
    if names := settings.lexical_fields:
        searched = tuple(field.name for field in searched_fields(as_text, names))
    else:
        searched = chosen_word_fields(as_text, choice)
    chosen = (choice.fields, searched, choice.named, choice.change)
    proposal = Proposal(cluster, info, encoder, settings, count, *chosen, view=view)
    require_words_found(proposal)
    languages = offers_of(encoder).languages
    texts = proposal.sample(LANGUAGE_SAMPLE) if languages else []
    warning = check_language(texts, languages, info.name, force=settings.force)
    return replace(proposal, warning=warning)


def replaced_fields(info: IndexInfo, settings: ReindexSettings) -> dict[str, SemanticField]:
    """Return the semantic fields of an index that become text, by name."""
    return {name: field for name, field in info.semantic.items() if name not in settings.semantic}


def require_words_found(proposal: Proposal) -> None:
    """Raise DataError if a lexical search for words of the documents' own texts finds none of them.

    The new index has the mapping of its source, so its verification would fail for the same reason, but only
    after all texts were encoded.
    """
    texts = sorted(proposal.sample(PROBED_DOCUMENTS), key=len)[-PROBED_TEXTS:]
    words = [first_words(text, PROBED_WORDS) for text in reversed(texts) if text]
    info, fields = proposal.info, proposal.lexical_fields
    wordless_fields = {name for name, semantic in info.semantic.items() if not semantic.has_words}
    if not words or wordless_fields.intersection(fields):
        return
    reason = "words of its own documents find nothing there"
    try:
        for text in words:
            body = {"size": 1, "_source": False, "query": lexical_query(text, fields)}
            if proposal.cluster.search(info.name, body)["hits"]["hits"]:
                return
    except ClusterError as error:
        if error.status != 400:
            raise
        reason = error.message
    advice = '[search] lexical_fields = ["NAME"] names other fields'
    raise DataError(
        f"words cannot be searched in '{', '.join(fields)}' of index '{info.name}': {reason}",
        hint=f"{advice}; indexed texts there: {indexed_texts(info)}",
    )


def index_to_read(cluster: IndexLookup, name: str) -> IndexInfo:
    """Return the index to read: `name` itself, or the source of the index with vectors that `name` stands
    for. Raises DataError for an index that only claims to be one, such as a clone.
    """
    info = cluster.index_info(name)
    if not is_destination(info):
        return replace(info, scope=WHOLE)
    source = cluster.index_info(info.record.source)
    if source.name != info.name and source.uuid == info.record.source_uuid:  # else it was rebuilt
        require_known(info, source)
    return source
