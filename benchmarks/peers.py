"""What peers make of one collection, in a process of its own: `python peers.py NAME FOLDER`.

Nothing of hybridr is imported: the interpreter is one that has other packages than ours. FOLDER holds
documents.jsonl and queries.jsonl (`id`, `text`, and `terms` as our index holds them: term -> frequency),
runs.json (runs to fuse) and settings.json. What comes of it is FOLDER/NAME.json: runs, seconds, versions.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

Run = dict[str, dict[str, float]]
Found = dict[str, Any]


def main() -> None:
    """Let one peer rank, and write what it found."""
    name, folder = sys.argv[1], Path(sys.argv[2])
    os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "true"}
    settings = json.loads((folder / "settings.json").read_text(encoding="utf-8"))
    found = PEERS[name](folder, settings)
    found["versions"] = {package: metadata.version(package) for package in PACKAGES[name]}
    (folder / f"{name}.json").write_text(json.dumps(found), encoding="utf-8")


def read(file: Path) -> list[dict[str, Any]]:
    """Read the lines of a file."""
    with file.open(encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def best(scores: Any, names: list[str], depth: int) -> dict[str, float]:
    """Give the best `depth` of one query's scores `(documents,)`, those above zero."""
    import numpy as np

    places = np.argsort(-scores, kind="stable")[:depth]
    return {names[place]: float(scores[place]) for place in places if scores[place] > 0}


def index_with_pyserini(folder: Path) -> str:
    """Index the documents with its own command; give the index."""
    (folder / "pyserini").mkdir()
    with (folder / "pyserini" / "documents.jsonl").open("w", encoding="utf-8") as lines:
        for one in read(folder / "documents.jsonl"):
            lines.write(json.dumps({"id": one["id"], "contents": one["text"]}) + "\n")
    index = str(folder / "index")
    options = {
        "--collection": "JsonCollection",
        "--input": str(folder / "pyserini"),
        "--index": index,
        "--generator": "DefaultLuceneDocumentGenerator",
        "--threads": "1",
    }
    command = [sys.executable, "-m", "pyserini.index.lucene", "--storeDocvectors"]
    command += [one for pair in options.items() for one in pair]
    subprocess.run(command, check=True, capture_output=True)
    return index


def rank_with_pyserini(folder: Path, settings: Mapping[str, Any]) -> Found:
    """Rank with BM25 and RM3, with our k1 and b and with its own; compare its terms with ours."""
    os.environ.setdefault("OPENAI_API_KEY", "unused")  # Pyserini 1.6 cannot be imported without one
    started = time.perf_counter()
    index = index_with_pyserini(folder)
    seconds = {"pyserini index": time.perf_counter() - started}

    from pyserini.search.lucene import LuceneSearcher

    queries, depth = read(folder / "queries.jsonl"), settings["depth"]
    runs: dict[str, Run] = {}
    for name, (k1, b) in {"": (settings["k1"], settings["b"]), " .9/.4": (0.9, 0.4)}.items():
        for way in ("bm25", "rm3"):
            searcher = LuceneSearcher(index)
            searcher.set_bm25(k1, b)
            if way == "rm3":
                searcher.set_rm3()
            started = time.perf_counter()
            runs[f"pyserini {way}{name}"] = {
                query["id"]: {hit.docid: hit.score for hit in searcher.search(query["text"], depth)}
                for query in queries
            }
            seconds[f"pyserini {way}{name}"] = time.perf_counter() - started
    return {"runs": runs, "seconds": seconds, "terms": compare_terms(index, folder, queries)}


def compare_terms(index: str, folder: Path, queries: list[dict[str, Any]]) -> dict[str, int]:
    """Count documents and queries whose terms or frequencies are not those of our index."""
    from pyserini.index.lucene import LuceneIndexReader

    reader = LuceneIndexReader(index)
    documents = sum(
        (reader.get_document_vector(one["id"]) or {}) != one["terms"]
        for one in read(folder / "documents.jsonl")
    )
    asked = sum(counts(reader.analyze(query["text"])) != query["terms"] for query in queries)
    return {"documents": documents, "queries": asked}


def counts(terms: Iterable[str]) -> dict[str, int]:
    """Count terms."""
    found: dict[str, int] = {}
    for term in terms:
        found[term] = found.get(term, 0) + 1
    return found


def spread(terms: Mapping[str, int]) -> list[str]:
    """Write each term as often as it occurs."""
    return [term for term, count in terms.items() for _ in range(count)]


def rank_with_bm25s(folder: Path, settings: Mapping[str, Any]) -> Found:
    """Rank by Lucene's formula on our terms, and on what its own tokeniser makes of the text."""
    import bm25s
    import Stemmer

    documents, queries = read(folder / "documents.jsonl"), read(folder / "queries.jsonl")
    stemmer = Stemmer.Stemmer("english")

    def own(found: list[dict[str, Any]]) -> list[list[str]]:
        texts = [one["text"] for one in found]
        return bm25s.tokenize(texts, stopwords="en", stemmer=stemmer, return_ids=False, show_progress=False)

    ways = {"bm25s": lambda found: [spread(one["terms"]) for one in found], "bm25s own terms": own}
    names, runs, seconds = [one["id"] for one in documents], {}, {}
    for name, tokens in ways.items():
        started = time.perf_counter()
        index = bm25s.BM25(method="lucene", k1=settings["k1"], b=settings["b"])
        index.index(tokens(documents), show_progress=False)
        runs[name] = {
            query["id"]: best(index.get_scores(terms), names, settings["depth"]) if terms else {}
            for query, terms in zip(queries, tokens(queries), strict=True)
        }
        seconds[name] = time.perf_counter() - started
    return {"runs": runs, "seconds": seconds}


def rank_with_rank_bm25(folder: Path, settings: Mapping[str, Any]) -> Found:
    """Rank by BM25Okapi on our terms, and on words split at blanks as its documentation shows."""
    from rank_bm25 import BM25Okapi

    documents, queries = read(folder / "documents.jsonl"), read(folder / "queries.jsonl")
    ways: dict[str, Callable[[dict[str, Any]], list[str]]] = {
        "rank-bm25": lambda one: spread(one["terms"]),
        "rank-bm25 own terms": lambda one: one["text"].split(" "),
    }
    names, runs, seconds = [one["id"] for one in documents], {}, {}
    for name, tokens in ways.items():
        started = time.perf_counter()
        index = BM25Okapi([tokens(one) or [""] for one in documents], k1=settings["k1"], b=settings["b"])
        runs[name] = {
            query["id"]: best(index.get_scores(tokens(query)), names, settings["depth"]) for query in queries
        }
        seconds[name] = time.perf_counter() - started
    return {"runs": runs, "seconds": seconds}


def rank_with_sentence_transformers(folder: Path, settings: Mapping[str, Any]) -> Found:
    """Rank by cosine to every document, vectors in fp32, written as OpenSearch does: (1 + cosine) / 2."""
    from sentence_transformers import SentenceTransformer

    documents, queries = read(folder / "documents.jsonl"), read(folder / "queries.jsonl")
    model = SentenceTransformer(settings["model"], device="cpu")
    started = time.perf_counter()
    vectors = model.encode([one["text"] for one in documents], normalize_embeddings=True)
    asked = model.encode([one["text"] for one in queries], normalize_embeddings=True)
    names = [one["id"] for one in documents]
    run = {
        query["id"]: best((1 + row) / 2, names, settings["depth"])
        for query, row in zip(queries, asked @ vectors.T, strict=True)
    }
    return {
        "runs": {"sentence-transformers": run},
        "seconds": {"sentence-transformers": time.perf_counter() - started},
    }


def fuse_with_ranx(folder: Path, settings: Mapping[str, Any]) -> Found:
    """Fuse the two given runs by min-max with equal weights, and by reciprocal ranks."""
    import ranx

    given = json.loads((folder / "runs.json").read_text(encoding="utf-8"))
    pair = [ranx.Run({query: run for query, run in one.items() if run}) for one in given.values()]
    runs, seconds = {}, {}
    ways: dict[str, dict[str, Any]] = {
        "ranx min_max": {"norm": "min-max", "method": "wsum", "params": {"weights": (0.5, 0.5)}},
        "ranx rrf": {"norm": None, "method": "rrf", "params": {"k": 60}},
    }
    for name, options in ways.items():
        started = time.perf_counter()
        fused = ranx.fuse(runs=[ranx.Run(run.to_dict()) for run in pair], **options)
        runs[name] = fused.to_dict()
        seconds[name] = time.perf_counter() - started
    return {"runs": runs, "seconds": seconds}


PEERS: dict[str, Callable[[Path, Mapping[str, Any]], Found]] = {
    "pyserini": rank_with_pyserini,
    "bm25s": rank_with_bm25s,
    "rank-bm25": rank_with_rank_bm25,
    "sentence-transformers": rank_with_sentence_transformers,
    "ranx": fuse_with_ranx,
}
PACKAGES = {
    "pyserini": ["pyserini"],
    "bm25s": ["bm25s", "PyStemmer", "numpy"],
    "rank-bm25": ["rank-bm25"],
    "sentence-transformers": ["sentence-transformers", "transformers", "torch"],
    "ranx": ["ranx"],
}


if __name__ == "__main__":
    main()
