"""The documents that the gate compares encoders on, picked out of a stream that is read only once."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import orjson

from ..manifest import replacing
from ..masked_lm.tokens import hash_of, scattered, tokenizable
from ..records import Document
from ..staging import storing
from ..texts import remember_text
from .gate import CORPUS_CAP
from .sample import clipped


class GateDocuments:
    """The first documents in the order of the token cache, so that those it holds out come first.

    They lie in a file that only its owner can read: a run that goes on does not read the source again.
    """

    def __init__(self, file: Path, seed: int) -> None:
        self.file = file
        self.seed = seed

    def passing(self, documents: Iterable[Document]) -> Iterator[Document]:
        """Yield all documents, and write the chosen ones at the end."""
        kept: dict[int, Document] = {}
        lowest: list[int] = []
        for document in documents:
            yield document
            place = self.place(document)
            if not document.contents.strip() or place in kept:
                continue
            heapq.heappush(lowest, -place)
            kept[place] = clipped(document)
            if len(kept) > CORPUS_CAP:
                del kept[-heapq.heappop(lowest)]
        self.write([kept[place] for place in sorted(kept)])

    def place(self, document: Document) -> int:
        """Give a document's place in the order of the cache."""
        text = np.asarray([hash_of(tokenizable(document.contents))], dtype=np.uint64)
        return int(scattered(text, self.seed)[0])

    def write(self, documents: list[Document]) -> None:
        """Write the file, whole or not at all."""
        with storing(self.file), replacing(self.file, private=True) as temporary:
            remember_text(self.file, "documents held out for the gate")
            temporary.write_bytes(b"".join(orjson.dumps(list(document)) + b"\n" for document in documents))

    def read(self) -> list[Document]:
        """Read the chosen documents."""
        return [Document(*orjson.loads(line)) for line in self.file.read_bytes().splitlines()]
