"""Our baselines against peers: BM25, RM3, dense and fusion on the same documents, queries and judgements.

    python benchmarks/baselines.py FOLDER --peers PYTHON [--sets cranfield,npl] [--only pyserini,bm25s]

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
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import peers
from formula import Formula
from hybridr import Query, connect, load_encoder
from hybridr.cluster.connection import Cluster, path_of
from hybridr.cluster.destinations import alias_target, default_alias, resolve
from hybridr.cluster.loading import CONTENTS, load
from hybridr.cluster.settings import LoadSettings
from hybridr.encoding.packaged import minilm
from hybridr.evaluation.evaluation import evaluate
from hybridr.exporting.exporting import minilm_encoder
from hybridr.files.atomic import write_json
from hybridr.files.formats import ranked, read_beir
from hybridr.machine import machine_record
from hybridr.records import Document, Qrels, Run
from hybridr.reindexing.reindexing import reindex
from hybridr.search.feedback import FEEDBACK_DOCUMENTS, FEEDBACK_TERMS, ORIGINAL_WEIGHT
from hybridr.search.fusions.pipeline import fuse
from hybridr.search.search import Mode
from hybridr.search.settings import SearchSettings
from hybridr.search.systems import open_search

SETS = (
    "fiqa_mini",
    "cranfield",
    "npl",
    "scifact",
    "tldr_cmd",
    "squadshifts_amazon",
    "cisi",
    "lisa",
    "cacm",
    "cosqa",
    "stackfaq",
    "squadshifts_reddit",
)
QUERIES, SEED, DEPTH, TOP, PAGE = 1000, 0, 100, 10, 200
LEAD, MEASURES = "nDCG@10", ("nDCG@10", "R@100")
SAME = 2e-4
"""Relative: Pyserini rounds scores to four decimals."""
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


def main() -> None:
    """Measure every collection and peer that is not in the file yet."""
    given = arguments()
    cluster, record = connect(), started(given.json)
    for name in given.sets.split(","):
        done = record["sets"].setdefault(name, {"peers": {}})
        if wanted := [peer for peer in given.only.split(",") if peer not in done["peers"]]:
            for found in measure(cluster, given.folder / name, wanted, given.peers, record["settings"]):
                record["opensearch"] = cluster.info["version"]["number"]
                merge(record, name, found)
                write_json(given.json, record)
            print(name, *lines_of(done), sep="\n", flush=True)


def started(file: Path) -> dict[str, Any]:
    """Read what is measured already with the same settings."""
    chosen = LoadSettings(index="any")
    settings = {
        "k1": chosen.k1,
        "b": chosen.b,
        "depth": DEPTH,
        "queries": QUERIES,
        "seed": SEED,
        "rm3": [FEEDBACK_DOCUMENTS, FEEDBACK_TERMS, ORIGINAL_WEIGHT],
    }
    known: dict[str, Any] = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    if known.get("settings") == settings:
        return known
    return {"machine": machine_record("ir-measures"), "settings": settings, "versions": {}, "sets": {}}


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--sets", default=",".join(SETS))
    parser.add_argument("--only", default=",".join(PEERS), help="the peers to run")
    parser.add_argument("--peers", default="python3", help="the interpreter that has them")
    parser.add_argument("--json", type=Path, default=Path(__file__).parent / "results" / "baselines.json")
    return parser.parse_args()


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


def measure(
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
    command = [python, str(Path(__file__).with_name("peers.py")), peer, str(work)]
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
    # By this alias, as `run.py` may have put the vectors of an adapted encoder behind another one.
    name = vectors if dense else name
    ways: dict[str, tuple[Mode, Any]] = {"bm25": ("lexical", None), "rm3": ("lexical", "rm3")}
    runs, seconds = {}, {}
    for way, (mode, feedback) in (ways | ({"dense": ("dense", None)} if dense else {})).items():
        search = open_search(
            cluster, name, mode, settings=SearchSettings(depth=DEPTH, tuned=False), feedback=feedback
        )
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


def explain(ours: Run, theirs: Run) -> dict[str, Any]:
    """Say what two runs differ in, over documents in both, and query by query.

    `scale` is what ours are times their scores; `typical` and `largest` are the median and the maximum of the
    relative differences left after that. `changed` counts queries with another top ten, `ties` those among
    them where our scores do not tell the documents apart that changed places.
    """
    shared = [
        score / theirs[query][doc]
        for query, run in ours.items()
        for doc, score in run.items()
        if theirs.get(query, {}).get(doc)
    ]
    scale = statistics.median(shared) if shared else 1.0
    left = [abs(ratio / scale - 1) for ratio in shared] or [0.0]
    tops = [(query, top(run), top(theirs.get(query, {}))) for query, run in ours.items()]
    changed = [(ours[query], one, other) for query, one, other in tops if one != other]
    return {
        "scale": scale,
        "typical": statistics.median(left),
        "largest": max(left),
        "changed": len(changed),
        "ties": sum(is_tie(*each) for each in changed),
    }


def top(scores: Mapping[str, float]) -> list[str]:
    """Give the ids of the best ten."""
    return [doc for doc, _ in ranked(scores)[:TOP]]


def is_tie(scores: Mapping[str, float], one: Sequence[str], other: Sequence[str]) -> bool:
    """Tell whether place by place both orders hold documents of the same score of ours."""
    return len(one) == len(other) and all(
        abs(scores[mine] - scores.get(yours, 0.0)) <= SAME * scores[mine]
        for mine, yours in zip(one, other, strict=True)
    )


if __name__ == "__main__":
    main()
