"""The whole line on OpenSearch 2.19.1 with TLS, a password, and a user with few rights."""

from __future__ import annotations

import secrets

import numpy as np
import pytest

from hybridr import ReindexSettings, Search, SearchSettings, connect
from hybridr.cluster.connection import Cluster
from hybridr.cluster.embedded.state import NodeState
from hybridr.cluster.token_field import stored_bytes
from hybridr.encoders.graph_folders import MultiVectorEncoder, PairScorer
from hybridr.errors import AccessDenied, SettingsError, Unreachable
from hybridr.indexing.reindexing import reindex
from hybridr.indexing.terms import storage
from hybridr.indexing.verification import verify
from hybridr.records import Query
from hybridr.search.context import idf_sums
from hybridr.search.fusions.pipeline import fuse
from support.bits import asked_bits, late_interaction
from support.corpus import fill_index, fill_uneven, text_number
from support.golden_ddr import colbert, golden
from support.golden_ddr import cross_encoder as cross
from support.hashing import HashingEncoder
from support.rights import differences, fresh_machine, user_of
from support.sparse import exported

pytestmark = pytest.mark.secure


@pytest.fixture(scope="module")
def secure(secure_node: NodeState) -> Cluster:
    """The url alone is enough: hybridr knows its own node's certificate and user."""
    return connect(secure_node.url)


def test_fusion_on_the_older_version(secure):
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


def test_sparse_weights_and_re_rankers_on_the_older_version(secure):
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


def test_token_bits_on_the_older_version(secure):
    fill_index(secure, "tokens", 40, settings={"number_of_shards": 2, "number_of_replicas": 0})
    settings = ReindexSettings(token_bits=True, fields=("text",))
    assert reindex(secure, "tokens", HashingEncoder(), settings).encoded == 40
    assert verify(secure, "tokens", HashingEncoder()).ok
    search = Search(secure, "tokens", HashingEncoder(), settings=SearchSettings(signals=("token_bits",)))
    hits = search(text_number(5), 40, explain=True)
    assert hits[0].doc_id == "d5"
    query, weights, factor = asked_bits(search, text_number(5))
    held = stored_bytes(secure, search.info.name, [hit.doc_id for hit in hits])
    for hit in hits:
        kept = np.frombuffer(held[hit.doc_id], np.uint8).reshape(-1, 8)
        near = late_interaction(query, weights, kept, HashingEncoder.width)
        assert hit.parts["token_bits"] == pytest.approx(factor * near, abs=1e-4)


@pytest.mark.parametrize("k1", [1.2, 0.4])
def test_the_old_factor_of_bm25_is_in_the_weights(secure, cluster, k1):
    """The same documents and queries get the same share of BM25 on both versions."""
    shares = []
    kept = {"number_of_replicas": 0, "similarity.mine": {"type": "BM25", "k1": k1}}
    mappings = {"properties": {"text": {"type": "text", "similarity": "mine"}}}
    for each in (secure, cluster):
        fill_index(each, "t-factor", 60, settings=kept, mappings=mappings)
        texts = [text_number(number) for number in range(5)]
        search = Search(each, "t-factor", mode="lexical")
        roots = np.sqrt(idf_sums(search.context, texts))
        runs = search.run([Query(text, text) for text in texts], 1)
        shares.append([max(runs[text].values()) / root for text, root in zip(texts, roots, strict=True)])
        each.request("DELETE", "/t-factor")
    assert shares[0] == pytest.approx(shares[1], rel=1e-3)


@pytest.mark.attack(69)
def test_wrong_password_and_unknown_certificate(secure_node, monkeypatch, cli, tmp_path):
    password = secrets.token_hex(12)
    monkeypatch.setenv("HYBRIDR_PASSWORD", password)
    said = cli(None, f"search line anchor --user admin --url {secure_node.url}", code=1)
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


def test_the_shipped_role_of_search_ranks_as_an_administrator(secure, secure_node, tmp_path, monkeypatch):
    """On OpenSearch 3 more is asked: tests/production."""
    monkeypatch.setattr(storage, "MIN_TERMS", 1)
    fill_uneven(secure, "roles", shards=3)
    reindex(secure, "roles", HashingEncoder())
    told = []
    for cluster in (user_of(secure_node, secure, "roles")("search"), secure):
        with fresh_machine(tmp_path):
            search = Search(cluster, "roles", HashingEncoder())
            assert "soft_terms" in search.signals.members
            told.append(search.run([Query("q", "anchor velvet zephyr"), Query("r", "dragons engine")], 50))
    assert not differences(*told)
