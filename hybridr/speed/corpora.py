"""Documents to measure with: as many as asked for, spread over a folder, or the documentation of Python."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from ..errors import DataError
from ..formats import read_corpus
from ..pydocs import read_pydocs


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
