from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from hybridr.cluster.record import Record
from hybridr.cluster.record_parts import Cosines
from hybridr.cluster.retrievers.dense import engine_scores
from hybridr.encoders.export.exporting import export
from hybridr.encoders.opening import load_encoder
from hybridr.encoders.registry import MINILM_WHEEL
from hybridr.evaluation.label_free import Bm25
from hybridr.indexing.recipe import TextRecipe
from hybridr.indexing.settings import ReindexSettings
from hybridr.relevance.gate import candidate_lists, compare_encoders, rank_all
from hybridr.search.calibration import cosine_scale, stored_whitening
from hybridr.search.checks import default_fusion
from hybridr.search.fusions import Scales
from hybridr.search.settings import SearchSettings
from hybridr.training.adaptation import adapt
from hybridr.training.settings import AdaptSettings
from hybridr_cli.commands.adapt import show_adaptation
from support.tiny import tiny_corpus, tiny_retriever


class Noise:
    """An encoder that has lost everything: each text has a vector of its own."""

    dim, similarity, max_tokens, fingerprint = 32, "cosine", 64, "noise"

    def encode_queries(self, texts: Sequence[str], *, max_tokens: int | None = None) -> np.ndarray:
        seeds = (int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") for text in texts)
        vectors = np.float32([np.random.default_rng(seed).standard_normal(32) for seed in seeds])
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)

    encode_documents = encode_queries


def test_the_same_encoder_passes() -> None:
    corpus = tiny_corpus(120)
    report = compare_encoders(tiny_retriever(), tiny_retriever(), corpus[:40], corpus[40:])
    assert report.passed
    assert report.documents == 120
    assert [row.p for row in report.rows] == [1.0] * 4
    assert report.rows[-1].new == 1.0
    assert all(row.old == row.new for row in report.rows)


def test_a_lost_encoder_is_vetoed_with_reasons() -> None:
    corpus = tiny_corpus(120)
    report = compare_encoders(tiny_retriever(), Noise(), corpus[:40], corpus[40:])
    assert not report.passed
    assert len(report.reasons) >= 3
    assert any("dense top 10 in BM25 top 20 falls" in reason for reason in report.reasons)
    assert any("of the hybrid top 10 stays; 85% is needed" in reason for reason in report.reasons)


def test_the_log_of_real_queries_decides_about_overlap() -> None:
    corpus = tiny_corpus(120)
    log = [" ".join(document.text.split()[:3]) for document in corpus[60:90]]
    report = compare_encoders(tiny_retriever(), Noise(), corpus[:40], corpus[40:], queries=log)
    assert [row.queries for row in report.rows[2:]] == [30, 30]
    assert report.rows[0].queries > 60


def joined_score(corpus: list[str], query: str, cosines: np.ndarray, factor: float) -> np.ndarray:
    index = Bm25(corpus)
    words, weight = index.scores(query) / 2.2, index.idf_sum(query)
    return (0.5 * words / (4 * weight**0.5) if weight else words) + 0.5 * factor * (1 + cosines)


def test_fused_lists_are_those_of_an_index_made_by_the_defaults() -> None:
    corpus = [document.contents for document in tiny_corpus(120)]
    encoder, asked = Noise(), [" ".join(corpus[7].split()[:4]), "no such words"]
    found = rank_all(encoder, corpus, asked, Bm25(corpus), lambda *_: None, whitened=True)
    measured = TextRecipe(encoder, ReindexSettings(), ("text",)).cosines(corpus)
    whitening = stored_whitening(Record(cosines=measured, dim=encoder.dim))
    factor = cosine_scale(encoder, measured.whitened).factor
    queries, documents = encoder.encode_queries(asked), encoder.encode_documents(corpus)
    plain, near = (vectors @ documents.T for vectors in (queries, whitening.apply(queries)))
    lists = zip(asked, plain, near, found.dense, found.fused, strict=True)
    for query, row, whitened_row, dense, fused in lists:
        score = joined_score(corpus, query, whitened_row, factor)
        assert len(fused) >= 100
        assert (np.diff(score[[int(place) for place in fused]]) < 1e-3).all()
        assert dense == sorted(dense, key=lambda place: -row[int(place)]), "vectors alone are not whitened"
        assert dense[:20] != sorted(dense, key=lambda place: -whitened_row[int(place)])[:20]


@pytest.mark.parametrize("packaged", [False, True], ids=["no judgements", "the packaged encoder"])
def test_fused_lists_are_those_of_queries_as_they_are(packaged, monkeypatch):
    corpus = [document.contents for document in tiny_corpus(130)]
    encoder, asked = Noise(), [" ".join(corpus[7].split()[:4]), "no such words"]
    if packaged:
        monkeypatch.setattr(Noise, "fingerprint", MINILM_WHEEL.fingerprint)
    found = rank_all(encoder, corpus, asked, Bm25(corpus), lambda *_: None, whitened=packaged)
    cosines = encoder.encode_queries(asked) @ encoder.encode_documents(corpus).T
    measured = Cosines(spread=float(cosines.std(axis=1).mean()), mean=float(cosines.mean()))
    factor = 1.0 if packaged else cosine_scale(encoder, measured).factor
    for query, row, fused in zip(asked, cosines, found.fused, strict=True):
        score = joined_score(corpus, query, row, factor)
        assert len(fused) >= 100
        assert fused == sorted(fused, key=lambda place: -score[int(place)])


def test_inner_products_are_fused_as_cosines_are() -> None:
    class Inner(Noise):
        similarity = "ip"

    usual = default_fusion(SearchSettings(), Record(similarity="ip"))
    assert usual.name == "absolute"
    dense = engine_scores("ip", np.array([[-3.0, 5.0, 0.0]]))
    assert dense.tolist() == [[0.25, 6.0, 1.0]]
    lists = candidate_lists(np.array([0, 0, 2.0]), dense[0], Scales(9.0, cosine_scale(Inner(), None).factor))
    fused = usual(SearchSettings(), (3, 0, 0)).scores(lists)
    assert sorted(fused, key=lambda place: -fused[place]) == ["1", "2", "0"]


def test_a_vetoed_run_exports_the_unadapted_encoder_unless_forced(tmp_path: Path) -> None:
    base = export(tiny_retriever(), tmp_path / "base")
    noise = tiny_retriever(seed=3)
    for weight in noise.backbone.parameters():
        torch.nn.init.normal_(weight, std=1.0)
    wild = AdaptSettings(
        out=tmp_path / "out",
        base=str(base),
        objective_settings={"second": str(export(noise, tmp_path / "noise")), "held_out": 40},
        max_tokens=64,
        strength=1.0,
    )
    vetoed = adapt(tiny_corpus(200), wild)
    assert not vetoed.promoted
    assert vetoed.gate.reasons
    assert load_encoder(vetoed.folder).fingerprint == load_encoder(base).fingerprint
    assert "The gate said no" in (vetoed.folder / "README.md").read_text()
    assert "UNADAPTED" in (vetoed.folder / "README.md").read_text()
    forced = adapt(tiny_corpus(200), wild.model_copy(update={"force": True}))
    assert forced.promoted
    assert not forced.gate.passed
    assert load_encoder(forced.folder).fingerprint != load_encoder(base).fingerprint
    assert "exported by force" in (forced.folder / "README.md").read_text()
    lines: list[str] = []
    output = SimpleNamespace(line=lines.append, table=lambda *_: None, result=lambda _: None)
    for result in (vetoed, forced):
        show_adaptation(SimpleNamespace(output=output), "docs", result)
    assert [line for line in lines if line.startswith("next")] == [
        f"next       hybridr reindex docs --encoder {forced.folder}"
    ], "a vetoed run's folder is not offered"
