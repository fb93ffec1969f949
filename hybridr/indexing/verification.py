"""Verifies that an index holds what its source holds, with the vectors of one encoder.

The id, state and encoder fingerprint of every document is compared. Whole documents and re-encoded vectors
are compared for a random sample, and for every document that a client wrote in the index itself.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from shlex import quote
from typing import Any, TypeAlias

from ..cluster.aliases import way_to_vectors
from ..cluster.connection import Cluster
from ..cluster.destinations import is_destination, is_restored, resolve
from ..cluster.field_values import text_of
from ..cluster.mappings import differing_fields
from ..cluster.reading import (
    ID_PAGE,
    Key,
    Share,
    SourceDocument,
    counterparts,
    hit_options,
    random_order_query,
    read_pages,
    source_document,
    sources_by_id,
)
from ..cluster.record import SEQ_NO_FIELD, IndexInfo
from ..cluster.retrievers.dense import DenseRetriever, to_stored_values
from ..cluster.retrievers.lexical import lexical_query
from ..cluster.semantic import embedded_texts, embedding_model_id, stored_form
from ..cluster.writing import accepted_ids
from ..encoders.contract import Encoder
from ..errors import ClusterError, DataError
from ..languages import first_words
from ..records import Progress, silent
from .client_writes import ClientWrites, content_of, expected_count, is_live, stale_documents
from .filling import map_in_threads
from .job import Stored, stored_states
from .lag import cut_into_shares, visible_position
from .recipe import TextRecipe
from .semantic_models import other_embeddings
from .targets import SAMPLE, Extent, Finding, target_of

Bodies: TypeAlias = dict[str, dict[str, Any]]
"""Documents by id."""
READERS = 4  # at once
PROBE_WORDS = 20
DELETED = "deleted by clients"
NOT_EMBEDDED = "semantic field without an embedding by its model"
MISSING, OLDER, FOREIGN = "missing", "older than the source", "without a vector of this encoder"
NAMED = 5  # ids that a finding names


@dataclass(frozen=True)
class Verification:
    """The findings of verifying one index."""

    source: str
    destination: str
    findings: list[Finding]

    @property
    def ok(self) -> bool:
        """Return whether every comparison agreed."""
        return all(finding.ok for finding in self.findings)

    def problems(self) -> list[str]:
        """Return a line for each comparison that differs, naming a few documents."""
        problems = []
        for finding in self.findings:
            if finding.ok:
                continue
            ids = ", ".join(finding.differing[:NAMED]) + (", …" if len(finding.differing) > NAMED else "")
            counts = f"{len(finding.differing)} of {finding.looked_at} {finding.of}"
            problems.append(f"{finding.name}: {finding.detail or f'{counts}: {ids}'}")
        return problems


def verify(
    cluster: Cluster,
    name: str,
    encoder: Encoder | None = None,
    *,
    sample: int = SAMPLE,
    seed: int | None = None,
    progress: Progress = silent,
) -> Verification:
    """Compare the vectors of `name` with their documents and with its source.

    Only documents accepted by `--accept-rejects` may be missing, until the source changes them. Without an
    encoder no text is encoded again. Raises DataError if `name` has no vectors, or is a copy with the record
    of another index, NotFound if its source is gone, ClusterError for a name of several indices.
    """
    info = resolve(cluster, name, whole_index=True)
    if not is_destination(info):
        raise DataError(f"'{name}' has no vectors to verify", hint=way_to_vectors(cluster, info, name))
    extent = Extent(rejected=accepted_ids(info), sample=sample, seed=seed, progress=progress)
    findings = target_of(info.record).findings(cluster, info, encoder, extent)
    return Verification(info.record.source, info.name, findings)


def require_verified(cluster: Cluster, info: IndexInfo, encoder: Encoder, extent: Extent) -> None:
    """Raise ClusterError if a verification of the index finds a difference."""
    source, findings = info.record.source, target_of(info.record).findings(cluster, info, encoder, extent)
    problems = "; ".join(Verification(source, info.name, findings).problems())
    if not problems:
        return
    advice = "run the same command again; if this error remains, start anew:"
    if info.name == source:
        raise ClusterError(
            f"not every vector in '{source}' fits its document: {problems}",
            hint=f"{advice} hybridr remove {quote(source)}",
        )
    raise ClusterError(
        f"'{info.name}' differs from '{source}', the alias was not switched: {problems}",
        hint=f"{advice} delete '{info.name}' first",
    )


def compare_with_source(
    cluster: Cluster, info: IndexInfo, encoder: Encoder | None, extent: Extent
) -> list[Finding]:
    """Return the findings of comparing an index with its source. Raises NotFound if the source is gone."""
    source_info = extent.source or cluster.index_info(info.record.source)
    source = source_info.name
    if extent.until is None:
        cluster.refresh(info.name)
    sightings = check_in_shares(
        cluster, source, extent, partial(check_states, cluster, source_info, info, extent.rejected)
    )
    deleted = set(sightings.wrong.pop(DELETED, ()))
    findings, suspects = sightings.findings(MISSING, OLDER, FOREIGN), sightings.suspects
    if deleted:
        findings.append(Finding(DELETED, len(deleted)))
    sample = random_documents(cluster, source_info, extent.sample, extent.seed)
    stored = stored_states(cluster, info.name, sample)
    comparable = [d for d in sample if d.key in stored and d.doc_id not in extent.rejected]
    if extent.until is None:  # else the source is still written: the last pass copies that
        fields = source_info.properties
        mapping = Finding("mapping", len(fields), list(differing_fields(source_info, info)), of="fields")
        # Every id of the source is present, so equal counts mean equal ids.
        expected, count = expected_count(cluster, info, extent.rejected | deleted), cluster.count(info.name)
        differs = f"{count:,} in '{info.name}', {expected:,} expected from '{source}'"
        if count > expected and (
            written := cluster.count(info.name, {"bool": {"must_not": {"exists": {"field": SEQ_NO_FIELD}}}})
        ):
            differs += f"; clients wrote {written:,} since: hybridr sync {quote(source)}"
        findings[:0] = [Finding("count", expected, detail="" if count == expected else differs), mapping]
    if is_restored(info, source_info):
        findings.insert(0, Finding("lineage", 0, detail=f"'{source}' was restored from a snapshot since"))
    documents = {document.doc_id: document for document in [*suspects, *comparable]}
    findings += compare_documents(cluster, source_info, info, list(documents.values()), encoder, stored)
    if info.record.semantic:
        whole_index = Extent(progress=extent.progress)
        embedded = check_in_shares(cluster, info.name, whole_index, partial(check_embeddings, cluster, info))
        findings += embedded.findings(NOT_EMBEDDED)
        if encoder is not None:
            sampled = random_documents(cluster, info, extent.sample, extent.seed)
            doc_ids = [document.doc_id for document in sampled]
            different = other_embeddings(cluster, info, doc_ids, encoder)
            findings.append(Finding("embedding", len(doc_ids), different))
    return [*findings, probe_query(cluster, info, [document.doc_id for document in comparable], encoder)]


def check_states(
    cluster: Cluster, source: IndexInfo, info: IndexInfo, rejected: Collection[str], share: Share
) -> Sightings:
    """Check that the documents of a share of the source are in the index, up to date and with a vector;
    return those that are not.

    Rejected ids are skipped. In an index that clients search, a missing document that was copied before
    counts as deleted by clients.
    """
    sightings = Sightings()
    for page in read_pages(cluster, source, page=ID_PAGE, share=share, fields=()):
        states = stored_states(cluster, info.name, page)
        sightings.looked_at += len(page)
        missing = [d for d in page if d.key not in states and d.doc_id not in rejected]
        deleted = (
            ClientWrites(cluster, info).deleted_by_clients(missing) if missing and is_live(info) else set()
        )
        stale = {d.key for d in stale_documents(cluster, info, page, states, info.record.encoder)}
        for document in page:
            stored = states.get(document.key)
            if document.key in deleted:
                sightings.note(DELETED, document)
            elif document.doc_id in rejected:
                continue
            elif stored is None:
                sightings.note(MISSING, document)
            elif stored.encoder != info.record.encoder:
                sightings.note(FOREIGN, document)
            elif document.key in stale:
                sightings.note(OLDER, document)
            elif stored.version != document.version:
                sightings.suspects.append(document)
    return sightings


@dataclass
class Sightings:
    """Result of checking documents: ids by the check that they failed (`wrong`), and documents whose vectors
    should be compared with the encoder (`suspects`).
    """

    looked_at: int = 0
    wrong: dict[str, list[str]] = field(default_factory=dict)
    suspects: list[SourceDocument] = field(default_factory=list)

    def note(self, name: str, document: SourceDocument) -> None:
        """Record the id of a document under the check that it failed."""
        self.wrong.setdefault(name, []).append(document.doc_id)

    def add(self, more: Sightings) -> None:
        """Add the results of another share."""
        self.looked_at += more.looked_at
        self.suspects += more.suspects
        for name, ids in more.wrong.items():
            self.wrong.setdefault(name, []).extend(ids)

    def findings(self, *names: str) -> list[Finding]:
        """Return a finding for each of the named checks."""
        return [Finding(name, self.looked_at, self.wrong.get(name, [])) for name in names]


def check_in_shares(
    cluster: Cluster, index: str, extent: Extent, check: Callable[[Share], Sightings]
) -> Sightings:
    """Check every share of an index with `check`, several at once; return the joined results."""
    total_sightings, total = Sightings(), cluster.count(index)
    shares = cut_into_shares(cluster, index, None, extent.until or visible_position(cluster, index))
    extent.progress("verify", 0, total)
    with closing(map_in_threads(check, shares, READERS)) as sightings:
        for part in sightings:
            total_sightings.add(part)
            extent.progress("verify", total_sightings.looked_at, max(total, total_sightings.looked_at))
    return total_sightings


def random_documents(cluster: Cluster, info: IndexInfo, count: int, seed: int | None) -> list[SourceDocument]:
    """Return randomly drawn documents of an index, without text; a `seed` makes the draw repeatable."""
    number = random.Random(seed).randrange(2**31)
    size = min(count, info.result_window)
    body = {"size": size, "query": random_order_query({"match_all": {}}, number), **hit_options(())}
    answer = cluster.search(info, body, every_shard=True)
    return [source_document(hit) for hit in answer["hits"]["hits"]]


def compare_documents(
    cluster: Cluster,
    source: IndexInfo,
    info: IndexInfo,
    documents: list[SourceDocument],
    encoder: Encoder | None,
    states: Mapping[Key, Stored],
) -> list[Finding]:
    """Compare the bodies of documents with the source's, and their vectors with their text encoded again.

    `states` are stored states of documents that were just read.
    """
    if not documents:
        return []
    unread = [document for document in documents if document.key not in states]
    stored = {key[0]: state for key, state in {**states, **stored_states(cluster, info.name, unread)}.items()}
    cluster.refresh(info.name)  # makes visible what another process may have just written
    copies = counterparts(cluster, replace(info, semantic={}), documents)
    copied: Bodies = {d.doc_id: copies[d.key].source if d.key in copies else {} for d in documents}
    # A document that the source has changed since is not compared: the next sync copies it.
    sources = {
        doc_id: document.source
        for (doc_id, _), document in counterparts(cluster, source, documents).items()
        if doc_id not in stored or stored[doc_id].source_seq_no in (None, document.seq_no)
    }
    contents = {doc_id: content_of(copied[doc_id], info) for doc_id in sources}
    # Clients' writes that a sync has seen stay: their vectors must be those of the clients' text.
    kept_ids = {
        doc_id
        for doc_id in sources
        if doc_id in stored and stored[doc_id].written_here and stored[doc_id].source_seq_no is not None
    }
    bodies = {doc_id: stored_form(body, info.semantic) for doc_id, body in sources.items()}
    changed = [doc_id for doc_id in sources if doc_id not in kept_ids and bodies[doc_id] != contents[doc_id]]
    sources |= {doc_id: contents[doc_id] for doc_id in kept_ids}
    findings = [Finding("document", len(documents), changed)]
    if encoder is not None:
        findings += compare_with_encoder(cluster, info, sources, copied, encoder)
    return findings


def check_embeddings(cluster: Cluster, info: IndexInfo, share: Share) -> Sightings:
    """Note the documents of a share of the destination that have a text without an embedding by its model."""
    models = info.record.semantic
    assert models
    sightings, fields = Sightings(), [info.semantic[name].stored for name in models.fields]
    for page in read_pages(
        cluster, replace(info, semantic={}), share=share, fields=[*models.fields, *fields]
    ):
        sightings.looked_at += len(page)
        for document in page:
            texts = (embedded_texts(document.source, name, info.semantic[name]) for name in models.fields)
            if any(embedding_model_id(stored) != models.model_id for _, stored in chain(*texts)):
                sightings.note(NOT_EMBEDDED, document)
    return sightings


def compare_with_encoder(
    cluster: Cluster, info: IndexInfo, originals: Bodies, copied: Bodies, encoder: Encoder
) -> list[Finding]:
    """Compare each document's stored vector with its text encoded again; without text it has none."""
    recipe = TextRecipe.of(info.record, encoder)
    texts = {doc_id: recipe.text_of(source) for doc_id, source in originals.items()}
    encoded_by_id = dict(zip(texts, recipe.read(list(texts.values())), strict=True))
    findings = []
    for representation in recipe.representations:
        stored = representation.stored_values(
            cluster, info.name, {doc_id: copied[doc_id] for doc_id in originals}
        )
        wrong = []
        for doc_id in originals:
            encoded, value = encoded_by_id[doc_id], stored.get(doc_id)
            is_bare = encoded is None and value is None
            if not is_bare and (encoded is None or value is None or not representation.fits(encoded, value)):
                wrong.append(doc_id)
        findings.append(Finding(representation.compared, len(originals), wrong))
    return findings


def probe_query(
    cluster: Cluster, info: IndexInfo, doc_ids: Sequence[str], encoder: Encoder | None
) -> Finding:
    """Search for words of the longest text, lexically and by vector; report searches without hits."""
    sources = sources_by_id(cluster, info.name, doc_ids)
    texts = (text_of(source, info.record.fields) for source in sources.values())
    text = max(texts, key=len, default="")
    if not text:
        return Finding("probe query", 0)
    words = first_words(text, PROBE_WORDS)
    bodies = [{"size": 1, "query": lexical_query(words, info.record.lexical_fields)}]
    if encoder is not None:
        vector = to_stored_values(encoder.encode_queries([words]), info.record.vectors)[0]
        query = DenseRetriever.of(info.record, ()).query(vector, 1)
        bodies.append({"size": 1, "query": query})
    empty = sum(not answer["hits"]["hits"] for answer in cluster.msearch(info.name, bodies))
    return Finding("probe query", len(bodies), detail=f"{empty} found nothing" if empty else "")
