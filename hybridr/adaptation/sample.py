"""The documents that are trained on: a sample that does not depend on the order they are read in."""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from ..errors import DataError
from ..manifest import fingerprint
from ..progress import Progress, counted
from ..records import Document
from ..settings import SpanSettings

if TYPE_CHECKING:
    from ..cluster import Cluster

LONGEST_TEXT = 20_000  # characters; far beyond what the encoder reads, and small enough to keep
LEAST_DOCUMENTS = 40
Source: TypeAlias = "Iterable[Document] | tuple[Cluster, str]"


class Sample(NamedTuple):
    """Documents in a fixed random order, without repeated or empty texts."""

    documents: list[Document]
    read: int
    fingerprint: str


def draw_sample(source: Source, settings: SpanSettings, progress: Progress) -> Sample:
    """Read all documents and keep at most `max_documents`: those with the smallest seeded hash.

    The choice depends on ids, texts and seed, not on the order of reading. Raises DataError when fewer
    than 40 different texts are left.
    """
    kept: list[tuple[int, Document]] = []
    seen: set[int] = set()
    read = 0
    for document in documents_of(source, settings, progress):
        read += 1
        text = hash_of("", document.contents)
        if not document.contents.strip() or text in seen:
            continue
        seen.add(text)
        entry = (-hash_of(str(settings.seed), document.doc_id), clipped(document))
        if len(kept) < settings.max_documents:
            heapq.heappush(kept, entry)
        else:
            heapq.heappushpop(kept, entry)
    documents = [document for _, document in sorted(kept, reverse=True)]
    if len(documents) < LEAST_DOCUMENTS:
        raise DataError(
            f"{read:,} documents hold {len(documents)} different texts; {LEAST_DOCUMENTS} are needed",
            hint="use the unadapted encoder: hybridr reindex NAME without --encoder",
        )
    return Sample(documents, read, fingerprint([hash_of("", repr(document)) for document in documents]))


def documents_of(source: Source, settings: SpanSettings, progress: Progress) -> Iterator[Document]:
    """Yield the documents of an iterable, or of (cluster, index)."""
    if not isinstance(source, tuple):
        yield from counted(source, progress, "read")
        return
    from ..inspection import choose_text_fields
    from ..reading import read_documents, text_of

    cluster, index = source
    fields = choose_text_fields(cluster, index, settings.fields)
    titles = [name for name in fields if name == "title" and len(fields) > 1]
    texts = [name for name in fields if name not in titles]
    for found in read_documents(cluster, index, fields=fields, progress=progress):
        yield Document(found.doc_id, text_of(found.source, texts), text_of(found.source, titles))


def clipped(document: Document) -> Document:
    """Cut a document to what adaptation can use."""
    return document._replace(text=document.text[:LONGEST_TEXT], title=document.title[:LONGEST_TEXT])


def hash_of(salt: str, text: str) -> int:
    """Hash to 64 bits, the same in every process."""
    data = f"{salt}\n{text}".encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "big")
