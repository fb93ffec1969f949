"""Samples of the two collections that are compared, and of their queries."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

from ..cluster import Cluster
from ..errors import DataError
from ..formats import document_of, read_corpus, read_jsonl
from ..inspection import choose_text_fields
from ..progress import Progress, silent
from ..reading import text_of
from ..sampling import sample_documents

T = TypeVar("T")


class Sample(NamedTuple):
    """Texts of a collection that are not empty, and queries to it."""

    name: str
    documents: list[str]
    queries: list[str]


def sample_index(
    cluster: Cluster,
    index: str,
    size: int,
    seed: int,
    *,
    fields: Sequence[str] = (),
    queries: Sequence[str] = (),
    progress: Progress = silent,
) -> Sample:
    """Read up to `size` documents of an index at random. Raises DataError when none has text."""
    info = cluster.index_info(index)
    chosen = choose_text_fields(cluster, index, fields)
    found = sample_documents(cluster, info, size, fields=chosen, seed=seed, progress=progress)
    texts = [text_of(document.source, chosen) for document in found]
    return checked(index, texts, size, queries, seed)


def sample_folder(folder: Path, size: int, seed: int, *, queries: Sequence[str] = ()) -> Sample:
    """Read up to `size` documents of a BEIR folder at random, and its queries when none are given."""
    texts = drawn((document_of(record, folder).contents for record in read_corpus(folder)), size, seed)
    if not queries and (folder / "queries.jsonl").is_file():
        queries = drawn(query_texts(folder), size, seed)
    return checked(folder.name, texts, size, queries, seed)


def checked(name: str, texts: Sequence[str], size: int, queries: Sequence[str], seed: int) -> Sample:
    """Drop empty texts, cap and shuffle both, so that a prefix is a sample. Raises DataError without text."""
    present = [text for text in texts if text.strip()]
    if not present:
        raise DataError(f"'{name}' has no document with text")
    return Sample(name, shuffled(present, size, seed), shuffled(queries, size, seed))


def shuffled(texts: Sequence[str], size: int, seed: int) -> list[str]:
    """Draw up to `size` texts in random order: equal texts and seeds give equal orders."""
    return random.Random(seed).sample(texts, min(size, len(texts)))


def read_query_texts(path: Path, size: int, seed: int) -> list[str]:
    """Read up to `size` queries at random: of a BEIR folder, of JSONL with `text`, or one per line.

    Raises DataError when there are none.
    """
    if not (found := drawn(query_texts(path), size, seed)):
        raise DataError(f"{path} holds no queries")
    return found


def query_texts(path: Path) -> Iterator[str]:
    """Yield the queries of a file or BEIR folder that have text."""
    file = path / "queries.jsonl" if path.is_dir() else path
    if file.suffix == ".jsonl":
        texts: Iterable[str] = (str(record.get("text") or "") for _, record in read_jsonl(file))
    else:
        texts = _read_lines(file)
    return (text.strip() for text in texts if text.strip())


def _read_lines(file: Path) -> list[str]:
    try:
        return file.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise DataError(f"cannot read {file}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise DataError(f"{file} is not UTF-8: {error.reason} at byte {error.start}") from None


def drawn(items: Iterable[T], size: int, seed: int) -> list[T]:
    """Draw `size` items without holding the others (reservoir sampling, Vitter 1985)."""
    chance = random.Random(seed)
    kept: list[T] = []
    for place, item in enumerate(items):
        if place < size:
            kept.append(item)
        elif (slot := chance.randrange(place + 1)) < size:
            kept[slot] = item
    return kept


def halves(text: str) -> tuple[str, str]:
    """Cut a text at the first blank behind its middle, else in the middle."""
    middle = len(text) // 2
    blank = text.find(" ", middle)
    cut = blank if 0 < blank < len(text) - 1 else middle
    return text[:cut].strip(), text[cut:].strip()
