"""What people compare and judge on the page: rankings of named systems side by side, and pools of documents
without system names.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from hashlib import blake2b
from itertools import chain, zip_longest
from threading import RLock
from typing import Any

from ...cluster.destinations import destinations
from ...cluster.reading import hits_by_id, sources_by_id, text_of
from ...encoders.contract import Encoder
from ...errors import NotFound, SettingsError
from ...files.formats import fits_column
from ...search.checks import HYBRID
from ...search.encoders import encoder_for
from ...search.search import Search
from ...search.systems import system
from ..snapshots import IndexSnapshot, Searches

COMPARED = ("bm25", "hybrid-stock", "hybrid-plain", "hybrid", "dense")
POOLED = ("bm25", "hybrid", "hybrid-stock", "dense")
POOL = 10  # documents of a query that are judged
SHOWN = 2_000  # characters of a field
BESIDE = "hybrid@"


class SideBySide:
    """The searches that can be compared: systems of the served index, and other indices with vectors of its
    source.

    Each is opened on first use, and again after the server reopened its index.
    """

    def __init__(self, searches: Searches) -> None:
        self.searches, self.cluster = searches, searches.cluster
        self._of: IndexSnapshot = searches.now
        self._opened: dict[str, Search] = {}
        self._lock = RLock()

    @property
    def hybrid(self) -> Search:
        """Return the search that the server answers with."""
        return self.searches.now.search(HYBRID)

    def names(self) -> list[str]:
        """Return the names of systems to compare; `hybrid@INDEX` is another index with vectors of the
        source.
        """
        own, template = self.hybrid.info, ["template"] if self.hybrid.context.template else []
        others = destinations(self.cluster, self.cluster.index_info(own.record.source or own.name))
        ready = [
            index.name for index in others if index.record.state == "complete" and index.name != own.name
        ]
        return [*COMPARED, *template, *(f"{BESIDE}{name}" for name in ready)]

    @property
    def encoder(self) -> Encoder:
        """Return the encoder of the index."""
        encoder = self.hybrid.encoder
        assert encoder is not None
        return encoder

    def search(self, name: str) -> Search:
        """Return the search of a system. Raises SettingsError, and NotFound for an unknown index."""
        with self._lock:
            if self._of is not self.searches.now:
                self._of = self.searches.now
                self._opened.clear()
            if name not in self._opened:
                self._opened[name] = self._open(name)
            return self._opened[name]

    def lists(self, query: str, names: Sequence[str], k: int) -> dict[str, dict[str, Any]]:
        """Return the best `k` hits of each system, with the parts of their scores, and the nearest hit of
        systems without hits.
        """
        hits = {name: self.search(name)(query, k, explain=True) for name in names}
        return {
            "lists": {name: [hit.to_json() for hit in hits] for name, hits in hits.items()},
            "nearest": {name: hits.nearest.to_json() for name, hits in hits.items() if hits.nearest},
        }

    def pool(self, query: str, judge: str) -> list[dict[str, Any]]:
        """Return the documents of a query to judge, in an order that depends only on query and judge.

        They are the best of several systems in turns, whatever their confidence, without saying which system
        found them. Documents whose id cannot stand in a qrels file are left out.
        """
        lists = [
            [hit.doc_id for hit in self.search(name).requiring(0)(query, POOL) if fits_column(hit.doc_id)]
            for name in POOLED
        ]
        chosen = blind_order(interleaved(lists, POOL), f"{judge} {query}")
        record = self.hybrid.info.record
        sources = sources_by_id(self.cluster, self.hybrid.info.name, chosen)
        texts = {
            doc_id: [[name, text_of(source, [name])[:SHOWN]] for name in record.fields]
            for doc_id, source in sources.items()
        }
        return [{"doc_id": name, "fields": texts[name]} for name in chosen if name in texts]

    def require_shown(self, doc_ids: Collection[str]) -> None:
        """Raise NotFound for a document that the server's index name does not show."""
        hits = hits_by_id(self.cluster, self.hybrid.info, list(doc_ids), {"_source": False})
        shown_ids = {hit["_id"] for hit in hits}
        if unknown := sorted(set(doc_ids) - shown_ids):
            raise NotFound(f"the index has no document '{unknown[0][:100]}'", hint="grade what was shown")

    def _open(self, name: str) -> Search:
        """Return the search of a system by its name. Raises NotFound, SettingsError."""
        if name == HYBRID:
            return self.hybrid
        is_adapted = name.startswith(BESIDE)
        if name not in (names := self.names()):
            kind = NotFound if is_adapted else SettingsError
            raise kind(f"nothing to compare is called '{name[:100]}'", hint=", ".join(names))
        own, settings = self.hybrid, self.searches.settings
        if is_adapted:
            index = self.cluster.index_info(name.removeprefix(BESIDE))
            info = replace(index, scope=own.info.scope)  # what the server's name shows, and no more
            return Search(self.cluster, info, encoder_for(info, None), settings=settings)
        condition = system(name)
        settings = condition.chosen(settings, 0)
        return Search(
            self.cluster, own.info, own.encoder, condition.mode, condition.feedback, settings=settings
        )


def interleaved(lists: Sequence[Sequence[str]], count: int) -> list[str]:
    """Return the best documents of each list in turns, up to `count` different ones."""
    turns = chain.from_iterable(zip_longest(*lists))
    return list(dict.fromkeys(turn for turn in turns if turn is not None))[:count]


def blind_order(doc_ids: Sequence[str], seed: str) -> list[str]:
    """Return documents in a pseudo-random order that depends only on the seed."""
    return sorted(doc_ids, key=lambda letter: blake2b(f"{seed} {letter}".encode(), digest_size=8).digest())
