"""`--rerank tokens` on a real node: MaxSim as `assemble` gives it, of vectors in doc values."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from hybridr import ReindexSettings, Search, SearchSettings
from hybridr.cluster.connection import Cluster
from hybridr.cluster.destinations import resolve
from hybridr.encoders.graph_folders import MultiVectorEncoder
from hybridr.errors import SettingsError
from hybridr.evaluation.evaluation import evaluate
from hybridr.files.remembered import forget_encoder
from hybridr.indexing.reindexing import reindex
from hybridr.records import Query
from hybridr.search.systems import system, with_rerankers
from support.corpus import drop_indices, fill_uneven
from support.golden_ddr import colbert as exported
from support.golden_ddr import cross_encoder as cross
from support.golden_ddr import golden
from support.hashing import HashingEncoder
from support.in_place_index import raw

WORDS = ["anchor basket", "the forest and the garden", "velvet zephyr window"]


@pytest.fixture(scope="module")
def plain(cluster: Cluster) -> Iterator[Search]:
    name = "t-tokens"
    fill_uneven(cluster, name, shards=3)
    settings = ReindexSettings(fields=("text",), term_table=False, token_encoder=exported())
    reindex(cluster, name, HashingEncoder(), settings)
    yield Search(cluster, name, HashingEncoder(), settings=SearchSettings(depth=60))
    drop_indices(cluster, f"{name}*")


def max_sims(plain: Search, text: str, ids: list[str]) -> dict[str, float]:
    """Score documents as the library's own formula does, in torch."""
    import torch

    from hybridr.training.objectives.labelled import max_sim

    ranker, documents = golden("colbert"), raw(plain.cluster, plain.info.name)
    asked, found = torch.from_numpy(ranker.encode_queries([text])), {}  # type: ignore[attr-defined]
    for doc_id in ids:
        vectors = torch.from_numpy(ranker.encode_documents([documents[doc_id]["text"]]))  # type: ignore[attr-defined]
        found[doc_id] = float(max_sim(asked, vectors))
    return found


def test_scores_are_max_sim_and_are_added(plain):
    search = plain.reranked("tokens", token_candidates=40, token_weight=5)
    for text in WORDS:
        before = plain.using("dense")(text, 40)
        after = plain.using("dense").reranked("tokens", token_candidates=40, token_weight=5)(text, 40)
        wanted = max_sims(plain, text, [hit.doc_id for hit in before])
        found = {hit.doc_id: hit.scores["tokens"] for hit in after}
        assert found == pytest.approx(wanted, abs=0.2)
        assert [hit.doc_id for hit in after] != [hit.doc_id for hit in before]
        gained = {hit.doc_id: hit.score for hit in after}
        rates = [
            (gained[hit.doc_id] - hit.score) / (found[hit.doc_id] - min(found.values()))
            for hit in before
            if found[hit.doc_id] > min(found.values()) + 0.1
        ]
        assert np.ptp(rates) < 0.02 * np.mean(rates)
    assert search(WORDS[0], 5)


def test_pages_join_and_a_chain_ends_with_a_cross_encoder(plain):
    own = {"folder": cross(), "candidates": 10, "token_candidates": 30}
    chain = plain.reranked("tokens", "cross", **own)
    whole = chain(WORDS[1], 50)
    assert [hit.doc_id for start in range(0, 50, 9) for hit in chain(WORDS[1], 9, offset=start)][:50] == [
        hit.doc_id for hit in whole
    ]
    assert all(hit.scores["tokens"] is not None and hit.scores["cross"] is not None for hit in whole[:10])
    assert whole[45].scores["tokens"] is None
    given = plain.settings.model_copy(update={"rerank_settings": own})
    named = with_rerankers(system("hybrid+tokens+cross"), plain, given)
    alone = with_rerankers(system("hybrid+tokens"), plain, given)
    assert alone(WORDS[1], 5) == plain.reranked("tokens", token_candidates=30)(WORDS[1], 5)
    with pytest.raises(SettingsError, match="unknown setting 'candidate'"):
        with_rerankers(
            system("hybrid+tokens"), plain, given.model_copy(update={"rerank_settings": {"candidate": 1}})
        )
    queries, qrels = [Query("q", WORDS[1])], {"q": {whole[0].doc_id: 1}}
    assert evaluate({"chain": named}, queries, qrels, ["P@1"]).to_json()["systems"]["chain"]["P@1"] == 1.0


def test_what_cannot_rank_is_told(plain, cluster, searchable, monkeypatch):
    with pytest.raises(SettingsError, match="the index has no vectors of tokens"):
        Search(cluster, searchable[0], searchable[1], settings=SearchSettings(rerank="tokens"))  # type: ignore[arg-type]
    with pytest.raises(SettingsError, match="token_weight: input should be greater than 0"):
        plain.reranked("tokens", token_weight=0)
    assert resolve(cluster, plain.info.name).record.representations["token_vectors"]
    forget_encoder(MultiVectorEncoder(exported()).fingerprint)
    with pytest.raises(Exception, match="is not known on this machine"):
        plain.reranked("tokens")
    assert plain.reranked("tokens", token_encoder=exported())(WORDS[0], 3)
