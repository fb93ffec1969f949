"""The board of leases: a small hidden index that says who works at which share of a job.

A share is open, held or done; whoever changes that writes over exactly the state that was seen. What a share
is, the job says: here it is JSON.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ..cluster.connection import Cluster, as_json, path_of
from ..cluster.failures import told, understood
from ..cluster.reading import at_random
from ..cluster.side_indices import drop_index, hidden_body
from ..errors import AccessDenied, ClusterError, NotFound

RUN = "run"
MOST_HELD = 1000
WRITTEN_TOGETHER = 500
BODY_OF_LEASES = hidden_body(
    {"state": {"type": "keyword"}, "done": {"type": "long"}, "number": {"type": "integer"}}
)
ALIAS = ".hybridr-holders-"
COUNTED: dict[str, Any] = {
    "all": {
        "global": {},
        "aggs": {"states": {"terms": {"field": "state"}}, "done": {"sum": {"field": "done"}}},
    }
}


class Pulse(NamedTuple):
    """Every how many seconds a holder shows that it lives, and after how many without it counts as lost."""

    beat_s: float = 12.5
    expiry_s: float = 30.0


PULSE = Pulse()


class Lease(NamedTuple):
    """One document of the index as it was seen: a share's, or that of the run."""

    name: str
    state: Mapping[str, Any]
    seq_no: int
    primary_term: int

    @property
    def number(self) -> int:
        """Which share it is."""
        return int(self.name)


class Tally(NamedTuple):
    """How far all shares are: how many there are, are open, are held; and the documents that are done."""

    shares: int
    open: int
    held: int
    documents: int

    @property
    def done(self) -> bool:
        """Tell whether no share is left."""
        return not (self.open or self.held)


def lease_index(destination: str) -> str:
    """Name the index of the leases for filling an index."""
    return f".hybridr-leases-{destination}"


class Board:
    """The index of leases: what is read from it and written into it."""

    def __init__(self, cluster: Cluster, destination: str, pulse: Pulse | None = None) -> None:
        self.cluster, self.destination, self.index = cluster, destination, lease_index(destination)
        self.alias = ALIAS + destination  # by it alone is written: no write makes a deleted index anew
        self.pulse = pulse or PULSE

    def quick(self) -> Board:
        """Give the same for requests that are of no use when they come late."""
        cluster = self.cluster.patient(0.0).hurried(self.pulse.beat_s)
        return Board(cluster, self.destination, self.pulse)

    def read(self, names: Sequence[str]) -> dict[str, Lease]:
        """Read leases as they are at this moment. Raises NotFound when the index is gone."""
        docs = {"docs": [{"_id": name} for name in names]}
        answer = self.cluster.request("POST", path_of(self.index, "_mget"), docs)
        with understood(self.cluster.url, "_mget"):
            for one in answer["docs"]:
                if one.get("error", {}).get("type") == "index_not_found_exception":
                    raise NotFound(f"no index '{self.index}'", status=404)
            found = [one for one in answer["docs"] if one.get("found")]
            return {one["_id"]: lease_of(one) for one in found}

    def find(self, state: str, size: int) -> tuple[list[Lease], Tally]:
        """Give some leases of a state, drawn at random, and how far all are. Raises NotFound."""
        self.cluster.refresh(self.index)
        drawn = at_random({"term": {"state": state}}, random.getrandbits(31))
        body = {"size": size, "query": drawn, "seq_no_primary_term": True, "aggs": COUNTED}
        answer = self.cluster.search(self.index, body, every_shard=True)
        with understood(self.cluster.url, "_search"):
            counts = answer["aggregations"]["all"]
            states = {one["key"]: int(one["doc_count"]) for one in counts["states"]["buckets"]}
            tally = Tally(
                sum(states.values()),
                states.get("open", 0),
                states.get("held", 0),
                int(counts["done"]["value"]),
            )
            return [lease_of(hit) for hit in answer["hits"]["hits"]], tally

    def write(self, *changes: tuple[Lease, Mapping[str, Any]]) -> list[Lease | None]:
        """Write states over exactly those that were seen; None for what somebody else changed meanwhile.

        A request may be sent again whose answer was lost: what stands there as it was to be written counts.
        """
        lines = b"".join(
            as_json(action_line(lease)) + b"\n" + as_json(state) + b"\n" for lease, state in changes
        )
        answer = self.cluster.request("POST", path_of(self.alias, "_bulk"), lines, {"require_alias": "true"})
        found: list[Lease | None] = []
        with understood(self.cluster.url, "_bulk"):
            for (lease, state), item in zip(changes, answer["items"], strict=True):
                (one,) = item.values()
                found.append(self._outcome(lease, state, one))
        return found

    def _outcome(self, lease: Lease, state: Mapping[str, Any], item: Mapping[str, Any]) -> Lease | None:
        if item["status"] < 300:
            return Lease(lease.name, state, item["_seq_no"], item["_primary_term"])
        if item["status"] == 404:
            raise NotFound(f"no index '{self.index}'", status=404)
        if item["status"] != 409:
            reason = told(item.get("error", {}).get("reason"))
            raise ClusterError(f"'{self.index}' takes no lease: {reason}", status=item["status"])
        there = self.read([lease.name]).get(lease.name)
        return there if there is not None and there.state == state else None


def lease_of(found: Mapping[str, Any]) -> Lease:
    """Read one document of an answer."""
    return Lease(found["_id"], found["_source"], found["_seq_no"], found["_primary_term"])


def action_line(lease: Lease) -> dict[str, Any]:
    """Give the action line that writes over a lease, or makes one (`_seq_no` -1)."""
    if lease.seq_no < 0:
        return {"create": {"_id": lease.name}}
    return {"index": {"_id": lease.name, "if_seq_no": lease.seq_no, "if_primary_term": lease.primary_term}}


def opened(number: int, share: Mapping[str, Any], *, again: bool = False) -> Mapping[str, Any]:
    """Give the state of an open lease; `again` when somebody began its share."""
    return {"state": "open", "number": number, "share": share, "again": again, "done": 0}


def leased_shares(cluster: Cluster, destination: str) -> Tally | None:
    """Say how far the shares of a job are; None when there is none, or it may not be seen."""
    board = Board(cluster, destination)
    try:
        return board.find("held", 0)[1] if cluster.exists(board.index) else None
    except (AccessDenied, NotFound):
        return None


def drop_leases(cluster: Cluster, destination: str) -> bool:
    """Delete the leases for filling an index; False where there are none, or it is forbidden."""
    try:
        return drop_index(cluster, lease_index(destination))
    except AccessDenied:
        return False
