"""Reads all documents that an encoder is fitted on, or a sample, from an index, a file or an iterable."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

from ..cluster.connection import Cluster, path_of
from ..cluster.field_values import text_of
from ..cluster.fields import choose_text_fields
from ..cluster.reading import read_documents
from ..errors import DataError, quantity
from ..evaluation.label_free import draw_probes
from ..files.formats import document_of, read_document_file, read_table, short_digest
from ..files.local import fingerprint
from ..languages import guess_language
from ..records import Document, Progress, silent

LONGEST_TEXT = 20_000  # characters; far beyond what the encoder reads, and small enough to keep
MIN_DOCUMENTS = 40
TARGET_DOCUMENTS, TARGET_QUERIES = 20_000, 10_000
MIN_QUERIES = 10  # fewest for a diagnosis of domains
GIVE_QUERIES = "--target-queries FILE gives some, one per line; without it they are made from documents"
LANGUAGE_SAMPLE = 500  # documents
TITLE_FIELD = "title"
GZIP_RATIO = 4  # text shrinks to a third or a quarter
Source: TypeAlias = "Iterable[Document] | CorpusFile | tuple[Cluster, str]"


class DrawnSample(NamedTuple):
    """Sampled documents in a fixed random order, without repeated or empty texts."""

    documents: list[Document]
    read: int
    fingerprint: str

    def split(self, held_out: int) -> tuple[list[Document], list[Document]]:
        """Return at most `held_out` documents to hold out, and the others."""
        count = held_out_count(len(self.documents), held_out)
        return self.documents[:count], self.documents[count:]


def draw_sample(
    source: Source,
    max_documents: int,
    *,
    seed: int = 0,
    fields: Sequence[str] = (),
    progress: Progress = silent,
) -> DrawnSample:
    """Read all documents and return a sample of at most `max_documents`: those with the smallest seeded hash.

    The sample depends on ids, texts and seed, not on the order of reading. Raises DataError for fewer than 40
    different texts.
    """
    pairs: list[tuple[int, Document]] = []
    hashes: set[int] = set()
    count = 0
    for document in read_source(source, fields, progress):
        count += 1
        text = text_hash(document.contents, "")
        if not document.contents.strip() or text in hashes:
            continue
        hashes.add(text)
        entry = (-text_hash(document.doc_id, str(seed)), clipped(document))
        if len(pairs) < max_documents:
            heapq.heappush(pairs, entry)
        else:
            heapq.heappushpop(pairs, entry)
    documents = [document for _, document in sorted(pairs, reverse=True)]
    if len(documents) < MIN_DOCUMENTS:
        raise DataError(
            f"{count:,} documents hold {len(documents)} different texts; {MIN_DOCUMENTS} are needed",
            hint="use the unadapted encoder: hybridr reindex NAME without --encoder",
        )
    return DrawnSample(
        documents, count, fingerprint([text_hash(repr(document), "") for document in documents])
    )


@dataclass(frozen=True)
class TargetDomain:
    """A target domain for domain-invariant training (MoDIR): some of its documents, and queries."""

    name: str
    documents: tuple[Document, ...]
    queries: tuple[str, ...]
    made_from: tuple[int, ...]
    """Position of the document that a query was made from; -1 for a query of a log."""
    fingerprint: str


def read_target(
    name: str, source: Source, queries: Sequence[str] = (), *, seed: int = 0, progress: Progress = silent
) -> TargetDomain:
    """Return a target domain: at most 20,000 documents, and the given queries, else queries made from
    documents.

    Raises DataError for fewer than 40 documents or 10 queries.
    """
    sample = draw_sample(source, TARGET_DOCUMENTS, seed=seed, progress=progress)
    if queries:
        texts, made_from = tuple(queries), (-1,) * len(queries)
    else:
        probes = draw_probes(sample.documents, TARGET_QUERIES, seed)
        texts = tuple(probe.text for probe in probes)
        made_from = tuple(probe.position for probe in probes)
    if len(texts) < MIN_QUERIES:
        raise DataError(
            f"{name}: {quantity(len(texts), 'query')}, {MIN_QUERIES} are needed", hint=GIVE_QUERIES
        )
    key = fingerprint([sample.fingerprint, list(texts)])
    return TargetDomain(name, tuple(sample.documents), texts, made_from, key)


def main_language(documents: Sequence[Document]) -> str:
    """Return the language of most documents; "und" if it cannot be identified."""
    return guess_language(document.contents for document in documents[:LANGUAGE_SAMPLE]).code


def clipped(document: Document) -> Document:
    """Return a document whose title and text are cut to LONGEST_TEXT characters each."""
    return document._replace(text=document.text[:LONGEST_TEXT], title=document.title[:LONGEST_TEXT])


def text_hash(text: str, salt: str | None = None) -> int:
    """Return a 64-bit hash of a text, the same in every process; `salt` is put before the text."""
    return short_digest(text if salt is None else f"{salt}\n{text}")


def held_out_count(documents: int, limit: int) -> int:
    """Return how many documents are held out from training: `limit`, at most a fifth of them."""
    return min(limit, documents // 5)


def read_source(source: Source, fields: Sequence[str], progress: Progress) -> Iterator[Document]:
    """Yield the documents of an iterable, a file, or (cluster, index); `fields` are for an index."""
    if isinstance(source, tuple):
        cluster, index = source
        yield from read_index(cluster, index, fields, progress)
    else:
        done = 0
        progress("read", done)
        for done, document in enumerate(source, 1):
            yield document
            progress("read", done)
        progress("read", done, done)


def read_index(cluster: Cluster, index: str, fields: Sequence[str], progress: Progress) -> Iterator[Document]:
    """Yield the documents of a live index, with title and text."""
    text_fields = choose_text_fields(cluster, cluster.index_info(index), fields)
    for document in read_documents(cluster, index, fields=text_fields, progress=progress):
        yield to_document(document.doc_id, document.source, text_fields)


def to_document(doc_id: str, record: dict[str, Any], fields: Sequence[str]) -> Document:
    """Return a document made of these fields of a record; a field named `title` becomes its title."""
    titles = [name for name in fields if name == TITLE_FIELD and len(fields) > 1]
    texts = [name for name in fields if name not in titles]
    return Document(doc_id, text_of(record, texts), text_of(record, titles))


def source_record(source: Source) -> Any:
    """Return a description of a source that an unfinished run is resumed by; None for a plain iterable.

    A file is described by path, size and time of change, without reading it.
    """
    if isinstance(source, CorpusFile):
        state = source.file.stat() if source.file.is_file() else None
        return {
            "path": str(source.path.absolute()),
            "form": source.form,
            "fields": list(source.fields),
            "bytes": state and state.st_size,
            "changed_ns": state and state.st_mtime_ns,
        }
    if isinstance(source, tuple):
        cluster, index = source
        info = cluster.index_info(index)
        scope = {"scope": asdict(info.scope)} if info.scope else {}
        return {"index": index, "uuid": info.uuid, **scope}
    return None


def estimate_bytes(source: Source) -> int:
    """Return the estimated bytes of text of a source; 0 if unknown before reading."""
    if isinstance(source, CorpusFile) and source.file.is_file():
        packed = source.file.suffix == ".gz"
        return source.file.stat().st_size * (GZIP_RATIO if packed else 1)
    if isinstance(source, tuple):
        cluster, index = source
        statistics = cluster.request("GET", path_of(cluster.index_info(index).name, "_stats", "store"))
        return int(statistics["_all"]["primaries"]["store"]["size_in_bytes"])
    return 0


@dataclass(frozen=True)
class CorpusFile:
    """A file of documents, read at each iteration, which raises DataError if that fails."""

    path: Path
    """A BEIR folder, NAME.jsonl (.json, .ndjson), or lines of id and text; files may be packed (`.gz`)."""
    fields: tuple[str, ...] = ()
    """Text fields of JSONL records; empty: title and text."""

    @property
    def form(self) -> Literal["beir", "jsonl", "tsv"]:
        """Return the format, by the name of the file."""
        if self.path.is_dir():
            return "beir"
        kind = next((end for end in reversed(self.path.suffixes) if end != ".gz"), "")
        return "jsonl" if kind in (".jsonl", ".json", ".ndjson") else "tsv"

    def __iter__(self) -> Iterator[Document]:
        if self.form == "tsv":
            yield from (Document(doc_id, text) for _, doc_id, text in read_table(self.path))
            return
        for line, record in read_document_file(self.file):  # ids may be repeated, unlike in an index
            if not self.fields:
                yield document_of(record, self.file)
            elif any(name.split(".")[0] in record for name in self.fields):
                yield to_document(record["_id"], record, self.fields)
            else:
                raise DataError(
                    f"{self.file}:{line}: no field {' or '.join(self.fields)}",
                    hint=f"its fields: {', '.join(record)}",
                )

    @property
    def file(self) -> Path:
        """Return the path of the file itself."""
        return self.path / "corpus.jsonl" if self.form == "beir" else self.path
