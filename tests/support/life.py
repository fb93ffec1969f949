"""The model of an index's life: what each side wrote, and which states of a document may be seen.

Plain dictionaries stand beside the real indices. `there` is what the source holds, `view` what the
application's alias shows. What the source changed since the last round waits in `late`, what was written by
name into an index that was left in `left_writes`, and in `fresh` what a round must bring in of that. Where
two sides changed one document, the state of either may be seen.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest

from hybridr import ReindexSettings
from hybridr.cluster.connection import Cluster, path_of
from hybridr.cluster.destinations import destinations
from hybridr.errors import ClusterError
from hybridr.indexing.reindexing import reindex, sync
from hybridr.indexing.rollback import rollback
from hybridr.indexing.verification import verify
from hybridr.status.standing import remove, status
from support.commands import Killed
from support.corpus import bulk, drop_indices, sources
from support.hashing import HashingEncoder

State = dict[str, Any] | None
IDS = [f"d{number}" for number in range(6)]
ENCODERS = (HashingEncoder(4), HashingEncoder(4, "other"))
MADE: dict[str, Any] = {"settings": {"number_of_replicas": 0, "number_of_shards": 2}}
SEEN_BY_NAME = ("PUT", "POST", "DELETE")


@contextmanager
def killed_after(writes: int | None) -> Iterator[None]:
    """Let a command end for good after that many requests that change something."""
    original, left = Cluster.request, writes

    def request(self: Cluster, method: str, path: str, *rest: Any, **more: Any) -> Any:
        nonlocal left
        if left is not None and method in SEEN_BY_NAME and not path.endswith(("_search", "_mget", "_count")):
            if left == 0:
                raise Killed
            left -= 1
        return original(self, method, path, *rest, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Cluster, "request", request)
        yield


class Life:
    """One index, all that is made of it, and the model of both."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.source = f"life-{uuid.uuid4().hex[:8]}"
        self.alias = f"{self.source}-app"
        self.number = 0
        self.refusal: ClusterError | None = None
        properties = {"text": {"type": "text"}}
        mappings = {"mappings": {"properties": properties}, "aliases": {self.alias: {}}}
        cluster.request("PUT", path_of(self.source), MADE | mappings)
        self.there: dict[str, State] = {}
        self.view: dict[str, State] = {}
        self.late: dict[str, list[State]] = {}
        self.left_writes: dict[str, list[State]] = {}
        self.fresh: dict[str, State] = {}
        self.by_clients: set[str] = set()
        self.by_source: set[str] = set()
        self.was_killed = False
        for doc_id in IDS[:4]:
            self.write_source(doc_id)

    def close(self) -> None:
        """Delete all that was made."""
        drop_indices(self.cluster, f"{self.source}*,.hybridr-*-{self.source}*")

    @property
    def current(self) -> str:
        """Name the index that the application's alias stands for."""
        return self.cluster.index_info(self.alias).name

    @property
    def left(self) -> list[str]:
        """Name the indices with vectors that no alias leads to."""
        made = destinations(self.cluster, self.cluster.index_info(self.source))
        return [info.name for info in made if info.name != self.current]

    def content(self) -> dict[str, Any]:
        """Make a document that there was not yet; every third has a field of its own."""
        self.number += 1
        found: dict[str, Any] = {"text": f"word{self.number % 7} number{self.number}"}
        return found | ({f"more{self.number % 2}": "x"} if self.number % 3 == 0 else {})

    def send(self, index: str, doc_id: str, body: State) -> None:
        """Write or delete a document."""
        action = "index" if body else "delete"
        lines: list[dict[str, Any]] = [{action: {"_id": doc_id}}, *([body] if body else [])]
        bulk(self.cluster, index, lines)

    def write_source(self, doc_id: str, *, deletes: bool = False) -> None:
        """Let a writer of the source insert, change or delete a document."""
        body = None if deletes else self.content()
        if body is None and sum(state is not None for state in self.there.values()) < 2:
            return  # an empty index is refused
        self.send(self.source, doc_id, body)
        self.there[doc_id] = body
        if self.current == self.source:
            self.view[doc_id] = body
        else:
            self.late.setdefault(doc_id, []).append(body)
            self.fresh.pop(doc_id, None)
            self.by_source.add(doc_id)

    def write_alias(self, doc_id: str, *, deletes: bool = False, by_name: bool = False) -> None:
        """Let the application write by its alias, or by the name of the index behind it."""
        if (current := self.current) == self.source:
            return self.write_source(doc_id, deletes=deletes)
        body = None if deletes else self.content()
        self.send(current if by_name else self.alias, doc_id, body)
        self.view[doc_id] = body
        self.by_clients.add(doc_id)
        self.fresh.pop(doc_id, None)
        return None

    def write_left(self, doc_id: str, place: int, *, deletes: bool = False) -> None:
        """Let a client write by name into an index that was left."""
        if not (left := self.left):
            return
        index = left[place % len(left)]
        body = None if deletes else self.content()
        if body is None and doc_id not in self.shown(index):
            return
        self.send(index, doc_id, body)
        others = self.by_source | self.by_clients | self.left_writes.keys()
        if body is not None and self.current != self.source and doc_id not in others:
            self.fresh[doc_id] = body
        else:
            self.fresh.pop(doc_id, None)
        self.left_writes.setdefault(doc_id, []).append(body)

    def shown(self, index: str) -> dict[str, State]:
        """Read an index."""
        self.cluster.refresh(index)
        return dict(sources(self.cluster, index))

    def allowed(self, doc_id: str) -> list[State]:
        """List the states of a document that the alias may show when everything late is in."""
        if doc_id in self.fresh:
            return [self.fresh[doc_id]]
        late, by_name = self.late.get(doc_id, []), self.left_writes.get(doc_id, [])
        if late and not by_name and doc_id not in self.by_clients:
            return late[-1:]
        return [self.view.get(doc_id), *late, *by_name]

    def adopt(self, *, settled: bool) -> None:
        """Compare what the alias shows with what it may show, and go on from there."""
        found = self.shown(self.alias)
        assert found.keys() <= set(IDS)
        for doc_id in IDS:
            now, before = found.get(doc_id), self.view.get(doc_id)
            may = self.allowed(doc_id) if settled else [before]
            assert now in may, f"{doc_id} shows {now}, may show {may}"
            self.view[doc_id] = now
        if settled:
            self.late.clear()
            self.fresh.clear()
            self.was_killed = False

    def lag_behind(self, copied: dict[str, State] | None = None) -> None:
        """Begin anew behind an alias that went back, or after a kill: anything that is there may be late.

        Not what was `copied` back: the source and the older index have it, and nobody changed it since.
        """
        self.there = self.shown(self.source)
        self.view = self.shown(self.alias)
        self.late.clear()
        self.fresh.clear()
        if self.current != self.source:
            self.by_clients |= set(IDS)
            states = {doc_id: (self.there.get(doc_id), self.view.get(doc_id)) for doc_id in IDS}
            late = [
                doc_id
                for doc_id, both in states.items()
                if copied is None or doc_id not in copied or both != (copied[doc_id], copied[doc_id])
            ]
            self.late = {doc_id: [self.there.get(doc_id)] for doc_id in late}

    def require_kept(self, before: dict[str, State]) -> None:
        """See that each document that was shown is somewhere, unless the source changed it."""
        names = {self.source, *(info.name for info in self.cluster.indices(f"{self.source}-hybridr-*"))}
        everywhere = [self.shown(name) for name in names]
        for doc_id, state in before.items():
            if state is not None and doc_id not in self.late and doc_id not in self.left_writes:
                assert any(one.get(doc_id) == state for one in everywhere), f"{doc_id} is lost: {state}"

    def run(self, command: Callable[[], Any], writes: int | None) -> bool | None:
        """Run a command; True when it ended, False when it refused, None when it was killed."""
        before = dict(self.view)
        try:
            with killed_after(writes):
                command()
            return True
        except Killed:
            self.require_kept(before)
            return None
        except ClusterError as refusal:
            self.refusal = refusal
            self.require_kept(before)
            return False

    def encoder(self) -> HashingEncoder:
        """Return the encoder of the index behind the alias."""
        fingerprint = self.cluster.index_info(self.alias).record.encoder
        return next(one for one in ENCODERS if one.fingerprint == fingerprint)

    def reindex(self, variant: int, writes: int | None = None) -> None:
        """Reindex with one encoder or the other, and other fields."""
        fields = ("text", "more0") if variant >= 2 and self.has_more() else ("text",)
        settings = ReindexSettings(alias=self.alias, fields=fields, term_table=False)
        work = partial(reindex, self.cluster, self.source, ENCODERS[variant % 2], settings)
        if (ended := self.run(work, writes)) is None:
            self.run(work, None)
            ended = True
        assert ended, self.refusal
        self.adopt(settled=True)

    def has_more(self) -> bool:
        return "more0" in self.cluster.index_info(self.source).mappings["properties"]

    def sync(self, writes: int | None = None) -> None:
        """Sync, and see that status and verification tell what is there."""
        if self.current == self.source:
            return
        work = partial(sync, self.cluster, self.alias, self.encoder())
        if self.run(work, writes) is None:
            self.run(work, None)
        self.adopt(settled=True)
        self.check()

    def check(self) -> None:
        """Compare `status` and `verify` with what is there, right after a round."""
        if not (current := self.current) or current == self.source:
            return
        [held] = [one for one in status(self.cluster, self.source).holdings if one.index == current]
        there = self.shown(self.source)
        changed = sum(state is not None and state != there.get(doc_id) for doc_id, state in self.view.items())
        deleted = sum(self.view.get(doc_id) is None for doc_id in there)
        assert held.writes["changed"] + held.writes["conflicts"] == changed, (held.writes, there, self.view)
        assert held.writes["deleted"] == deleted, (held.writes, there, self.view)
        assert (held.lag.inserts, held.lag.updates, held.lag.deletes) == (0, 0, 0)
        assert held.current == held.documents == sum(one is not None for one in self.view.values())
        problems = verify(self.cluster, self.alias, self.encoder()).problems()
        assert problems == [], (problems, there, self.view)

    def rollback(self, how: str, writes: int | None = None) -> None:
        """Go one step back; `how` is "", "copy_back" or "discard"."""
        if self.current == self.source:
            return
        before, there = dict(self.view), dict(self.there)
        flags = {how: True} if how else {}
        ended = self.run(partial(rollback, self.cluster, self.alias, **flags), writes)
        if ended and how != "discard":
            now, shown = self.shown(self.source), self.shown(self.alias)
            for doc_id in IDS:
                free = doc_id in self.late or doc_id in self.left_writes
                state = before.get(doc_id)
                # An older index may be behind the source until the next round.
                seen = [shown.get(doc_id), now.get(doc_id)]
                assert free or state in seen, f"{doc_id} was {state}, is {seen}"
                if not how:
                    assert now.get(doc_id) == there.get(doc_id)
        self.was_killed = self.was_killed or ended is None
        if ended is not False:
            changed = {doc_id for doc_id in IDS if before.get(doc_id) != there.get(doc_id)}
            whole = ended and how == "copy_back" and not self.was_killed
            self.lag_behind({doc_id: before.get(doc_id) for doc_id in changed} if whole else None)

    def remove(self, how: str, writes: int | None = None) -> None:
        """Remove all that was made; `how` is "", "copy_back" or "discard"."""
        if not self.cluster.indices(f"{self.source}-hybridr-*"):
            return
        before = dict(self.view)
        flags = {how: True} if how else {}
        work = partial(remove, self.cluster, self.source, **flags)
        if (ended := self.run(work, writes)) is None:
            self.lag_behind()
            return
        if not ended:
            return
        now = self.shown(self.source)
        for doc_id in IDS if how != "discard" else ():
            free = doc_id in self.late or doc_id in self.left_writes
            assert free or now.get(doc_id) == before.get(doc_id), f"{doc_id} was {before.get(doc_id)}"
            if not how:
                by_name = [one for one in self.left_writes.get(doc_id, []) if one is not None]
                assert not by_name or now.get(doc_id) is not None, f"{doc_id} of an older index is lost"
        assert self.current == self.source
        self.by_clients.clear()
        self.by_source.clear()
        self.left_writes.clear()
        self.lag_behind()
