"""Small documents written for the tests."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from hybridr.cluster.connection import Cluster, path_of
from hybridr.indexing.reindexing import ReindexResult, reindex
from hybridr.indexing.settings import ReindexSettings
from hybridr.records import Query
from support.hashing import HashingEncoder

WORDS = (
    "anchor basket candle dragon engine forest garden harbor island jacket kettle ladder "
    "marble needle orange pillow quartz ribbon saddle timber umbrella velvet window yellow zephyr"
).split()


def text_number(number: int) -> str:
    """A short text, different for each number."""
    return " ".join(WORDS[(number * step + step) % len(WORDS)] for step in (1, 3, 7, 11, 13)) + f" n{number}"


def create(
    cluster: Cluster,
    index: str,
    properties: dict[str, Any] | None = None,
    settings: dict[str, Any] | None = None,
    **mappings: Any,
) -> None:
    """Create an index without replicas, or with settings of one's own."""
    mappings = mappings | ({"properties": properties} if properties else {})
    body = {"settings": settings or {"number_of_replicas": 0}, "mappings": mappings}
    cluster.request("PUT", path_of(index), body)


def fill_index(cluster: Cluster, index: str, count: int, **body: Any) -> None:
    """Create an index with `count` documents that have `text`, `price` and `tags`."""
    properties = {"text": {"type": "text"}, "price": {"type": "float"}, "tags": {"type": "keyword"}}
    default = {"settings": {"number_of_replicas": 0}, "mappings": {"properties": properties}}
    cluster.request("PUT", path_of(index), default | body)
    put_documents(cluster, index, range(count))


def reindexed(
    cluster: Cluster,
    index: str,
    count: int,
    encoder: Any = None,
    chosen: ReindexSettings | None = None,
    **body: Any,
) -> ReindexResult:
    """Fill an index and reindex it."""
    fill_index(cluster, index, count, **body)
    return reindex(cluster, index, encoder or HashingEncoder(), chosen)


def drop_indices(cluster: Cluster, pattern: str) -> None:
    """Delete the indices that a pattern names, also read-only ones, in one change of the cluster."""
    infos = cluster.indices(pattern)
    names = ",".join(info.name for info in infos)
    if any(name.startswith("index.blocks.") for info in infos for name in info.settings):
        cluster.request("PUT", path_of(names, "_settings"), {"index.blocks.read_only": None})
    if names:
        cluster.request("DELETE", path_of(names))


@contextmanager
def filled_and_reindexed(
    cluster: Cluster,
    name: str,
    count: int,
    encoder: Any = None,
    chosen: ReindexSettings | None = None,
    **body: Any,
) -> Iterator[str]:
    """Fill an index and reindex it; it goes afterwards with all that was made of it."""
    reindexed(cluster, name, count, encoder, chosen, **body)
    yield name
    drop_indices(cluster, f"{name}*")


def put_documents(cluster: Cluster, index: str, numbers: Any, suffix: str = "") -> None:
    """Index documents by their numbers."""
    documents = {
        f"d{n}": {"text": text_number(n) + suffix, "price": n / 10, "tags": ["a", f"t{n % 3}"]}
        for n in numbers
    }
    put(cluster, index, documents)


def part_of(beir: Path, folder: Path, queries: int, others: int) -> Path:
    """Write a part of a BEIR folder: some queries, all that is relevant to them, and some other documents."""
    chance = random.Random(5)
    header, *judged = (beir / "qrels" / "test.tsv").read_text(encoding="utf-8").splitlines()
    chosen = set(chance.sample(sorted({line.split("\t")[0] for line in judged}), queries))
    judged = [line for line in judged if line.split("\t")[0] in chosen]
    relevant = {line.split("\t")[1] for line in judged}
    documents = (beir / "corpus.jsonl").read_text(encoding="utf-8").splitlines()
    rest = [line for line in documents if json.loads(line)["_id"] not in relevant]
    kept = {*chance.sample(rest, min(others, len(rest))), *(set(documents) - set(rest))}
    (folder / "qrels").mkdir(parents=True)
    (folder / "qrels" / "test.tsv").write_text("\n".join([header, *judged]) + "\n", encoding="utf-8")
    (folder / "corpus.jsonl").write_text("\n".join(one for one in documents if one in kept) + "\n", "utf-8")
    (folder / "queries.jsonl").write_bytes((beir / "queries.jsonl").read_bytes())
    return folder


def bulk(cluster: Cluster, index: str, lines: list[dict[str, Any]]) -> None:
    """Send action and source lines; every item must be taken."""
    body = "".join(json.dumps(line) + "\n" for line in lines)
    answer = cluster.request("POST", path_of(index, "_bulk"), body, {"refresh": "true"})
    assert not answer["errors"], answer


def put(
    cluster: Cluster, index: str, documents: Mapping[str, Any], routings: Mapping[str, str] | None = None
) -> None:
    """Index documents by their ids, with routings where they have one."""
    lines: list[dict[str, Any]] = []
    for doc_id, source in documents.items():
        routing = {"routing": routings[doc_id]} if routings and doc_id in routings else {}
        lines += [{"index": {"_id": doc_id, **routing}}, source]
    bulk(cluster, index, lines)


def add_alias(cluster: Cluster, index: str, *aliases: str, **definition: Any) -> None:
    """Give an index aliases, all of one definition."""
    actions = [{"add": {"index": index, "alias": alias, **definition}} for alias in aliases]
    cluster.request("POST", "/_aliases", {"actions": actions})


@contextmanager
def having(cluster: Cluster, settings: dict[str, Any], index: str | None = None) -> Iterator[None]:
    """Have settings of an index, or of the cluster, for the length of the block."""

    def put_settings(values: dict[str, Any]) -> None:
        if index:
            cluster.request("PUT", path_of(index, "_settings"), values)
        else:
            cluster.request("PUT", "/_cluster/settings", {"persistent": values})

    put_settings(settings)
    try:
        yield
    finally:
        put_settings(dict.fromkeys(settings))


def clone(cluster: Cluster, index: str, copy: str, **settings: Any) -> None:
    """Clone an index, which takes no writes meanwhile, and give the clone settings of its own."""
    with having(cluster, {"index.blocks.write": True}, index):
        body = {"settings": {"index.blocks.write": None, "index.number_of_replicas": 0, **settings}}
        cluster.request("POST", path_of(index, "_clone", copy), body)
        cluster.wait_until_usable(copy)


def sources(cluster: Cluster, index: str) -> dict[str, dict[str, Any]]:
    """Every document of an index by id, less hybridr's own fields."""
    from hybridr.cluster.reading import read_documents

    return {
        found.doc_id: {name: value for name, value in found.source.items() if not name.startswith("hybridr_")}
        for found in read_documents(cluster, index)
    }


def vectors(cluster: Cluster, index: str) -> dict[str, list[float]]:
    """The vector of each document by its id."""
    from hybridr.cluster.reading import read_documents

    found = {one.doc_id: one.source.get("hybridr_vector") for one in read_documents(cluster, index)}
    return {doc_id: np.float32(vector).tolist() for doc_id, vector in found.items() if vector}


def assert_vectors_of_texts(cluster: Cluster, index: str) -> None:
    """Every document has the vector of its text."""
    cluster.refresh(index)
    texts = [source["text"] for source in sources(cluster, index).values()]
    expected = HashingEncoder().encode_documents(texts)
    np.testing.assert_allclose(list(vectors(cluster, index).values()), expected, atol=1e-5)


def fill_uneven(cluster: Cluster, index: str, shards: int = 1, **text: Any) -> None:
    """Create an index with 240 documents of very different lengths; `text` maps one of its two fields."""
    settings: dict[str, Any] = {"number_of_shards": shards, "number_of_replicas": 0}
    settings |= {"similarity.mine": {"type": "BM25", "b": 0}}
    create(cluster, index, {"title": {"type": "text"}, "text": {"type": "text", **text}}, settings)
    dice, documents = random.Random(5), {}
    odds = [1 / (place + 1) for place in range(len(WORDS))]
    for number in range(240):
        words = dice.choices(WORDS, odds, k=dice.choice([4, 12, 40, 150]))
        title = " ".join(dice.choices(WORDS, odds, k=2))
        documents[f"d{number}"] = {"title": title, "text": " ".join(words)}
    put(cluster, index, documents)


def beir_folder(folder: Path, documents: int = 20) -> Path:
    (folder / "qrels").mkdir(parents=True)
    records = [
        {"_id": f"d{n}", "title": f"Title {n}", "text": text_number(n), "year": n} for n in range(documents)
    ]
    (folder / "corpus.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    (folder / "queries.jsonl").write_text(json.dumps({"_id": "q1", "text": text_number(3)}) + "\n")
    (folder / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq1\td3\t1\n")
    return folder


def judged_by_number(numbers: Iterable[int], text: Callable[[int], str] = text_number) -> Any:
    """Give a query for each of these documents, which alone is relevant to it: queries and judgements."""
    numbers = list(numbers)
    queries = [Query(f"q{number}", text(number)) for number in numbers]
    return queries, {f"q{number}": {f"d{number}": 1} for number in numbers}


def update(cluster: Cluster, index: str, doc_id: str, **changes: Any) -> None:
    cluster.request("POST", path_of(index, "_update", doc_id), {"doc": changes}, {"refresh": "true"})


def delete(cluster: Cluster, index: str, doc_id: str) -> None:
    cluster.request("DELETE", path_of(index, "_doc", doc_id), params={"refresh": "true"})


def reindexed_alias(cluster: Cluster, name: str, count: int) -> str:
    """Fill an index of 2 shards and reindex it; give the alias that clients write to."""
    fill_index(cluster, name, count, settings={"number_of_replicas": 0, "number_of_shards": 2})
    return reindex(cluster, name, HashingEncoder()).alias


def touching_pipeline(cluster: Cluster, index: str) -> str:
    """Make an ingest pipeline that marks what goes through it, and give its name."""
    processors = [{"set": {"field": "touched", "value": True}}]
    cluster.request("PUT", f"/_ingest/pipeline/{index}-pipeline", {"processors": processors})
    return f"{index}-pipeline"
