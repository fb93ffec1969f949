"""Checks a reindex before its first write, and says exactly what it would send, wherever the vectors go."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import numpy as np

from ..cluster.bit_field import BITS_MAPPING, SOURCE_BYTES
from ..cluster.connection import Cluster
from ..cluster.destinations import is_destination, require_whole
from ..cluster.fields import choose_text_fields, searchable_fields
from ..cluster.legs.dense import (
    FORMS,
    Cost,
    Form,
    cost_of,
    form_of,
    is_bare,
    obstacle,
    require_form,
)
from ..cluster.reading import sample_documents, text_of
from ..cluster.record import BITS_FIELD, ROLE, WHOLE, IndexInfo, Record
from ..encoding.bits import MOST_TOKENS, bytes_a_token, mean_as_text, mean_state, read_bits
from ..encoding.contract import Encoder, reads_tokens
from ..encoding.passages import require_tokens, split
from ..errors import ClusterError, DataError, ModelError, SettingsError
from ..records import Windows
from .job import chosen_windows, dense_leg
from .preflight import LANGUAGE_SAMPLE, Disk, check_language
from .runners import runner
from .settings import ReindexSettings

MAX_DIM = 16_000
TIMED_DOCUMENTS = 32
SPLIT_DOCUMENTS = 200
MEAN_DOCUMENTS, MEAN_AT_ONCE = 200, 50  # the states of so many documents' tokens are in memory
FREEING = {BITS_FIELD: "leave --token-bits out"}  # what to do when a field is taken
USUAL = {"precision": "fp32", "backend": "onnx"}


@dataclass(frozen=True)
class Proposal:
    """What is known before a target plans: the index to read, and the vectors that it shall get."""

    cluster: Cluster
    info: IndexInfo
    encoder: Encoder
    settings: ReindexSettings
    documents: int
    fields: tuple[str, ...]
    windows: Windows | None
    warning: str = ""

    @property
    def job_settings(self) -> dict[str, Any]:
        """Name what decides what the vectors are; see `job_settings`."""
        return job_settings(self.settings, self.fields, self.windows)

    @property
    def mappings(self) -> dict[str, Any]:
        """Map the field of the vectors, and that of token bits: name -> mapping."""
        leg = dense_leg(self.settings, self.encoder, self.windows)
        bits = {BITS_FIELD: BITS_MAPPING} if self.settings.token_bits else {}
        return leg.mapping(self.cluster.version) | bits

    @cached_property
    def vectors(self) -> int:
        """Count the vectors; where documents are split, by a sample of them."""
        if self.windows is None:
            return self.documents
        texts = some_texts(self, SPLIT_DOCUMENTS)
        passages = sum(len(split(text, self.encoder, self.windows).spans) for text in texts)
        return round(self.documents * (passages / max(1, len(texts))))

    @cached_property
    def costs(self) -> list[Cost]:
        """Estimate the chosen form of vectors first, then each other one that this cluster takes."""
        cluster, encoder, settings = self.cluster, self.encoder, self.settings
        form, bare = form_of(settings), is_bare(cluster)

        def free(other: Form) -> bool:
            return obstacle(other, encoder.similarity, cluster.version, bare=bare) is None

        return [
            cost_of(one, self.vectors, encoder.dim, settings.m, cluster.version, chosen=one == form)
            for one in (form, *(other for other in FORMS if other != form and free(other)))
        ]

    @cached_property
    def token_bytes(self) -> int:
        """Estimate the bytes of all token bits on disk, by a sample of the documents.

        They lie there as base64 too, as the vectors do as text: see `Cost`.
        """
        if not self.settings.token_bits:
            return 0
        assert reads_tokens(self.encoder)
        texts, source = some_texts(self, SPLIT_DOCUMENTS), require_tokens(self.encoder)
        tokens = sum(len(source.token_spans(text, MOST_TOKENS)) for text in texts) / max(1, len(texts))
        return round(self.documents * tokens * bytes_a_token(self.encoder.width) * (1 + SOURCE_BYTES))

    @property
    def disk_bytes(self) -> int:
        """Estimate what the vectors, their graph and token bits take on disk, in one copy."""
        return self.costs[0].disk_bytes + self.token_bytes

    def token_mean(self) -> str:
        """Fit the mean that bits of tokens are taken from, to a sample of documents; empty without bits."""
        if not self.settings.token_bits:
            return ""
        assert reads_tokens(self.encoder)
        texts = [text for text in some_texts(self, MEAN_DOCUMENTS) if text]
        parts = (texts[start : start + MEAN_AT_ONCE] for start in range(0, len(texts), MEAN_AT_ONCE))
        read = (self.encoder.read_documents(part, max_tokens=self.settings.max_tokens) for part in parts)
        states = (reading.states for readings in read for reading in readings)
        return mean_as_text(mean_state(states, self.encoder.width))

    def remembered(self, job: str, known: Record | None = None) -> dict[str, Any]:
        """Give what the index remembers of where its vectors are from, wherever they are written.

        `known` is the record of an earlier run, whose mean of tokens stays.
        """
        encoder, settings = self.encoder, self.settings
        bits = known.token_bits if known else self.token_mean()
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
            "lexical_fields": self.info.record.lexical_fields or searchable_fields(self.info, self.fields),
            "max_tokens": settings.max_tokens,
            "engine": settings.engine,
            "vectors": settings.vectors,
            "compression": form_of(settings).compression,
            **arithmetic_of(encoder),
            **({"target": settings.target} if settings.target else {}),
            **({"token_bits": bits} if bits else {}),
            **({"warning": self.warning} if self.warning else {}),
        }


@dataclass(frozen=True)
class Plan:
    """What a reindex will do.

    `record` is what the index `destination` will remember. `live`: it is complete and only caught up.
    `requests` are the exact bodies, in order. `disk` is None for an index that is there already, or without
    the rights to ask. `remarks` are what its owner should know, with the
    `cautions` about who may read the new index; `terms` is what its target alone says in
    `to_json`. `seconds` are those of the encoder, in a preview only.
    """

    wanted: Proposal = field(repr=False)
    destination: str
    record: Record
    exists: bool
    live: bool
    requests: list[dict[str, Any]] = field(repr=False)
    disk: Disk | None
    remarks: Sequence[str]
    terms: dict[str, Any] = field(repr=False)
    seconds: float | None = None
    cautions: Sequence[str] = ()

    @property
    def vector_bytes(self) -> int:
        """Give the bytes of all vectors and their graph on disk, in one copy; those of token bits beside."""
        return self.wanted.costs[0].disk_bytes

    def to_json(self) -> dict[str, Any]:
        """Give what `--dry-run --json` shows."""
        return {
            **self.terms,
            "exists": self.exists,
            "live": self.live,
            "documents": self.wanted.documents,
            "fields": self.record.fields,
            "lexical_fields": self.record.lexical_fields,
            "encoder": self.record.encoder,
            "vector_bytes": self.vector_bytes,
            "token_bytes": self.wanted.token_bytes,
            "requests": self.requests,
            "disk": asdict(self.disk) if self.disk else None,
            "seconds": self.seconds,
            "costs": [asdict(cost) for cost in self.wanted.costs],
        }


def propose(
    cluster: Cluster, info: IndexInfo, encoder: Encoder, settings: ReindexSettings, fields: Sequence[str]
) -> Proposal:
    """Check what every target needs. `fields` are those given; none: as `inspect` would choose.

    Raises ClusterError (engine, plugin), DataError (empty, no text), ModelError (dimension, no states of
    tokens, an unknown language), SettingsError.
    """
    runner(settings).check()
    check_engine(cluster, encoder, settings)
    check_tokens(encoder, settings)
    if encoder.dim > MAX_DIM:
        raise ModelError(f"the encoder gives {encoder.dim} dimensions, OpenSearch takes at most {MAX_DIM}")
    count = cluster.count(info.name)
    if count == 0:
        raise DataError(f"index '{info.name}' is empty", hint=f"hybridr load FOLDER --index {info.name}")
    windows = chosen_windows(settings, encoder)
    chosen = choose_text_fields(cluster, info, fields)
    wanted = Proposal(cluster, info, encoder, settings, count, chosen, windows)
    languages: tuple[str, ...] = getattr(encoder, "languages", ())
    texts = some_texts(wanted, LANGUAGE_SAMPLE) if languages else []
    warning = check_language(texts, languages, info.name, force=settings.force)
    return replace(wanted, warning=warning)


def check_engine(cluster: Cluster, encoder: Encoder, settings: ReindexSettings) -> None:
    """Refuse what would fail later, or kill the node."""
    form, bare = form_of(settings), is_bare(cluster)
    require_form(form, encoder.similarity, cluster.version, bare=bare)
    if cluster.plugins() and "opensearch-knn" not in cluster.plugins():
        raise ClusterError("the plugin opensearch-knn is not on every node", hint="hybridr doctor")


def check_tokens(encoder: Encoder, settings: ReindexSettings) -> None:
    """Refuse token bits where no search could use them, or the encoder does not show its tokens' states."""
    if not settings.token_bits:
        return
    if settings.passages:
        raise SettingsError(
            "--token-bits and --passages exclude each other: token bits reach the end of every document",
            hint="leave --passages out",
        )
    if encoder.similarity != "cosine":
        raise ModelError("--token-bits needs an encoder that compares by cosine, this one has inner products")
    if not reads_tokens(encoder):
        raise ModelError(
            "the encoder does not show the states of its tokens, which --token-bits needs",
            hint="export it again: hybridr export",
        )
    require_tokens(encoder)


def source_of(cluster: Cluster, name: str) -> IndexInfo:
    """Find the index to read, all of it: `name` itself, or the source of the destination it stands for."""
    info = cluster.index_info(name)
    if info.name.startswith(".ds-"):
        raise ClusterError(
            f"'{name}' is a data stream, which only takes new documents", hint="copy it into an index first"
        )
    return cluster.index_info(info.record.source) if is_destination(info) else replace(info, scope=WHOLE)


def whole_source(cluster: Cluster, name: str) -> IndexInfo:
    """Find the index to read as `source_of` does. Raises ClusterError for a name that shows a part of it."""
    require_whole(cluster.index_info(name), name)
    return source_of(cluster, name)


def arithmetic_of(encoder: Encoder) -> dict[str, str]:
    """Name precision and backend of an encoder on documents."""
    return {name: str(getattr(encoder, name, usual)) for name, usual in USUAL.items()}


def job_settings(
    settings: ReindexSettings, fields: tuple[str, ...], windows: Windows | None = None
) -> dict[str, Any]:
    """Name the settings that decide what the vectors are; the others may change between two runs.

    One vector a document and no bits go unnamed, as before there were others: older destinations are still
    known.
    """
    return {
        **({"passages": windows.to_json()} if windows else {}),
        **({"token_bits": True} if settings.token_bits else {}),
        "fields": fields,
        "compression": form_of(settings).compression,
        **settings.model_dump(
            include={"vector_field", "engine", "vectors", "m", "ef_construction", "max_tokens"}
        ),
    }


def some_texts(wanted: Proposal, count: int) -> list[str]:
    """Read the text of some of the documents."""
    sample = sample_documents(wanted.cluster, wanted.info, count, fields=wanted.fields)
    return [text_of(document.source, wanted.fields) for document in sample]


def encoding_of(wanted: Proposal) -> Callable[[list[str]], object]:
    """Give what the filling does with texts: encode their beginnings, or read all of them for bits."""
    encoder, most = wanted.encoder, wanted.settings.max_tokens
    if wanted.settings.token_bits and reads_tokens(encoder):
        mean = np.zeros(encoder.width, dtype=np.float32)
        return partial(read_bits, encoder, mean=mean, max_tokens=most)
    return partial(encoder.encode_documents, max_tokens=most)


def seconds_to_encode(wanted: Proposal) -> float:
    """Estimate the encoder's seconds for all documents, by timing some of them."""
    texts = some_texts(wanted, min(TIMED_DOCUMENTS, wanted.documents))[:TIMED_DOCUMENTS]
    spans = [(text, split(text, wanted.encoder, wanted.windows).spans) for text in texts]
    parts = [text[a:b] for text, found in spans for a, b in found]
    if not parts:
        return 0.0
    timed, encode = parts[:: -(-len(parts) // TIMED_DOCUMENTS)], encoding_of(wanted)
    encode(timed[:1])  # the first call also makes things ready
    started = time.perf_counter()
    encode(timed)
    each = (time.perf_counter() - started) / len(timed)
    return each * len(parts) * wanted.documents / len(texts)
