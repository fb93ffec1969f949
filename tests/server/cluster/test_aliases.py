"""An alias of ours that was rolled over: each hint brings it back, with what clients wrote meanwhile."""

from __future__ import annotations

import json
import re

import pytest

from hybridr import Search
from hybridr.cluster.connection import Cluster, path_of
from hybridr.doctor.health_checks import vector_checks
from hybridr.errors import ClusterError, HybridrError
from hybridr.indexing.reindexing import plan, reindex, sync
from hybridr.indexing.rollback import rollback
from hybridr.indexing.settings import ReindexSettings
from hybridr.indexing.verification import verify
from hybridr.search.rules.rules import fetch_rules
from hybridr.status.standing import remove, status
from support.corpus import put_documents, reindexed, sources, text_number
from support.hashing import HashingEncoder

ENCODER = HashingEncoder()
VERBS = {
    "sync": lambda cluster, name: sync(cluster, name, ENCODER),
    "reindex": lambda cluster, name: plan(cluster, name, ENCODER, ReindexSettings()),
    "verify": lambda cluster, name: verify(cluster, name, ENCODER),
    "rollback": lambda cluster, name: rollback(cluster, name, dry_run=True),
    "remove": lambda cluster, name: refused_removal(cluster, name),
    "search": lambda cluster, name: Search(cluster, name, ENCODER),
    "rules": fetch_rules,
}
"""What reads vectors behind an alias; no verb changes anything here."""


def hints(cluster: Cluster, name: str) -> dict[str, str]:
    """What each verb that refuses names as the way out."""
    refused = {}
    for verb, call in VERBS.items():
        try:
            call(cluster, name)
        except HybridrError as error:
            refused[verb] = str(error.hint)
    return refused


def refused_removal(cluster: Cluster, name: str) -> None:
    """Raise what a removal would be refused for."""
    if refusal := remove(cluster, name, dry_run=True)["refusal"]:
        raise ClusterError(refusal["message"], hint=refusal["hint"])


def rollovers(cluster: Cluster, index: str) -> int:
    """Count the rollovers that `doctor` tells of an index."""
    (check,) = [check for check in vector_checks(cluster) if check.name == f"vectors {index}"]
    assert ("POST /_aliases" in check.fix) == ("rolled over" in check.found)
    return check.found.count("rolled over")


def follow(cluster: Cluster, hint: str) -> None:
    """Send the requests of a hint, in order."""
    for match in re.finditer(r"POST (\S+) (?=\{)", hint):
        body, _ = json.JSONDecoder().raw_decode(hint[match.end() :])
        path, _, refresh = match[1].partition("?refresh=")
        cluster.request("POST", path, body, {"refresh": refresh} if refresh else None)


@pytest.mark.parametrize("write_index", [False, True], ids=["moved", "on-both"])
def test_a_rollover_is_undone_by_the_requests_of_a_hint(cluster, index_name, write_index) -> None:
    """The hint was `hybridr reindex`, which refused; its own hint left behind what clients wrote since."""
    name = index_name
    first, alias = reindexed(cluster, name, 9, ENCODER).destination, f"{name}-hybridr"
    if write_index:  # as a lifecycle policy wants it: the alias stays on both indices
        added = {"index": first, "alias": alias, "is_write_index": True}
        cluster.request("POST", "/_aliases", {"actions": [{"add": added}]})
    for number in (2, 3):
        cluster.request("POST", path_of(alias, "_rollover"))
        put_documents(cluster, alias, [3, 9 + number], suffix=f" by a client {number}")
    newer = [f"{first[:-1]}{number:06}" for number in (2, 3)]
    assert rollovers(cluster, first) == 1
    refused = hints(cluster, name)
    changing = {"sync", "reindex", "rollback", "remove"}
    assert refused.keys() == (changing if write_index else VERBS.keys())
    refused["status"] = status(cluster, name).rollover
    if not write_index:
        by_alias = hints(cluster, alias)
        assert by_alias.keys() == VERBS.keys()
        refused |= {f"{verb} by alias": hint for verb, hint in by_alias.items()}
    assert all(
        f"what clients wrote since is only in {', '.join(newer)};" in hint for hint in refused.values()
    )
    assert all(f"hybridr sync {name}" in hint for hint in refused.values())
    follow(cluster, refused["reindex"])
    assert sync(cluster, name, ENCODER).renewed == 3
    assert [info.name for info in cluster.indices(alias)] == [first]
    assert (rollovers(cluster, first), status(cluster, name).rollover) == (0, "")
    put_documents(cluster, alias, [20])
    assert sync(cluster, alias, ENCODER).renewed == 1
    assert hints(cluster, name).keys() == hints(cluster, alias).keys() == {"remove"}  # for clients' writes
    assert verify(cluster, name, ENCODER).ok
    documents = sources(cluster, first)
    assert (len(documents), documents["d3"]["text"]) == (12, f"{text_number(3)} by a client 3")
    assert Search(cluster, name, ENCODER)(text_number(11), 1)[0].doc_id == "d11"
    later = reindex(cluster, name, HashingEncoder(salt="other"))
    assert (later.switched, sources(cluster, alias)) == (True, documents)
