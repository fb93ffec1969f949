"""Documents and queries to measure with: as many as asked for, spread over a folder, or Python's docs."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from hybridr.demo.demo import read_pydocs
from hybridr.errors import DataError
from hybridr.files.formats import read_corpus, read_jsonl


def spread_records(folder: Path | None, documents: int) -> Iterator[dict[str, Any]]:
    """Yield `documents` BEIR records, every n-th of the folder. Raises DataError where it holds fewer."""
    if folder is None:
        found = read_pydocs(max_documents=documents)[0]
        yield from ({"_id": one.doc_id, "title": one.title, "text": one.text} for one in found)
        return
    total = sum(1 for _ in read_corpus(folder))
    if total < documents:
        raise DataError(f"{folder} holds {total:,} documents, {documents:,} were asked for")
    yield from islice(read_corpus(folder), 0, documents * (total // documents), total // documents)


def spread_queries(folder: Path, queries: int) -> list[str]:
    """Give the texts of `queries` of a BEIR folder's queries, every n-th. Raises DataError for fewer."""
    found = [text for _, record in read_jsonl(folder / "queries.jsonl") if (text := record.get("text"))]
    if len(found) < queries:
        raise DataError(f"{folder} holds {len(found):,} queries, {queries:,} were asked for")
    return found[:: len(found) // queries][:queries]


def word_windows(folder: Path, words: int, apart: int) -> Iterator[str]:
    """Yield runs of `words` words of a BEIR folder's documents, read as one stream, none of them twice.

    Each begins `apart` words behind the one before.
    """
    waiting: list[str] = []
    seen: set[int] = set()
    for record in read_corpus(folder):
        waiting += f"{record.get('title', '')} {record['text']}".split()
        start = 0
        while start + words <= len(waiting):
            text = " ".join(waiting[start : start + words])
            start += apart
            if (key := hash(text)) not in seen:
                seen.add(key)
                yield text
        del waiting[:start]
