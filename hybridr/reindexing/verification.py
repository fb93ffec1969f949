"""Proves that a destination holds what its source holds, with the vectors of one encoder.

Every id, state and fingerprint is compared; whole documents and re-encoded vectors for a random sample and
for every document whose version says that somebody wrote it in the destination.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np

from ..cluster.connection import Cluster, path_of
from ..cluster.destinations import is_destination, is_in_place, refused_ids, resolve
from ..cluster.legs.dense import as_kept, dense_query
from ..cluster.legs.lexical import lexical_query
from ..cluster.reading import (
    Position,
    SourceDocument,
    count_missing,
    documents_by_id,
    read_pages,
    sources_by_id,
    text_of,
)
from ..cluster.record import ENCODER_FIELD, PASSAGE_VECTOR, SEQ_NO_FIELD, IndexInfo
from ..encoding.contract import Encoder
from ..encoding.passages import Span, split
from ..errors import DataError
from ..progress import Progress, silent
from .job import Stored, is_current, look_up
from .targets.in_place import Marks, broken_query, marked_query, other_than

SAMPLE = 64
PAGE = 1000
MIN_COSINE = 0.98  # between a stored vector and the text encoded again; int8 documents differ by .016
NAMED = 5  # ids that a finding names


@dataclass(frozen=True)
class Finding:
    """One comparison: how many documents were looked at, and the ids of those that differ."""

    name: str
    looked_at: int
    differing: list[str] = field(default_factory=list)
    detail: str = ""

    @property
    def ok(self) -> bool:
        """Tell whether nothing differs."""
        return not self.differing and not self.detail


@dataclass(frozen=True)
class Verification:
    """All findings of one destination."""

    source: str
    destination: str
    findings: list[Finding]

    @property
    def ok(self) -> bool:
        """Tell whether every comparison agreed."""
        return all(finding.ok for finding in self.findings)

    def problems(self) -> list[str]:
        """Say in one line each what differs, naming a few documents."""
        lines = []
        for finding in self.findings:
            if not finding.ok:
                some = ", ".join(finding.differing[:NAMED]) + (
                    ", …" if len(finding.differing) > NAMED else ""
                )
                what = finding.detail or f"{len(finding.differing)} of {finding.looked_at} documents: {some}"
                lines.append(f"{finding.name}: {what}")
        return lines


def verify(
    cluster: Cluster,
    name: str,
    encoder: Encoder | None = None,
    *,
    rejected: Sequence[str] = (),
    until: Position | None = None,
    sample: int = SAMPLE,
    seed: int | None = None,
    progress: Progress = silent,
) -> Verification:
    """Compare the destination of `name` with its source; without an encoder no text is encoded again.

    `rejected` are ids that the engine refused, which may be missing; documents written to the source after
    `until` are not looked at, since they are on their way. Raises DataError when `name` has no
    vectors, NotFound when its source is gone.
    """
    info = resolve(cluster, name)
    if not is_destination(info):
        raise DataError(f"'{name}' has no vectors to verify", hint=f"hybridr reindex {name}")
    if is_in_place(info):
        raise DataError(f"'{name}' holds its vectors itself", hint=f"hybridr verify {name}")
    source = cluster.index_info(info.record.source)
    cluster.refresh(info.name)
    states, suspects = compare_states(cluster, source, info, frozenset(rejected), until, progress)
    chosen = [
        document
        for document in random_documents(cluster, source, sample, random.Random(seed))
        if document.doc_id not in set(rejected) and look_up(cluster, info.name, [document])
    ]
    documents = {document.doc_id: document for document in [*suspects, *chosen]}
    findings = states if until else [count_finding(cluster, source, info, rejected), *states]
    findings += compare_documents(cluster, info, list(documents.values()), encoder)
    return Verification(source.name, info.name, [*findings, probe(cluster, info, chosen, encoder)])


def count_finding(cluster: Cluster, source: IndexInfo, info: IndexInfo, rejected: Sequence[str]) -> Finding:
    """Compare the numbers of documents; with every id of the source found, equal numbers mean equal ids."""
    expected = cluster.count(source.name) - count_missing(cluster, info.name, rejected)
    found = cluster.count(info.name)
    differs = f"{found:,} in '{info.name}', {expected:,} expected from '{source.name}'"
    return Finding("count", expected, detail="" if found == expected else differs)


def compare_states(
    cluster: Cluster,
    source: IndexInfo,
    info: IndexInfo,
    rejected: frozenset[str],
    until: Position | None,
    progress: Progress,
) -> tuple[list[Finding], list[SourceDocument]]:
    """Look every document of the source up in the destination; give findings, and what to look at closely."""
    missing, stale, foreign, suspects = [], [], [], []
    total, done = cluster.count(source.name), 0
    progress("verify", 0, total)
    for document, stored in states(cluster, source, info, until):
        done += 1
        if done % PAGE == 0:
            progress("verify", done, max(total, done))
        if document.doc_id in rejected:
            continue
        if stored is None:
            missing.append(document.doc_id)
        elif stored.encoder != info.record.encoder:
            foreign.append(document.doc_id)
        elif not is_current(document, stored, info.record.encoder):
            stale.append(document.doc_id)
        elif stored.version != document.version:
            suspects.append(document)
    progress("verify", done, done)
    findings = [
        Finding("missing", done, missing),
        Finding("older than the source", done, stale),
        Finding("without a vector of this encoder", done, foreign),
    ]
    return findings, suspects


def states(
    cluster: Cluster, source: IndexInfo, info: IndexInfo, until: Position | None
) -> Iterator[tuple[SourceDocument, Stored | None]]:
    """Pair every document of the source with its state in the destination."""
    for page in read_pages(cluster, source.name, page=PAGE, until=until, fields=()):
        found = look_up(cluster, info.name, page)
        yield from ((document, found.get(document.doc_id)) for document in page)


def random_documents(
    cluster: Cluster, source: IndexInfo, count: int, dice: random.Random
) -> list[SourceDocument]:
    """Draw documents of the source at random; their text is read from the source itself."""
    chance = {"random_score": {"seed": dice.randrange(2**31), "field": "_seq_no"}}
    body = {
        "size": count,
        "query": {"function_score": {"query": {"match_all": {}}, "boost_mode": "replace", **chance}},
        "_source": False,
        "version": True,
        "seq_no_primary_term": True,
    }
    path = path_of(source.name, "_search")
    hits = cluster.request("POST", path, body, every_shard=True)["hits"]["hits"]
    return [
        SourceDocument(h["_id"], {}, h["_version"], h["_seq_no"], h["_primary_term"], h.get("_routing"))
        for h in hits
    ]


def compare_documents(
    cluster: Cluster, info: IndexInfo, documents: list[SourceDocument], encoder: Encoder | None
) -> list[Finding]:
    """Compare whole documents less hybridr's fields, and their vectors with the text encoded again."""
    if not documents:
        return []
    ids = [document.doc_id for document in documents]
    stored = look_up(cluster, info.name, documents)
    cluster.refresh(info.name)  # another process may have written what was looked up just now
    found = sources_by_id(cluster, info.name, ids)
    # A document that changed in the source since is on its way, and looked at by its state alone.
    there = {
        doc_id: document.source
        for doc_id, document in documents_by_id(cluster, info.record.source, ids).items()
        if doc_id not in stored or stored[doc_id].source_seq_no in (None, document.seq_no)
    }
    copied = {doc_id: found.get(doc_id, {}) for doc_id in ids}
    field_name = info.record.vector_field
    ours = {field_name, ENCODER_FIELD, SEQ_NO_FIELD}
    changed = [
        doc_id
        for doc_id, source in there.items()
        if source != {name: value for name, value in copied[doc_id].items() if name not in ours}
    ]
    findings = [Finding("document", len(documents), changed)]
    if encoder is not None:
        findings.append(compare_vectors(info, there, copied, encoder))
    return findings


def compare_vectors(
    info: IndexInfo, there: dict[str, dict[str, Any]], copied: dict[str, dict[str, Any]], encoder: Encoder
) -> Finding:
    """Encode texts again: a document with text has the vector of its text, one without has none.

    One that is split has exactly the passages of its text, each with its own vector.
    """
    windows, wrong = info.record.passages, []
    parts: list[tuple[str, str, list[float]]] = []  # id, text of a passage, vector that stands for it
    for doc_id, source in there.items():
        text = text_of(source, info.record.fields)
        spans = split(text, encoder, windows).spans
        stored = stored_vectors(copied[doc_id].get(info.record.vector_field), spans, windows is not None)
        if stored is None:
            wrong.append(doc_id)
        else:
            parts += [(doc_id, text[a:b], row) for (a, b), row in zip(spans, stored, strict=True)]
    if parts:
        again = encoder.encode_documents([text for _, text, _ in parts], max_tokens=info.record.max_tokens)
        kept = np.array([row for *_, row in parts], dtype=np.float32)  # (parts, dim)
        lengths = np.linalg.norm(again, axis=1) * np.linalg.norm(kept, axis=1)
        cosines = (again * kept).sum(axis=1) / np.maximum(lengths, 1e-12)
        wrong += [part[0] for part, cosine in zip(parts, cosines, strict=True) if cosine < MIN_COSINE]
    return Finding("vector", len(there), list(dict.fromkeys(wrong)))


def stored_vectors(value: Any, spans: Sequence[Span], passages: bool) -> list[list[float]] | None:
    """Give the vectors that a document holds for these spans of its text; None when they are others."""
    if not passages:
        found = [value] if value else []
        return found if len(found) == len(spans) else None
    held = value if isinstance(value, list) else []
    same = [(part.get("start"), part.get("end")) for part in held] == list(spans)
    found = [part.get(PASSAGE_VECTOR) for part in held]
    return found if same and all(found) else None


def probe(
    cluster: Cluster, info: IndexInfo, documents: list[SourceDocument], encoder: Encoder | None
) -> Finding:
    """Ask one query of each leg, made from a document with text; each must find something."""
    ids = [document.doc_id for document in documents]
    there = sources_by_id(cluster, info.record.source, ids)
    texts = (text_of(source, info.record.fields) for source in there.values())
    text = next((text for text in texts if text), "")
    if not text:
        return Finding("probe query", 0)
    words = " ".join(text.split()[:20])
    bodies = [{"size": 1, "query": lexical_query(words, info.record.lexical_fields)}]
    if encoder is not None:
        vector = as_kept(encoder.encode_queries([words]), info.record.vectors)[0].tolist()
        passages = info.record.passages is not None
        query = dense_query(vector, info.record.vector_field, 1, passages=passages)
        bodies.append({"size": 1, "query": query})
    silent_legs = sum(not answer["hits"]["hits"] for answer in cluster.msearch(info.name, bodies))
    return Finding("probe query", len(bodies), detail=f"{silent_legs} found nothing" if silent_legs else "")


def verify_in_place(
    cluster: Cluster,
    info: IndexInfo,
    encoder: Encoder | None = None,
    *,
    rejected: Sequence[str] = (),
    until: Position | None = None,
    sample: int = SAMPLE,
    seed: int | None = None,
    progress: Progress = silent,
) -> Verification:
    """Compare every mark with the document's text; without an encoder no text is encoded again.

    `rejected` are ids that the index refused; documents written after `until` are not looked at. Raises
    DataError for a copy that bears another index's record.
    """
    if info.record.source_uuid != info.uuid:
        raise DataError(
            f"'{info.name}' is a copy of '{info.record.source}', with its record",
            hint=f"hybridr sync {info.name}   looks at every document and makes the record its own",
        )
    cluster.refresh(info.name)
    marks, refused = Marks.of_index(info), frozenset(rejected)
    chosen = [
        document
        for document in random_documents(cluster, info, sample, random.Random(seed))
        if document.doc_id not in refused
    ]
    findings = compare_marks(cluster, info, marks, refused, until, progress)
    if encoder is not None:
        found = sources_by_id(cluster, info.name, [document.doc_id for document in chosen])
        fitting = {doc_id: source for doc_id, source in found.items() if marks.fits(source)}
        findings.append(compare_vectors(info, fitting, fitting, encoder))
    return Verification(info.name, info.name, [*findings, probe(cluster, info, chosen, encoder)])


def compare_marks(
    cluster: Cluster,
    info: IndexInfo,
    marks: Marks,
    refused: frozenset[str],
    until: Position | None,
    progress: Progress,
) -> list[Finding]:
    """Look at every document: its mark against its text, then the vector that the mark speaks of."""
    foreign: list[str] = []
    stale: list[str] = []
    total, done = cluster.count(info.name), 0
    progress("verify", 0, total)
    for page in read_pages(cluster, info.name, page=PAGE, until=until, fields=marks.read_fields):
        for document in page:
            if marks.fits(document.source) or document.doc_id in refused:
                continue
            (stale if marks.by_encoder(document.source) else foreign).append(document.doc_id)
        done += len(page)
        progress("verify", done, max(total, done))
    broken = [document.doc_id for document in broken_documents(cluster, info, marks, until)]
    return [
        Finding("without a vector of this encoder", done, foreign),
        Finding("vector of an older text", done, stale),
        Finding("mark without its vector", done, broken),
    ]


def broken_documents(
    cluster: Cluster, info: IndexInfo, marks: Marks, until: Position | None = None
) -> Iterator[SourceDocument]:
    """Yield documents whose mark and vector belie each other."""
    unless = other_than(broken_query(marks, info.record.vector_field))
    pages = read_pages(cluster, info.name, page=PAGE, until=until, unless=unless, fields=marks.read_fields)
    return chain.from_iterable(pages)


def count_current(cluster: Cluster, info: IndexInfo, since: Position | None) -> int:
    """Count the documents whose vector is that of their text.

    Only what was written after `since`, the settled position of the last round, can be stale: that is read.
    """
    cluster.refresh(info.name)
    marks = Marks.of_index(info)
    query = {"size": 0, "track_total_hits": True, "query": marked_query(marks)}
    marked = int(cluster.search(info.name, query)["hits"]["total"]["value"])
    at = Position(dict(since.seq_no)) if since else None
    pages = read_pages(cluster, info.name, page=PAGE, position=at, fields=marks.read_fields)
    stale = sum(
        marks.by_encoder(document.source) and not marks.fits(document.source)
        for document in chain.from_iterable(pages)
    )
    broken = sum(marks.fits(document.source) for document in broken_documents(cluster, info, marks))
    return marked - stale - broken


def verify_index(
    cluster: Cluster,
    name: str,
    encoder: Encoder,
    *,
    sample: int = SAMPLE,
    progress: Progress = silent,
) -> Verification:
    """Verify the destination of `name` with the encoder that wrote its vectors, less what was refused."""
    info = resolve(cluster, name)
    refused = refused_ids(info)
    if is_in_place(info):
        return verify_in_place(cluster, info, encoder, rejected=refused, sample=sample, progress=progress)
    return verify(cluster, name, encoder, rejected=refused, sample=sample, progress=progress)
