"""`compare`: which encoder a sample of documents is ranked best by."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from hybridr.errors import DataError
from hybridr.evaluation.label_free import Bm25
from hybridr.evaluation.significance import BoundedMean
from hybridr.records import Document, Query
from hybridr.relevance import gate
from hybridr.relevance.gate import (
    RANKING_LOSS,
    EncoderComparison,
    EncoderResult,
    comparison_task,
    encoder_results,
    measure_encoder,
    read_evidence,
)
from support.tiny import tiny_corpus

VALUE = BoundedMean(0.5, 0.4, 0.6)


class Words:
    """An encoder of words: texts that share words are near. With `noise` it has lost everything."""

    dim, similarity, max_tokens = 256, "cosine", 64

    def __init__(self, noise: bool = False) -> None:
        self.noise, self.fingerprint, self.calls = noise, f"words {noise}", 0

    def encode_queries(self, texts: Sequence[str], *, max_tokens: int | None = None) -> np.ndarray:
        self.calls += 1
        vectors = np.full((len(texts), self.dim), 1e-3, dtype=np.float32)
        for row, text in zip(vectors, texts, strict=True):
            for word in [text] if self.noise else text.lower().split():
                row[int.from_bytes(hashlib.sha256(word.encode()).digest()[:4], "big") % self.dim] += 1
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)

    encode_documents = encode_queries


@pytest.fixture(autouse=True)
def kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setenv("HYBRIDR_HOME", str(tmp_path))


def result_of(name: str, p: float, rate: float) -> EncoderResult:
    return EncoderResult(name, VALUE, VALUE, p, p < 0.05, rate, 10.0, 1_000)


def comparison_of(*results: EncoderResult) -> EncoderComparison:
    return EncoderComparison("docs", 100, 100, 50, False, VALUE, results)


def test_an_encoder_that_lost_everything_is_behind_and_what_was_measured_is_remembered() -> None:
    task = comparison_task(tiny_corpus(120), None, seed=0)
    bm25 = Bm25(task.texts)
    encoders = [Words(), Words(noise=True)]
    good, lost = (measure_encoder(encoder, task, bm25, lambda *_: None) for encoder in encoders)
    assert np.mean(good["dense"]) > np.mean(lost["dense"]) + 0.2
    assert good["lexical"] == lost["lexical"]
    calls = encoders[0].calls
    assert measure_encoder(encoders[0], task, bm25, lambda *_: None) == good
    assert encoders[0].calls == calls
    other = comparison_task(tiny_corpus(120), None, seed=1)
    measure_encoder(encoders[0], other, Bm25(other.texts), lambda *_: None)
    assert encoders[0].calls > calls, "other queries are measured anew"


def test_only_the_newest_measurements_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "MAX_STORED", 2)
    for seed in range(4):
        task = comparison_task(tiny_corpus(60), None, seed)
        measure_encoder(Words(), task, Bm25(task.texts), lambda *_: None)
    assert len(gate.read_state_file(gate.FILE)) == 2


def test_judged_queries_are_measured_by_their_judgements() -> None:
    corpus = tiny_corpus(80)
    queries = [Query(f"q{number}", document.contents) for number, document in enumerate(corpus[:40])]
    qrels = {f"q{number}": {document.doc_id: 1} for number, document in enumerate(corpus[:40])}
    task = comparison_task(corpus[20:], read_evidence(corpus, (queries, qrels), (), 0), seed=0)
    assert {document.doc_id for document in task.documents} == {document.doc_id for document in corpus}
    found = measure_encoder(Words(), task, Bm25(task.texts), lambda *_: None)
    assert len(found["dense"]) == 40
    assert np.mean(found["dense"]) > 0.9


def test_the_best_is_named_only_where_it_is_significantly_better() -> None:
    told = comparison_of(result_of("a", 1.0, 10.0), result_of("b", 0.01, 90.0))
    assert (told.best, told.choice) == ("a", "a")
    untold = comparison_of(result_of("a", 1.0, 10.0), result_of("b", 0.4, 90.0), result_of("c", 0.01, 99.0))
    assert (untold.best, untold.choice) == (None, "b"), "of equals the fastest"
    assert untold.to_json()["choice"] == "b"
    assert untold.to_json()["encoders"][0]["dense"] == {"mean": 0.5, "low": 0.4, "high": 0.6}


def test_made_queries_show_large_differences_only() -> None:
    values = {"good": [0.9, 0.7] * 40, "near": [0.88, 0.67] * 40, "far": [0.5, 0.3] * 40}
    scores = {name: {"dense": of, "hybrid": of, "documents_per_second": 10.0} for name, of in values.items()}
    sizes = dict.fromkeys(values, 100)
    made, by_people = (encoder_results(scores, sizes, 1_000, needed) for needed in (RANKING_LOSS, 0.0))
    assert [(one.name, one.behind) for one in made] == [("good", False), ("near", False), ("far", True)]
    assert [result.behind for result in by_people] == [False, True, True]
    assert made[0].seconds == 100.0


def test_too_few_documents_make_no_queries() -> None:
    with pytest.raises(DataError, match="30 are needed"):
        comparison_task([Document(f"d{number}", f"word{number}") for number in range(40)], None, seed=0)
