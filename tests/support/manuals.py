"""Two open collections as one index of an application: its mapping, its documents and its requests."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from hybridr.cluster.connection import Cluster, path_of
from hybridr.files.formats import read_jsonl, read_qrels
from support.corpus import put
from support.matrix import KEPT, PROPERTIES, RANKED, Asked
from support.matrix import TEXT as TEXT_THERE

NAME, ALIAS = "manuals-v1", "manuals"
PARTS = {"cisi": 80, "cosqa": 200}
"""Documents that are taken of each collection: enough that judged queries tell systems apart."""
QUERIES = {"cisi": 25, "cosqa": 25}
TEXT = "python list of information retrieval systems"
ANALYSIS = {
    "filter": {"same": {"type": "synonym_graph", "synonyms": ["catalog, catalogue", "dict, dictionary"]}},
    "analyzer": {
        "stripped": {
            "type": "custom",
            "tokenizer": "standard",
            "char_filter": ["html_strip"],
            "filter": ["lowercase", "porter_stem"],
        },
        "asked": {"type": "custom", "tokenizer": "standard", "filter": ["lowercase", "same", "porter_stem"]},
    },
}
READ = {"type": "text", "analyzer": "stripped", "search_analyzer": "asked"}
MAPPING = {
    "settings": {"number_of_shards": 3, "number_of_replicas": 0, "analysis": ANALYSIS},
    "mappings": {
        "dynamic": "strict",
        "properties": PROPERTIES
        | {
            "title": {**READ, "fields": {"raw": {"type": "keyword", "ignore_above": 256}}},
            "text": READ,
            "summary": {"type": "text", "analyzer": "english"},
            "tags": {"type": "keyword"},
            "vendor": {"properties": {"name": {"type": "text"}, "country": {"type": "keyword"}}},
        },
    },
    "aliases": {ALIAS: {}},
}


def documents(folders: dict[str, Path]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Give ids and sources: HTML in bodies, fields that some lack, an object, nested comments."""
    for part, folder in folders.items():
        for number, (_, record) in enumerate(read_jsonl(folder / "corpus.jsonl")):
            if number == PARTS[part]:
                break
            source = {
                "text": f'<div class="{part}"><p>{record["text"]}</p></div>',
                "tags": [part, f"t{number % 7}"],
                "brand": f"b{number % 4}",
                "price": number % 60 + 0.5,
                "stock": number % 17,
                "date": f"2026-{1 + number % 12:02}-{1 + number % 27:02}",
                "comments": [{"author": f"a{number % 5}", "stars": number % 6, "said": "useful"}],
                "vendor": {"name": f"vendor {number % 9}", "country": "ch" if number % 2 else "nl"},
            }
            if record["title"]:
                source |= {"title": record["title"]}
            if number % 3 == 0:
                source |= {"summary": " ".join(record["text"].split()[:20])}
            yield f"{part}-{record['_id']}", source


def make(cluster: Cluster, folders: dict[str, Path]) -> None:
    """Create the index; every other document goes to one shard of the three."""
    cluster.request("PUT", path_of(NAME), MAPPING)
    sources = dict(documents(folders))
    put(cluster, NAME, sources, dict.fromkeys(list(sources)[1::2], "big"))


def judged(folders: dict[str, Path], into: Path) -> Path:
    """Write the judged queries of both whose relevant documents are in the index, as a BEIR folder."""
    (into / "qrels").mkdir(parents=True)
    queries, lines = [], ["query-id\tcorpus-id\tscore"]
    for part, folder in folders.items():
        there = {record["_id"] for _, record in list(read_jsonl(folder / "corpus.jsonl"))[: PARTS[part]]}
        texts = {record["_id"]: record["text"] for _, record in read_jsonl(folder / "queries.jsonl")}
        kept = 0
        qrels = {}
        for split in sorted((folder / "qrels").glob("*.tsv")):
            qrels |= read_qrels(split)
        for query_id, grades in qrels.items():
            found = [doc_id for doc_id, grade in grades.items() if grade > 0 and doc_id in there]
            if not found or kept == QUERIES[part]:
                continue
            kept += 1
            queries.append({"_id": f"{part}-{query_id}", "text": texts[query_id]})
            lines += [f"{part}-{query_id}\t{part}-{doc_id}\t1" for doc_id in found]
    (into / "queries.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in queries))
    (into / "qrels" / "test.tsv").write_text("\n".join(lines) + "\n")
    return into


def requests() -> list[Asked]:
    """Give the application's requests: those of `support.matrix`, for a text of this index."""
    return [asking(one) for one in (*RANKED, *KEPT)]


def asking(one: Asked) -> Asked:
    """Put this index's words in the place of those there."""
    words = dict(zip(TEXT_THERE.split(), TEXT.split()[:1] + TEXT.split()[3:5], strict=True))
    body, params = (json.dumps(part).replace(TEXT_THERE, TEXT) for part in (one.body, one.params))
    for there, here in words.items():
        body, params = body.replace(there, here), params.replace(there, here)
    return replace(one, body=json.loads(body), params=json.loads(params))
