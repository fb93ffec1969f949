"""Users who have the shipped roles and nothing else, on a secured node, and every way of asking."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, get_args

import pytest
from fastapi.testclient import TestClient

from hybridr import Search, SearchSettings, connect
from hybridr.cluster.connection import Cluster
from hybridr.cluster.destinations import default_alias
from hybridr.cluster.embedded.state import NodeState
from hybridr.cluster.routing import shards_for
from hybridr.encoders.contract import Encoder
from hybridr.evaluation.evaluation import Evaluation, evaluate
from hybridr.files.local import asset_path, load_asset
from hybridr.indexing.terms import storage
from hybridr.records import Document, Qrels, Query, Run
from hybridr.relevance.settings import TuneSettings
from hybridr.relevance.tuning import tune
from hybridr.search.settings import RecallMode
from hybridr.serving.application import create_app
from hybridr.serving.settings import ServeSettings
from hybridr_cli import main
from support.corpus import create, put

SECURITY = "/_plugins/_security/api"
PASSWORD = "FJcHGk7dL3mC9hKf2DgJ4cHkL-aA1"
HASH = "$2y$04$fewerCostsOfTestsKeepu/TlXdo9TArdREeuhjzSoUnu37ig.bxe"
"""Of all users here. As dear as the plugin makes it itself, each log-in takes a second."""
OWN = "own"
Connecting = Callable[[str | dict[str, Any]], Cluster]


def role_of(verb: str, index: str) -> dict[str, Any]:
    """The shipped role of a verb, for an index."""
    text = json.dumps(load_asset("roles", f"{verb}.json"))
    return dict(json.loads(text.replace("INDEX", index)))


def make_users(admin: Cluster, roles: dict[str, dict[str, Any]]) -> None:
    """Make a user of each name who has the role beside it, and nothing else.

    All at once: after each such request everybody has to log in anew.
    """
    kinds = {
        "roles": roles,
        "internalusers": {name: {"hash": HASH} for name in roles},
        "rolesmapping": {name: {"users": [name]} for name in roles},
    }
    for kind, entries in kinds.items():
        changes = [{"op": "add", "path": f"/{name}", "value": value} for name, value in entries.items()]
        admin.request("PATCH", f"{SECURITY}/{kind}", changes)


def change_role(admin: Cluster, name: str, role: dict[str, Any]) -> None:
    """Give a user of such a name another role."""
    admin.request("PUT", f"{SECURITY}/roles/{name}", role)


def user_of(node: NodeState, admin: Cluster, index: str) -> Connecting:
    """Give what connects as a user who has one role, and is told nothing by this machine's files.

    It takes a shipped role by its verb, or any other.
    """
    verbs = {file.stem for file in asset_path("roles").glob("*.json")}
    roles = {verb: role_of(verb, index) for verb in verbs} | {OWN: {"cluster_permissions": []}}
    make_users(admin, {f"{index}-{verb}": role for verb, role in roles.items()})

    def connected(role: str | dict[str, Any]) -> Cluster:
        name = f"{index}-{role if isinstance(role, str) else OWN}"
        if not isinstance(role, str):
            change_role(admin, name, role)
        assert node.ca_certs
        return connect(node.url, user=name, password=PASSWORD, ca_certs=Path(node.ca_certs))

    return connected


@contextmanager
def fresh_machine(folder: Path) -> Iterator[None]:
    """Go on without a copy of anything: no table of terms, no calibration, no settings."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HYBRIDR_HOME", str(folder / f"home-{len(os.listdir(folder))}"))
        Path(os.environ["HYBRIDR_HOME"]).mkdir()
        patch.setattr(storage, "_open", {})
        patch.setattr(storage, "_missing", {})
        yield


def fill_unevenly(cluster: Cluster, index: str, documents: list[Document], shares: tuple[int, ...]) -> None:
    """Make an index with a shard for each share, and put at most so many documents into each."""
    text = {"type": "text", "analyzer": "english"}
    settings = {"number_of_shards": len(shares), "number_of_replicas": 0}
    create(cluster, index, {"title": text, "text": text}, settings)
    info, room = cluster.index_info(index), list(shares)
    taken = {}
    for one in documents:
        shard = shards_for(one.doc_id, info)[0]
        if room[shard]:
            room[shard] -= 1
            taken[one.doc_id] = {"title": one.title, "text": one.text}
    put(cluster, index, taken)


def tried(
    cluster: Cluster, index: str, encoder: Encoder, queries: list[Query], qrels: Qrels
) -> dict[str, Any]:
    """Say what `tune` makes of the judged queries."""
    settings = TuneSettings(dry_run=True)
    return tune(cluster, index, (queries, qrels), encoder=encoder, settings=settings).to_json()


def answers(
    cluster: Cluster, index: str, encoder: Encoder, queries: list[Query], qrels: Qrels
) -> dict[str, Any]:
    """Ask in every way, and give all that was said, by the way."""
    ways = {fusion: SearchSettings(fusion=fusion) for fusion in ("absolute", "pipeline")}
    ways |= {"phrases": SearchSettings(signals=("phrases",))}
    searches = {name: Search(cluster, index, encoder, settings=way) for name, way in ways.items()}
    searches |= {mode: Search(cluster, index, encoder, mode) for mode in ("hybrid", "dense", "lexical")}
    searches["rm3"] = Search(cluster, index, mode="lexical", feedback="rm3")
    found: dict[str, Any] = {name: search.run(queries, 20) for name, search in searches.items()}
    parts = [hit.parts for one in queries[:2] for hit in searches["absolute"](one.text, 5, explain=True)]
    for signal in ("soft_terms", "memory"):
        assert any(part and part[signal] for part in parts), f"no {signal} is tried"
    client = TestClient(create_app(encoder, ServeSettings(index=index, rank_timeout_s=60), cluster=cluster))
    for mode in ("hybrid", "dense", "lexical"):
        asked = [client.post("/search", json={"query": one.text, "k": 10, "mode": mode}) for one in queries]
        found[f"/search {mode}"] = [answer.json()["hits"] for answer in asked]
    for recall in get_args(RecallMode):
        search = Search(cluster, index, encoder, settings=SearchSettings(recall=recall))
        found[recall] = search.run(queries[:6], 10)
        found[f"transparent {recall}"] = unchanged(client, cluster, index, queries[:6], recall)
        assert not differences(found[f"transparent {recall}"], found[recall])
    measured: Evaluation = evaluate(dict(searches), queries, qrels, resamples=10)
    return found | {"parts": parts, "evaluate": measured.systems}


def unchanged(client: TestClient, cluster: Cluster, index: str, queries: list[Query], recall: str) -> Run:
    """Ask the transparent way as an unchanged client, without ml-commons: what the server says is sent."""
    found: Run = {}
    for one in queries:
        asked = {"query": {"multi_match": {"query": one.text, "fields": ["title", "text"]}}}
        body = client.post("/v1/rank", params={"recall": recall}, json=asked).json()["body"]
        assert "cosineSimilarity" in body
        hits = cluster.search(default_alias(index), json.loads(body))["hits"]["hits"]
        found[one.query_id] = {hit["_id"]: hit["_score"] for hit in hits}
    return found


def printed(
    cluster: Cluster, index: str, encoder: Path, queries: list[Query], capsys: pytest.CaptureFixture[str]
) -> list[Any]:
    """Ask by `hybridr search`, by the address and the password of a connection."""
    settings = cluster.settings
    found = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HYBRIDR_USER", str(settings.user))
        if settings.password:
            patch.setenv("HYBRIDR_PASSWORD", settings.password.get_secret_value())
        else:
            patch.setenv("HYBRIDR_PASSWORD_FILE", str(settings.password_file))
        on = ["--url", cluster.url, "--ca-certs", str(settings.ca_certs), "--encoder", str(encoder)]
        for one in queries:
            assert main(["search", index, one.text, *on, "--json"]) == 0
            found.append(json.loads(capsys.readouterr().out)["hits"])
    return found


def differences(left: Any, right: Any, where: str = "", near: float = 1e-6) -> list[str]:
    """List where two answers differ: numbers by more than a millionth, all else at all."""
    if isinstance(left, dict) and isinstance(right, dict) and left.keys() == right.keys():
        pairs = [(name, left[name], right[name]) for name in left]
    elif isinstance(left, list | tuple) and isinstance(right, list | tuple) and len(left) == len(right):
        pairs = [(at, *pair) for at, pair in enumerate(zip(left, right, strict=True))]
    else:
        alike = left == right or (isinstance(left, float) and left == pytest.approx(right, abs=near))
        return [] if alike else [f"{where}: {left!r} is not {right!r}"[:300]]
    return [line for at, *pair in pairs for line in differences(*pair, f"{where}/{at}", near)]
