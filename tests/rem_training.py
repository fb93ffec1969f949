"""A toy collection with judgements, and a program that trains a REM on it: to be killed, or run twice."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from tiny import tiny_corpus

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
    import torch

    from hybridr.adaptation.judged import read_judged_beir
    from hybridr.adaptation.rem import train_rem
    from hybridr.adaptation.settings import RemSettings

    torch.set_num_threads(1)
    folder, values = Path(sys.argv[1]), json.loads(sys.argv[2])

    def report(stage: str, done: int, total: int | None = None, note: str = "") -> None:
        if stage == "train":
            sys.stdout.write(f"{done}\n")
            sys.stdout.flush()

    train_rem(read_judged_beir(folder), RemSettings(**values), progress=report)


if __name__ == "__main__":
    main()
