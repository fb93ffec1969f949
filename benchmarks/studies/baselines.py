"""Do our baselines rank like peers: BM25, RM3, dense and fusion on the same documents and queries?

    python benchmarks/run.py baselines FOLDER --peers PYTHON [--sets cranfield,npl] [--only pyserini,bm25s]

FOLDER holds collections in BEIR layout. Our side is the product: `hybridr load` and `hybridr reindex` into
the cluster of `HYBRIDR_URL`, else the running embedded node, one index per collection and of its name; what
is there already is searched and not written. PYTHON is an interpreter that has the peers
(`make bench-baselines` makes one). Of many queries a random 1,000 are asked. What is measured stays in the
file: the same command goes on.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import peers
from conditions import the_twelve
from hybridr import Query, connect, load_encoder
from hybridr.cluster.aliases import alias_target
from hybridr.cluster.connection import Cluster, path_of
from hybridr.cluster.destinations import default_alias, resolve
from hybridr.cluster.loading import CONTENTS, load
from hybridr.cluster.settings import LoadSettings
from hybridr.encoders.export.exporting import minilm_encoder
from hybridr.encoders.export.fetched_models import minilm
from hybridr.evaluation.evaluation import evaluate
from hybridr.files.formats import read_beir
from hybridr.files.local import write_json
from hybridr.indexing.reindexing import reindex
from hybridr.records import Document, Qrels, Run
from hybridr.search.checks import Mode
from hybridr.search.feedback import FEEDBACK_DOCUMENTS, FEEDBACK_TERMS, ORIGINAL_WEIGHT
from hybridr.search.fusions.pipeline import fuse
from hybridr.search.search import Search
from hybridr.search.settings import SearchSettings
from rankings import Formula, explain
from study import (
    HERE,
    LEAD,
    Record,
    Section,
    add_collections,
    add_json,
    current,
    listed,
    machine_of,
    machine_record,
    table,
    write_result,
)

QUERIES, SEED, DEPTH, PAGE = 1000, 0, 100, 200
MEASURES = (LEAD, "R@100")
PEERS = {
    "pyserini": {
        "pyserini bm25": "bm25",
        "pyserini rm3": "rm3",
        "pyserini bm25 .9/.4": "bm25",
        "pyserini rm3 .9/.4": "rm3",
    },
    "formula": {"formula": "bm25", "formula exact lengths": "bm25"},
    "bm25s": {"bm25s": "bm25", "bm25s own terms": "bm25"},
    "rank-bm25": {"rank-bm25": "bm25", "rank-bm25 own terms": "bm25"},
    "sentence-transformers": {"sentence-transformers": "dense"},
    "ranx": {"ranx min_max": "min_max", "ranx rrf": "rrf"},
}
"""peer -> its run -> the run of ours that it is held against."""
DENSE = ("sentence-transformers", "ranx")
EXACT = "formula exact lengths"


def options(parser: argparse.ArgumentParser) -> None:
    """Take the collections, and the peers."""
    add_collections(parser, the_twelve())
    parser.add_argument("--only", type=listed, default=list(PEERS), metavar="A,B", help="the peers to run")
    parser.add_argument("--peers", default="python3", metavar="PYTHON", help="the interpreter that has them")
    add_json(parser, "baselines")


def measure(given: argparse.Namespace) -> None:
    """Measure every collection and peer that is not in the file yet."""
    cluster, settings = connect(), settings_now()
    record = current(given.json, settings) or {
        "machine": machine_record("ir-measures"),
        "settings": settings,
        "versions": {},
        "sets": {},
    }
    for name in given.sets:
        done = record["sets"].setdefault(name, {"peers": {}})
        if wanted := [peer for peer in given.only if peer not in done["peers"]]:
            for found in measure_set(cluster, given.folder / name, wanted, given.peers, settings):
                record["opensearch"] = cluster.info["version"]["number"]
                merge(record, name, found)
                write_result(given.json, record)
            print(name, *lines_of(done), sep="\n", flush=True)


def settings_now() -> Record:
    """Give what the figures depend on."""
    chosen, rm3 = LoadSettings(index="any"), [FEEDBACK_DOCUMENTS, FEEDBACK_TERMS, ORIGINAL_WEIGHT]
    own = {"k1": chosen.k1, "b": chosen.b, "depth": DEPTH, "queries": QUERIES, "seed": SEED}
    return own | {"rm3": rm3}


def merge(record: dict[str, Any], name: str, found: dict[str, Any]) -> None:
    """Add what one peer was measured at."""
    record["versions"] |= found.pop("versions")
    done = record["sets"][name]
    done["peers"][found.pop("peer")] = found.pop("found")
    done["ours"] = done.get("ours", {}) | found.pop("ours")
    done["seconds"] = done.get("seconds", {}) | found.pop("seconds")
    done |= found


def lines_of(found: dict[str, Any]) -> Iterator[str]:
    """Tell a collection's figures, a line for each run."""
    for runs in found["peers"].values():
        for name, row in runs["runs"].items():
            yield f"  {name} {row[LEAD]:.4f} {row['difference']:+.4f} {row['explained']}"


def measure_set(
    cluster: Cluster, folder: Path, wanted: Sequence[str], python: str, settings: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    """Rank one collection with us and each of the peers."""
    corpus, queries, qrels = read_beir(folder)
    whole = len(queries)
    queries = random.Random(SEED).sample(queries, QUERIES) if whole > QUERIES else queries
    qrels = {query.query_id: qrels[query.query_id] for query in queries}
    ours, seconds = our_runs(cluster, folder, queries, dense=any(peer in DENSE for peer in wanted))
    with tempfile.TemporaryDirectory() as scratch:
        work = Path(scratch)
        hand_over(work, cluster, folder.name, corpus, queries)
        write_json(work / "runs.json", {name: ours[name] for name in ("bm25", "dense") if name in ours})
        write_json(work / "settings.json", settings | {"model": str(minilm())})
        by_formula = rank_by_formula(work, settings)
        for peer in wanted:
            theirs = by_formula if peer == "formula" else rank_by_peer(peer, python, work)
            yield {
                "peer": peer,
                "documents": len(corpus),
                "queries": len(queries),
                "of_queries": whole,
                "versions": theirs["versions"],
                "ours": means(ours, queries, qrels),
                "found": held_against(ours, theirs, peer, queries, qrels, by_formula["runs"][EXACT]),
                "seconds": {way: round(took, 2) for way, took in (seconds | theirs["seconds"]).items()},
            }


def rank_by_peer(peer: str, python: str, work: Path) -> dict[str, Any]:
    """Let a peer rank what was handed over."""
    command = [python, str(HERE / "peers.py"), peer, str(work)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{peer} ended with {done.returncode}: {done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads((work / f"{peer}.json").read_text(encoding="utf-8"))
    return found


def rank_by_formula(work: Path, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Rank in this process, lengths as Lucene stores them and exact."""
    documents, queries = peers.read(work / "documents.jsonl"), peers.read(work / "queries.jsonl")
    names, terms = [one["id"] for one in documents], [one["terms"] for one in documents]
    runs = {}
    for name, in_bytes in {"formula": True, EXACT: False}.items():
        formula = Formula(terms, settings["k1"], settings["b"], in_bytes=in_bytes)
        runs[name] = {
            query["id"]: peers.best(formula.scores(query["terms"]), names, settings["depth"])
            for query in queries
        }
    return {"runs": runs, "seconds": {}, "versions": {}}


def our_runs(
    cluster: Cluster, folder: Path, queries: list[Query], *, dense: bool
) -> tuple[dict[str, Run], dict[str, float]]:
    """Search with the product; load and reindex first where the cluster lacks the collection."""
    name, vectors = folder.name, default_alias(folder.name)
    load(cluster, folder, LoadSettings(index=name))
    if dense and alias_target(cluster, vectors) is None:
        reindex(cluster, name, load_encoder(minilm_encoder()))
    # By this alias, as `collections` may have put the vectors of an adapted encoder behind another one.
    name = vectors if dense else name
    ways: dict[str, tuple[Mode, Any]] = {"bm25": ("lexical", None), "rm3": ("lexical", "rm3")}
    runs, seconds = {}, {}
    for way, (mode, feedback) in (ways | ({"dense": ("dense", None)} if dense else {})).items():
        settings = SearchSettings(depth=DEPTH, tuned=False)
        search = Search(cluster, name, None, mode, feedback, settings=settings)
        started = time.perf_counter()
        runs[way] = search.run(queries, DEPTH)
        seconds[way] = time.perf_counter() - started
    if dense:
        pairs = {query: [runs["bm25"][query], runs["dense"][query]] for query in runs["dense"]}
        for way in ("min_max", "rrf"):
            runs[way] = {query: fuse(pair, normalization=way) for query, pair in pairs.items()}
    return runs, seconds


def hand_over(
    work: Path, cluster: Cluster, name: str, corpus: Sequence[Document], queries: Sequence[Query]
) -> None:
    """Write documents and queries, with their terms in our index, for the peers to read."""
    index = resolve(cluster, name).name
    given = {
        "documents": [(one.doc_id, one.contents, {"_id": one.doc_id}) for one in corpus],
        "queries": [(one.query_id, one.text, {"doc": {CONTENTS: one.text}}) for one in queries],
    }
    for kind, rows in given.items():
        with (work / f"{kind}.jsonl").open("w", encoding="utf-8") as lines:
            for start in range(0, len(rows), PAGE):
                part = rows[start : start + PAGE]
                for (key, text, _), terms in zip(part, terms_of(cluster, index, part), strict=True):
                    lines.write(json.dumps({"id": key, "text": text, "terms": terms}) + "\n")


def terms_of(cluster: Cluster, index: str, rows: Sequence[tuple[str, str, Any]]) -> list[dict[str, int]]:
    """Give term -> frequency of each, as the index holds it or would hold it."""
    options = {"fields": [CONTENTS], "field_statistics": False, "positions": False, "offsets": False}
    body = {"docs": [wanted | options for _, _, wanted in rows]}
    found = cluster.request("POST", path_of(index, "_mtermvectors"), body)["docs"]
    vectors = [one.get("term_vectors", {}).get(CONTENTS, {"terms": {}})["terms"] for one in found]
    return [{term: stated["term_freq"] for term, stated in vector.items()} for vector in vectors]


def held_against(
    ours: Mapping[str, Run],
    theirs: dict[str, Any],
    peer: str,
    queries: list[Query],
    qrels: Qrels,
    exact: Run,
) -> dict[str, Any]:
    """Give the values of a peer's runs, their distance from ours, and what the rankings differ in.

    Lexical runs are explained a second time, against our terms and BM25 with exact lengths.
    """
    own, values = means(ours, queries, qrels), means(theirs["runs"], queries, qrels)
    runs = {
        name: values[name]
        | {
            "ours": way,
            "difference": own[way][LEAD] - values[name][LEAD],
            "explained": explain(ours[way], theirs["runs"][name]),
            **({"with_exact_lengths": explain(exact, theirs["runs"][name])} if way == "bm25" else {}),
        }
        for name, way in PEERS[peer].items()
    }
    return {"runs": runs} | ({"terms": theirs["terms"]} if "terms" in theirs else {})


def means(runs: Mapping[str, Run], queries: list[Query], qrels: Qrels) -> dict[str, dict[str, float]]:
    """Give the mean of each measure for each run."""
    return evaluate(runs, queries, qrels, MEASURES).systems


BARS = {"pyserini bm25": ("BM25", 0.002), "pyserini rm3": ("RM3", 0.004)}
TABLES = {
    "The same terms, k1 and b": {"bm25": ["pyserini bm25", "bm25s", "rank-bm25"], "rm3": ["pyserini rm3"]},
    "Peers unchanged": {
        "bm25": ["pyserini bm25 .9/.4", "bm25s own terms", "rank-bm25 own terms"],
        "rm3": ["pyserini rm3 .9/.4"],
    },
    "Dense and fusion, the same two runs": {
        "dense": ["sentence-transformers"],
        "min_max": ["ranx min_max"],
        "rrf": ["ranx rrf"],
    },
}
"""title -> our run -> the peers' runs beside it."""

NOTES = """- **Terms.** OpenSearch's analyzer `english` and Pyserini's default are the same chain: standard
  tokenizer, possessive ending, lower case, Lucene's English stop words, Porter. The peers that take terms
  get those of our index.
- **Length norms.** Lucene stores the length of a document in one byte. `formula` is BM25 written in
  `rankings.py` with lengths read back from that byte. With exact lengths it is what bm25s computes.
- **Ties.** Pyserini rounds scores to four decimals and orders equal ones by ascending id. trec_eval, and
  therefore hybridr, orders them by descending id. Ties are queries whose top ten differ only for this
  reason.
- **RM3.** Several documents may have equal scores at the edge of the ten feedback documents. Pyserini then
  takes the lowest id, OpenSearch the one that was indexed first.
- **rank-bm25** has another idf (no 1 in the logarithm; terms in more than half of the documents get a
  quarter of the mean) and exact lengths. It splits at blanks, and keeps case, stop words and endings.
- **bm25s with its own terms** has the same stop words, drops words of one letter, and uses Snowball's
  English stemmer instead of Porter's.
- **Pyserini unchanged** has k1 .9 and b .4.
- **ranx** gives the last document of a list 0, where OpenSearch and hybridr give .001."""


def render(record: Record) -> str:
    """Render the tables of values, and what the differences come from."""
    sets = {name: found for name, found in record["sets"].items() if found["peers"]}
    parts = [said_of(record, sets)]
    for title, columns in TABLES.items():
        if rows := [row_of(name, found, columns) for name, found in sets.items() if has(found, columns)]:
            peers = [name for ours, theirs in columns.items() for name in (f"hybridr {ours}", *theirs)]
            rest = [name for name, found in sets.items() if not has(found, columns)]
            said = f" (not run: {', '.join(rest)})" if rest else ""
            parts.append(f"{title}{said}\n\n{table(['collection', *peers], rows)}")
    return "\n\n".join([*parts, explained(sets), NOTES])


def runs_of(found: Record) -> Record:
    """Give the peers' runs of one collection."""
    return {name: row for peer in found["peers"].values() for name, row in peer["runs"].items()}


def has(found: Record, columns: dict[str, list[str]]) -> bool:
    """Tell whether any of the runs was made."""
    return any(name in runs_of(found) for theirs in columns.values() for name in theirs)


def row_of(name: str, found: Record, columns: dict[str, list[str]]) -> list[str]:
    """Render ours, and beside it each peer's value with the distance of ours to it."""
    runs, cells = runs_of(found), [name]
    for ours, theirs in columns.items():
        cells.append(f"{found['ours'][ours][LEAD]:.4f}" if ours in found["ours"] else "not run")
        cells += [
            f"{runs[one][LEAD]:.4f} ({runs[one]['difference']:+.4f})" if one in runs else "not run"
            for one in theirs
        ]
    return cells


def said_of(record: Record, sets: Record) -> str:
    """Say what was measured, and whether the bars are held."""
    settings, versions = record["settings"], record["versions"]
    cut = [name for name, found in sets.items() if found["of_queries"] > found["queries"]]
    said = (
        f"{LEAD}; in parentheses hybridr minus the peer. k1 {settings['k1']}, b {settings['b']}, RM3 with "
        f"{settings['rm3'][0]} documents, {settings['rm3'][1]} terms and weight {settings['rm3'][2]} for the "
        f"query. OpenSearch {record['opensearch']}; "
        + ", ".join(f"{name} {version}" for name, version in sorted(versions.items()))
        + f". {machine_of(record['machine'])}."
    )
    drawn = f" {settings['queries']:,} random queries (seed {settings['seed']}) of {', '.join(cut)}."
    return said + (drawn if cut else "") + "".join(f" {line}" for line in held(sets))


def held(sets: Record) -> Iterator[str]:
    """Say how far ours are from Pyserini's at most."""
    for run, (name, bar) in BARS.items():
        rows = [
            (abs(runs_of(found)[run]["difference"]), one)
            for one, found in sets.items()
            if run in runs_of(found)
        ]
        if rows:
            most, where = max(rows)
            word = "within" if most <= bar else "NOT within"
            most_of = f"{most:.4f} at most ({where})"
            yield f"{name} is {word} {bar} of Pyserini on {len(rows)} collections: {most_of}."


def explained(sets: Record) -> str:
    """Render what the lexical runs differ in."""
    header = [
        "collection",
        "documents",
        "queries",
        "other terms than Pyserini's",
        "formula",
        "Pyserini BM25",
        "Pyserini RM3",
        "bm25s",
        "bm25s, exact lengths",
    ]
    rows = []
    for name, found in sets.items():
        runs, terms = runs_of(found), found["peers"].get("pyserini", {}).get("terms")
        rows.append(
            [
                name,
                f"{found['documents']:,}",
                f"{found['queries']:,}",
                f"{terms['documents']} documents, {terms['queries']} queries" if terms else "not run",
                *(
                    told(runs.get(run, {}).get("explained"))
                    for run in ("formula", "pyserini bm25", "pyserini rm3", "bm25s")
                ),
                told(runs.get("bm25s", {}).get("with_exact_lengths")),
            ]
        )
    return (
        "How they differ: median relative distance of scores / queries with another top ten / those of them "
        f"that are ties\n\n{table(header, rows)}"
    )


def told(found: Record | None) -> str:
    """Render what two runs differ in."""
    return f"{found['typical']:.1g} / {found['changed']} / {found['ties']}" if found else "not run"


SECTIONS = [
    Section(
        40,
        "Baselines against peers",
        "baselines",
        "python benchmarks/run.py baselines FOLDER --peers PYTHON",
        render,
    )
]
