"""The whole line on OpenSearch 2.19.1 with TLS, a password, and a user with few rights."""

from __future__ import annotations

import json
import secrets
from pathlib import Path

import numpy as np
import pytest

import hybridr_cli
from hybridr import ReindexSettings, Search, SearchSettings, connect
from hybridr.cluster.connection import Cluster, path_of
from hybridr.cluster.embedded.state import NodeState
from hybridr.cluster.token_field import held_bytes
from hybridr.encoders.graph_folders import MultiVectorEncoder, PairScorer
from hybridr.errors import AccessDenied, SettingsError, Unreachable
from hybridr.indexing.reindexing import reindex
from hybridr.indexing.rollback import rollback
from hybridr.indexing.terms import storage
from hybridr.indexing.verification import verify
from hybridr.records import Query
from hybridr.search.fusions.pipeline import fuse
from support.bits import asked_bits, late_interaction
from support.corpus import fill_index, fill_uneven, put_documents, sources, text_number
from support.hashing import HashingEncoder
from support.multi_vectors import exported as colbert
from support.pairs import exported as cross
from support.rights import differences, fresh_machine, user_of
from support.sparse import exported, golden

pytestmark = pytest.mark.secure


@pytest.fixture(scope="module")
def secure(secure_node: NodeState) -> Cluster:
    """The url alone is enough: hybridr knows its own node's certificate and user."""
    return connect(secure_node.url)


def test_reindex_search_and_rollback(secure: Cluster) -> None:
    assert secure.version == (2, 19, 1)
    settings = {"number_of_shards": 2, "number_of_replicas": 0}
    fill_index(secure, "line", 300, settings=settings)
    encoder = HashingEncoder()
    done = reindex(secure, "line", encoder)
    assert (done.documents, done.encoded, done.switched) == (300, 300, True)
    assert sources(secure, done.destination) == sources(secure, "line")
    put_documents(secure, "line", range(299, 305), suffix=" new")
    assert reindex(secure, "line", encoder).encoded == 6
    for mode in ("lexical", "dense", "hybrid"):
        assert Search(secure, "line", encoder, mode)(text_number(5), 3)[0].doc_id == "d5"
    assert rollback(secure, "line")["to"] == "line"


def test_fusion_on_the_older_version(secure: Cluster) -> None:
    fill_index(secure, "fused", 120)
    encoder = HashingEncoder()
    reindex(secure, "fused", encoder)
    query = [Query("q", text_number(8))]
    for normalization, weights in (("min_max", [0.5, 0.5]), ("l2", [0.5, 0.5]), ("rrf", [1.0, 1.0])):
        settings = SearchSettings(normalization=normalization, depth=50)
        search = Search(secure, "fused", encoder, settings=settings)
        legs = [search.using(mode).run(query, 50)["q"] for mode in ("lexical", "dense")]
        found = search.run(query, 20)["q"]
        halves = fuse(legs, normalization=normalization, weights=[0.5, 0.5])
        expected = {
            doc: halves[doc] * weights[0] / 0.5 if normalization == "rrf" else halves[doc] for doc in found
        }
        assert found == pytest.approx(expected, abs=1e-5)
    for settings in (
        SearchSettings(normalization="z_score"),
        SearchSettings(normalization="rrf", dense_weight=0.7),
    ):
        with pytest.raises(SettingsError, match="OpenSearch 3"):
            Search(secure, "fused", encoder, settings=settings)


def test_sparse_weights_and_re_rankers_on_the_older_version(secure: Cluster) -> None:
    fill_index(secure, "weights", 40, settings={"number_of_shards": 2, "number_of_replicas": 0})
    settings = ReindexSettings(
        sparse_encoder=exported(), token_encoder=colbert(), fields=("text",), term_table=False
    )
    reindex(secure, "weights", HashingEncoder(), settings)
    assert verify(secure, "weights", HashingEncoder()).ok
    found = Search(secure, "weights", mode="sparse")(text_number(5), 40)
    [asked], ranker = golden("splade").encode_queries([text_number(5)]), golden("splade")
    texts = ranker.encode_documents([text_number(int(hit.doc_id[1:])) for hit in found])
    assert [hit.score for hit in found] == pytest.approx((texts @ asked).tolist(), rel=1e-2)
    hybrid = Search(secure, "weights", HashingEncoder())
    best = hybrid.reranked("tokens", "cross", folder=cross(), candidates=20)(text_number(5), 20)
    pairs = [(text_number(5), text_number(int(hit.doc_id[1:]))) for hit in best]
    logits = [hit.scores["cross"] for hit in best]
    assert logits == pytest.approx(PairScorer(cross()).score(pairs).tolist(), abs=1e-4)
    states = MultiVectorEncoder(colbert())
    [query], kept = (
        states.encode_queries([text_number(5)]),
        states.encode_documents([one for _, one in pairs]),
    )
    sums = [float((query @ one.T).max(axis=1).sum()) for one in kept]
    assert [hit.scores["tokens"] for hit in best] == pytest.approx(sums, abs=0.2), "in bytes"


def test_token_bits_on_the_older_version(secure: Cluster) -> None:
    fill_index(secure, "tokens", 40, settings={"number_of_shards": 2, "number_of_replicas": 0})
    settings = ReindexSettings(token_bits=True, fields=("text",))
    assert reindex(secure, "tokens", HashingEncoder(), settings).encoded == 40
    assert verify(secure, "tokens", HashingEncoder()).ok
    search = Search(secure, "tokens", HashingEncoder(), settings=SearchSettings(signals=("token_bits",)))
    hits = search(text_number(5), 40, explain=True)
    assert hits[0].doc_id == "d5"
    query, weights, factor = asked_bits(search, text_number(5))
    held = held_bytes(secure, search.info.name, [hit.doc_id for hit in hits])
    for hit in hits:
        kept = np.frombuffer(held[hit.doc_id], np.uint8).reshape(-1, 8)
        near = late_interaction(query, weights, kept, HashingEncoder.width)
        assert hit.parts is not None
        assert hit.parts["token_bits"] == pytest.approx(factor * near, abs=1e-4)


@pytest.mark.node
@pytest.mark.parametrize("k1", [1.2, 0.4])
def test_the_old_factor_of_bm25_is_in_the_weights(secure: Cluster, cluster: Cluster, k1: float) -> None:
    """The same documents and queries get the same share of BM25 on both versions."""
    shares = []
    kept = {"number_of_replicas": 0, "similarity.mine": {"type": "BM25", "k1": k1}}
    mappings = {"properties": {"text": {"type": "text", "similarity": "mine"}}}
    for each in (secure, cluster):
        fill_index(each, "t-factor", 60, settings=kept, mappings=mappings)
        texts = [text_number(number) for number in range(5)]
        search = Search(each, "t-factor", mode="lexical")
        roots = np.sqrt(search.idf_sums(texts))
        runs = search.run([Query(text, text) for text in texts], 1)
        shares.append([max(runs[text].values()) / root for text, root in zip(texts, roots, strict=True)])
        each.request("DELETE", "/t-factor")
    assert shares[0] == pytest.approx(shares[1], rel=1e-3)


@pytest.mark.attack(69)
def test_wrong_password_and_unknown_certificate(
    secure_node: NodeState,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    password = secrets.token_hex(12)
    monkeypatch.setenv("HYBRIDR_PASSWORD", password)
    on = ["--url", secure_node.url]
    assert hybridr_cli.main(["search", "line", "anchor", *on, "--user", "admin"]) == 1
    said = capsys.readouterr()
    assert "does not know this user or password (401)" in said.err
    assert password not in said.err + said.out
    with pytest.raises(AccessDenied):
        connect(secure_node.url, user="nobody", password=password)
    # A node that is not hybridr's own needs --ca-certs: the same address under another name.
    elsewhere = secure_node.url.replace("127.0.0.1", "localhost")
    with pytest.raises(Unreachable, match="certificate") as caught:
        connect(elsewhere, user="admin", password=password)
    assert "--ca-certs" in str(caught.value.hint)
    with pytest.raises(SettingsError, match="no file at"):
        connect(elsewhere, user="admin", password=password, ca_certs=tmp_path / "none.pem")


def test_the_shipped_role_of_search_ranks_as_an_administrator(
    secure: Cluster, secure_node: NodeState, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On OpenSearch 3 more is asked: tests/production."""
    monkeypatch.setattr(storage, "LEAST_TERMS", 1)
    fill_uneven(secure, "roles", shards=3)
    reindex(secure, "roles", HashingEncoder())
    told = []
    for cluster in (user_of(secure_node, secure, "roles")("search"), secure):
        with fresh_machine(tmp_path):
            search = Search(cluster, "roles", HashingEncoder())
            assert "soft_terms" in search.signals.members
            told.append(search.run([Query("q", "anchor velvet zephyr"), Query("r", "dragons engine")], 50))
    assert not differences(*told)


CLUSTER_RIGHTS = [
    "indices:data/write/bulk",
    "cluster:admin/search/pipeline/get",
    "cluster:admin/search/pipeline/put",
    "cluster:monitor/main",
    "cluster:monitor/health",
    "indices:data/read/mget",
    "indices:data/read/msearch",
    "indices:data/read/mtv",
]
SOURCE_RIGHTS = [
    "indices:data/read/point_in_time/create",
    "indices:data/read/point_in_time/delete",
    "indices:data/read/search",
    "indices:admin/get",
]
DESTINATION_RIGHTS = [
    *SOURCE_RIGHTS,
    "indices:admin/create",
    "indices:admin/mapping/put",
    "indices:data/write/bulk*",
    "indices:data/write/index",
    "indices:data/write/delete",
    "indices:data/read/mget*",
    "indices:data/read/mtv*",
    "indices:admin/refresh*",
    "indices:admin/settings/update",
    "indices:admin/aliases",
    "indices:admin/aliases/get",
    "cluster:monitor/health",
]


def test_a_user_with_few_rights_can_do_all_of_it(secure: Cluster, secure_node: NodeState) -> None:
    fill_index(secure, "small", 30)
    password = f"Aa1!{secrets.token_hex(12)}"
    api = "/_plugins/_security/api"
    role = {
        "cluster_permissions": CLUSTER_RIGHTS,
        "index_permissions": [
            {"index_patterns": ["small"], "allowed_actions": [*SOURCE_RIGHTS, "indices:admin/aliases"]},
            {"index_patterns": ["small-hybridr*"], "allowed_actions": DESTINATION_RIGHTS},
        ],
    }
    secure.request("PUT", f"{api}/roles/few", role)
    secure.request("PUT", f"{api}/internalusers/few", {"password": password})
    secure.request("PUT", f"{api}/rolesmapping/few", {"users": ["few"]})
    assert secure_node.ca_certs
    few = connect(secure_node.url, user="few", password=password)
    encoder = HashingEncoder()
    assert reindex(few, "small", encoder).switched
    put_documents(secure, "small", range(28, 32), suffix=" again")
    assert reindex(few, "small", encoder).encoded == 4
    secure.request("DELETE", path_of("small", "_doc", "d2"), params={"refresh": "true"})
    assert reindex(few, "small", encoder).deleted == 1
    assert sources(secure, "small-hybridr-1") == sources(secure, "small")
    assert Search(few, "small", encoder)(text_number(3), 1)[0].doc_id == "d3"
    # Without the right to read the copies by id nothing may look as if it were missing.
    role["index_permissions"][1]["allowed_actions"] = [r for r in DESTINATION_RIGHTS if "mget" not in r]
    role["cluster_permissions"] = [right for right in CLUSTER_RIGHTS if "mget" not in right]
    secure.request("PUT", f"{api}/roles/few", role)
    with pytest.raises(AccessDenied, match="mget"):
        reindex(few, "small", encoder)
    assert sources(secure, "small-hybridr-1") == sources(secure, "small")
    fill_index(secure, "private", 3)
    with pytest.raises(AccessDenied, match="no permissions for"):
        reindex(few, "private", encoder)
    assert json.dumps(password) not in json.dumps(secure_node.to_json())
