"""Do unchanged clients get the ranking of `hybridr search`, and what does each way of deploying give?

    hybridr node start --name ways --with-ml --with-natives --heap 3g
    python benchmarks/run.py ways-of-asking FOLDER [--sets cranfield,...] [--url URL] [--ways client,...]

FOLDER holds collections in BEIR layout; an index with vectors is behind each one's name. Every judged query
is asked through plain REST with 10 hits: by `multi_match` over the searched fields before anything is
deployed, by the same body under each form of the transparent way, and by the `hybrid` queries of `client`,
`neural` and `local`; of more than QUERIES judged ones, as many are spread over them. p50 is that of the
transparent way beside the same body as the server wrote it, sent by hand, in turns query by query, when the
server has seen the query before: no encoding is in it. What is measured is kept.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any, NamedTuple

import orjson
import urllib3

from hybridr import Search, connect
from hybridr.cluster.connection import Cluster, path_of
from hybridr.deploying.deploying import deploy, undeploy
from hybridr.deploying.settings import DeploySettings
from hybridr.evaluation.evaluation import checked_qrels, means, parse_measure, values_of
from hybridr.files.formats import read_beir
from hybridr.records import Query, Run
from hybridr.search.encoders import encoder_for
from hybridr.search.fusions.pipeline import hybrid_query
from hybridr.search.settings import SearchSettings
from hybridr_bench.reindexing import serving
from study import (
    LEAD,
    RESULTS,
    Record,
    Section,
    add_collections,
    current,
    machine_record,
    table,
    write_result,
)

RESULT, HITS, PATIENCE_S = "ways-of-asking", 10, 60.0
FORMS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "transparent": ("transparent", {}, {}),
    "transparent --recall all": ("transparent", {"recall": "all"}, {}),
    "transparent --fusion pipeline": ("transparent", {}, {"fusion": "pipeline"}),
    "client": ("client", {}, {}),
    "neural": ("neural", {}, {}),
    "local": ("local", {}, {}),
}
"""Name -> the way, its settings of deploying, and those of searching."""
SEARCH, PLAIN = "hybridr search", "not deployed"
NOTES = """\
nDCG@10 through REST of every judged query, by what the client sends: an ordinary `multi_match` (not deployed,
transparent), or a `hybrid` query with a vector (client) or text (neural, local). "left alone" counts the
queries that the transparent way does not rank: no document has any of their words. Times are the p50 of the
transparent way beside the same rewritten body sent by hand, on cores that were busy with other work (load 20
to 45 on four of them): only the ratio says anything."""


class Place(NamedTuple):
    """A collection behind its name, and the server beside it."""

    cluster: Cluster
    search: Search
    server: str


def options(parser: argparse.ArgumentParser) -> None:
    """Take the collections and the cluster."""
    add_collections(parser, ["cranfield"])
    parser.add_argument("--url", help="cluster (default: HYBRIDR_URL, else the embedded node)")
    parser.add_argument("--queries", type=int, default=1000, help="at most, of each collection")
    parser.add_argument("--ways", default=",".join(FORMS), help="forms of deploying, as a,b")
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="FOLDER")


def measure(given: argparse.Namespace) -> None:
    """Measure every collection that has no result of today's code."""
    cluster = connect(given.url)
    for name in given.sets:
        file = given.results / RESULT / f"{name}.json"
        if current(file):
            continue
        _, queries, qrels = read_beir(given.folder / name)
        judged = [query for query in queries if qrels.get(query.query_id)]
        judged = judged[:: max(1, -(-len(judged) // given.queries))]
        found = measured(cluster, name, judged, qrels, given.ways.split(","))
        write_result(file, found | {"machine": machine_record()})
        print(render({name: found}), flush=True)


def measured(cluster: Cluster, name: str, queries: list[Query], qrels: Any, ways: list[str]) -> Record:
    """Ask one collection in every way, one after the other."""
    search = Search(cluster, name)
    folder: Any = encoder_for(cluster, search.info, None)
    runs: dict[str, Run] = {SEARCH: search.run(queries, HITS)}
    timed: Record = {}
    with serving(folder.folder, cluster.url, name, rank_timeout_s=PATIENCE_S) as url:
        place = Place(cluster, search, url)
        # The server has seen every query before it counts: ml-commons waits for a second at most.
        ranked = [rewritten_by(place, words(search, one.text)) for one in queries]
        runs[PLAIN] = asked(place, {one.query_id: words(search, one.text) for one in queries})
        for form in ways:
            way, deploying, searching = FORMS[form]
            settings = DeploySettings(way=way, server=url, set_cluster_settings=True, **deploying)
            deploy(cluster, name, settings, SearchSettings(**searching))
            try:
                runs[form] = asked(place, {one.query_id: body(search, form, one.text) for one in queries})
                if form == "transparent --recall all":
                    timed = times(place, [words(search, one.text) for one in queries], ranked)
            finally:
                undeploy(cluster, name)
    grades, measures, ids = checked_qrels(qrels), [parse_measure(LEAD)], [one.query_id for one in queries]
    found = {form: means(values_of(run, grades, measures, ids))[LEAD] for form, run in runs.items()}
    return {
        "documents": cluster.count(search.info.name),
        "queries": len(queries),
        "left alone": sum("rescore" not in one for one in ranked),
        LEAD: {form: round(value, 5) for form, value in found.items()},
        "p50": timed,
    }


def words(search: Search, text: str) -> Record:
    """Write what an ordinary client sends."""
    query = {"multi_match": {"query": text, "type": "most_fields", "fields": list(search.lexical_fields)}}
    return {"query": query, "size": HITS, "_source": False}


def body(search: Search, form: str, text: str) -> Record:
    """Write what the client of a form sends."""
    found = words(search, text)
    if form.startswith("transparent"):
        return found
    field, depth = search.info.record.vector_field, search.settings.depth
    dense = {"neural": {field: {"query_text": text, "k": depth}}}
    if form == "client":
        assert search.encoder is not None
        dense = search.dense_leg(search.encoder.encode_queries([text])[0])
    return found | {"query": hybrid_query([found["query"], dense], depth)}


def asked(place: Place, bodies: dict[str, Record]) -> Run:
    """Ask every body as clients do, through the index's default pipeline."""
    path = path_of(place.search.info.name, "_search")
    answers = {name: place.cluster.request("POST", path, body) for name, body in bodies.items()}
    return {
        name: {hit["_id"]: hit["_score"] for hit in answer["hits"]["hits"]}
        for name, answer in answers.items()
    }


def rewritten_by(place: Place, body: Record) -> Record:
    """Give the body that the server makes of a client's."""
    answer = urllib3.request("POST", f"{place.server}/v1/rank", json=body, timeout=PATIENCE_S)
    found: Record = json.loads(answer.json()["body"])
    return found


def times(place: Place, bodies: list[Record], by_hand: list[Record]) -> Record:
    """Time each body through the deployment, and as the server rewrites it, in turns; p50 in ms."""
    pool, path = urllib3.PoolManager(), place.cluster.url + path_of(place.search.info.name, "_search")
    lanes = {"deployed": (path, bodies), "by hand": (f"{path}?search_pipeline=_none", by_hand)}
    taken: dict[str, list[float]] = {lane: [] for lane in lanes}
    for number in range(len(bodies)):
        for lane, (target, written) in lanes.items():
            sent = orjson.dumps(written[number])
            started = time.perf_counter()
            pool.request("POST", target, body=sent, headers={"Content-Type": "application/json"})
            taken[lane].append(time.perf_counter() - started)
    p50 = {f"{lane} ms": round(1000 * statistics.median(seconds), 2) for lane, seconds in taken.items()}
    ratios = [a / b for a, b in zip(*taken.values(), strict=True)]
    return p50 | {"ratio": round(statistics.median(ratios), 3)}


def render(results: Record) -> str:
    """Show the means of every collection, and of all of them."""
    forms = [SEARCH, PLAIN, *FORMS]
    rows = []
    for name, found in results.items():
        row = [name, *(shown(found[LEAD].get(form)) for form in forms), str(found["left alone"])]
        p50 = found["p50"]
        rows.append(
            [
                *row,
                f"{p50['deployed ms']:.1f} / {p50['by hand ms']:.1f}" if p50 else "",
                f"{p50['ratio']:.2f}" if p50 else "",
            ]
        )
    if len(results) > 1:
        every = [[found[LEAD].get(form) for found in results.values()] for form in forms]
        means = [shown(statistics.fmean(one)) if None not in one else "" for one in every]
        rows.append([f"mean of {len(results)}", *means, "", "", ""])
    return table(["collection", *forms, "left alone", "p50 ms / by hand", "ratio"], rows) + "\n\n" + NOTES


def shown(value: float | None) -> str:
    """Show a mean, or nothing where a form was not measured."""
    return "" if value is None else f"{value:.4f}"


SECTIONS = [
    Section(
        *(57, "Ranking through REST, by way of deploying", RESULT),
        *("python benchmarks/run.py ways-of-asking FOLDER", render),
    )
]
