"""A toy collection with judgements, and a program that trains a REM on it: to be killed, or run twice."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
import torch

from hybridr.relevance.corpus import read_target
from hybridr.training.batches import Batches, Limits, read_examples
from hybridr.training.judged import Judged, read_judged_beir
from hybridr.training.loop import Processes
from hybridr.training.objectives import modir
from hybridr.training.objectives.contrast import Contrastive
from hybridr.training.objectives.labelled import EncodedApart
from hybridr.training.rankers import assemble
from hybridr.training.rem import train_rem
from hybridr.training.settings import RemSettings
from support.tiny import tiny_corpus, tiny_texts

E = TypeVar("E", bound=EncodedApart)
FITTED_STEPS = 20
"""Of the classifier that measures domains, which has 500 for users; `test_modir_domains.py` has them too."""
SETTINGS: dict[str, Any] = {
    "steps": 12,
    "batch_size": 8,
    "learning_rate": 1e-3,
    "rank": 4,
    "checkpoint_every": 3,
    "mined": 5,
    "precision": "fp32",
    "device": "cpu",
    "max_document_tokens": 32,
}


def set_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have commands train a REM that is small enough for a test."""
    for name in ("rank", "batch_size", "device"):
        monkeypatch.setenv(f"HYBRIDR_REM_{name.upper()}", str(SETTINGS[name]))


def write_toy(folder: Path, documents: int = 40) -> Path:
    """Write a BEIR folder: a query has 4 words of its document's title and text; some have two documents."""
    random = np.random.default_rng(3)
    corpus = tiny_corpus(documents)
    records = [{"_id": d.doc_id, "title": d.title, "text": d.text} for d in corpus]
    queries, rows = [], []
    for position, document in enumerate(corpus):
        words = document.contents.replace(".", "").split()
        queries.append({"_id": f"q{position}", "text": " ".join(random.choice(words, 4))})
        rows.append(f"q{position}\td{position}\t1\n")
        if position % 4 == 0:
            rows.append(f"q{position}\td{(position + 10) % documents}\t2\n")
            rows.append(f"q{position}\td{(position + 1) % documents}\t0\n")
    (folder / "qrels").mkdir(parents=True)
    for name, lines in (("corpus", records), ("queries", queries)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "qrels" / "train.tsv").write_text("query-id\tcorpus-id\tscore\n" + "".join(rows))
    return folder


def main() -> None:
    """Train with the settings and on the collection of the command line; print each step that is done."""
    torch.set_num_threads(1)
    modir.FITTED_STEPS = FITTED_STEPS
    folder, values = Path(sys.argv[1]), json.loads(sys.argv[2])

    def report(stage: str, done: int, total: int | None = None, note: str = "") -> None:
        if stage == "train":
            sys.stdout.write(f"{done}\n")
            sys.stdout.flush()

    target = read_target("tiny", tiny_corpus(60), seed=4) if "invariant" in sys.argv else None
    train_rem(read_judged_beir(folder), RemSettings(**values), target=target, progress=report)


TEXTS = tiny_texts(8, longest=20, seed=5)


def rem_settings(dam: Path, out: Path, **values: Any) -> RemSettings:
    return RemSettings(**SETTINGS | {"dam": str(dam), "out": out} | values)


def vectors(dam: Path, rem: Path | None = None) -> np.ndarray:
    return assemble(dam, rem).encode_documents(TEXTS)


def objective_of(kind: type[E], judged: Judged, dam: Path, size: int, negatives: int, **values: Any) -> E:
    """Set up an objective on the toy collection; it has no trained weights yet."""
    ranker: Any = assemble(dam)
    examples = read_examples(judged, None, ranker.tokens, Limits())
    batches = Batches(examples, size, negatives, 7)
    given = RemSettings(dam=str(dam), **values)
    return kind(ranker, {}, batches, given, "fp32", Processes("cpu"))


def objective(judged: Judged, dam: Path, size: int = 40, **values: Any) -> Contrastive:
    return objective_of(Contrastive, judged, dam, size, 3, **values)


def write_teacher(file: Path, judged: Judged) -> Path:
    """Score by the number of common words, as JSONL or TSV."""
    corpus = list(judged.documents())
    lines = []
    for query_id, text in judged.queries.items():
        for document in corpus:
            common = len(set(text.split()) & set(document.contents.replace(".", " ").split()))
            score = common + 2.0 * (document.doc_id in judged.positives[query_id])
            record = {"query-id": query_id, "corpus-id": document.doc_id, "score": score}
            tsv = f"{query_id}\t{document.doc_id}\t{score}"
            lines.append(json.dumps(record) if file.suffix == ".jsonl" else tsv)
    file.write_text("\n".join(lines) + "\n")
    return file
