"""What studies of training are tried on: a tiny backbone, a source with labels, a target to rank."""

from __future__ import annotations

from pathlib import Path

from hybridr.encoders.export.model_files import write_model
from hybridr.files.formats import write_beir
from hybridr.records import Query
from support.tiny import tiny_corpus, tiny_retriever


def write_source_and_target(folder: Path) -> Path:
    """Write the collections `source` and `target` into `folder`; give the backbone beside them."""
    for seed, (name, split) in enumerate([("source", "train"), ("target", "test")]):
        documents = tiny_corpus(60, seed=seed)
        queries = [Query(f"q{i}", " ".join(documents[i].text.split()[:5])) for i in range(12)]
        qrels = {query.query_id: {documents[i].doc_id: 1} for i, query in enumerate(queries)}
        write_beir(folder / name, documents, queries, qrels)
        if split == "train":
            (folder / name / "qrels" / "test.tsv").rename(folder / name / "qrels" / "train.tsv")
    backbone = folder / "backbone"
    backbone.mkdir()
    write_model(tiny_retriever(), backbone)
    return backbone
