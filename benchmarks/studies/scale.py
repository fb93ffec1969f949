"""How do time, memory, disk and latency grow from ten thousand documents to a million?

    python benchmarks/run.py scale FOLDER [--documents 10000,100000] [--runners threads] [--vectors float]

FOLDER is a BEIR folder with words enough (`scale_open_en`). All its documents are read as one stream of
words; each document of the study is 12 of them, beginning 10 behind the one before, and is left out where
such a text came before. So no two are alike, each shares two words with its neighbour, and words are as
frequent as in the folder: neither BM25 nor the graph of vectors sees copies. A smaller size takes every n-th.

A case is a size, a runner and a form of vectors. Each has an index of its own, which is deleted at its end,
and goes through the steps `load`, `reindex`, `change` (one document in a hundred: half get another text, a
quarter go, a quarter are new), `sync`, `verify` and `search`, each a process of its own that tells its time,
its peak and the processors' seconds of both sides. The encoder alone is timed before and after the reindex. A
killed run goes on by the same command: finished cases and steps stay, and a step that was cut off goes on in
its index, with what it had taken until then. The cluster is that of `--url`, else an embedded node, `bench`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from growth import KINDS, MODES, WORDS, render
from hybridr import connect
from hybridr.cluster.connection import Cluster
from hybridr.cluster.embedded import process
from hybridr.cluster.loading import load
from hybridr.cluster.settings import LoadSettings
from hybridr.cluster.writing import MemoryRejects, bulk_action, group_by_bytes, write
from hybridr.errors import DataError
from hybridr.files.formats import read_corpus
from hybridr.files.local import fingerprint, write_json
from hybridr.indexing.reindexing import reindex, sync
from hybridr.indexing.settings import ReindexSettings
from hybridr.indexing.terms.fitting import provide_term_table
from hybridr.indexing.verification import verify
from hybridr.search.checks import encoder_for
from hybridr_bench.asking import Times, take_turns
from hybridr_bench.corpora import spread_queries, word_windows
from hybridr_bench.reindexing import TimedEncoder, delete_index, forget_reindex
from hybridr_bench.searching import SEARCHES, KnownQueries, QueryCompiler, Sender, hand_written, sending
from hybridr_bench.spending import Spent, TimedCluster, node_memory, node_of, size_of
from study import HERE, RESULTS, Record, Section, kept, listed, machine_record, own_process, write_result

APART = 10
CHANGED = 200  # one in so many gets another text; of one in twice as many each, one goes and one is new
STEPS = ("load", "reindex", "change", "sync", "verify", "search")
ALONE = 1024  # documents that are encoded alone, before and after
DOCUMENTS = "corpus.jsonl"


def options(parser: argparse.ArgumentParser) -> None:
    """Take sizes, runners and forms, and how they are encoded."""
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    parser.add_argument("--documents", type=listed, default=["10000", "100000"], metavar="A,B", help="sizes")
    parser.add_argument(
        "--runners", type=listed, default=["threads"], metavar="A,B", help="ways to run shares"
    )
    parser.add_argument("--vectors", type=listed, default=["float"], metavar="A,B", help="forms of vectors")
    parser.add_argument("--encoder", type=Path, help="encoder folder (default: the packaged MiniLM)")
    parser.add_argument("--precision", default="fp32", help="of documents")
    parser.add_argument("--max-tokens", type=int, default=32)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--queries", type=int, default=200)
    parser.add_argument("--url", help="cluster")
    parser.add_argument("--runs", type=Path, default=HERE.parent / "runs" / "scale", metavar="FOLDER")
    parser.add_argument("--results", type=Path, default=RESULTS / "scale", metavar="FOLDER")
    parser.add_argument("--step", help=argparse.SUPPRESS)


def measure(given: argparse.Namespace) -> None:
    """Measure every case that has no result; with `--step` do one step of one case in this process."""
    if given.step:
        print(json.dumps(Steps(given, connect(given.url)).run(given.step)))
        return
    for case in cases(given):
        name = f"{case['documents']}-{case['runner']}-{case['vectors']}"
        file = given.results / f"{name}.json"
        if kept(file, case) is None:
            write_result(file, measure_case(given, given.runs / name, case))


def cases(given: argparse.Namespace) -> Iterator[Record]:
    """Give the settings of every case, the smaller sizes first."""
    shared = {name: getattr(given, name) for name in ("precision", "max_tokens", "workers", "queries")}
    encoder = given.encoder.name if given.encoder else "MiniLM"
    for documents in map(int, given.documents):
        for runner in given.runners:
            for form in given.vectors:
                own = {"documents": documents, "runner": runner, "vectors": form}
                yield {"corpus": given.folder.name, **own, **shared, "encoder": encoder}


def measure_case(given: argparse.Namespace, runs: Path, case: Record) -> Record:
    """Take a case through the steps that it has not behind it; give what each took, and delete its index."""
    from runner import open_cluster  # its torch would count in the peaks of the steps

    runs.mkdir(parents=True, exist_ok=True)
    write_json(runs / "case.json", case)
    if not (runs / DOCUMENTS).is_file():
        write_documents(given.folder, case["documents"], runs / DOCUMENTS)
    if not given.url:
        process.stop("bench")  # each case has a node whose peaks are its own; what it holds stays
    cluster, steps = open_cluster(given.url), Record()
    for step in STEPS:
        file = runs / f"{step}.json"
        if not file.is_file():
            write_json(file, in_a_process(given, runs, cluster, step))
        steps[step] = json.loads(file.read_text(encoding="utf-8"))
        print(runs.name, step, f"{steps[step]['seconds']:,.1f} s", file=sys.stderr, flush=True)
    forget_reindex(cluster, index_of(case))
    delete_index(cluster, index_of(case))
    for file in runs.iterdir():
        file.unlink()
    load = [round(value, 1) for value in os.getloadavg()]
    return {"settings": case, "machine": machine_record("onnxruntime"), "load": load, "steps": steps}


def in_a_process(given: argparse.Namespace, runs: Path, cluster: Cluster, step: str) -> Record:
    """Do a step in a process of its own, which tells its own peak."""
    encoder = ("--encoder", given.encoder) if given.encoder else ()
    command = ("--runs", runs, "--step", step, "--url", cluster.url, *encoder)
    done = subprocess.run(own_process("scale", given.folder, *command), stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise SystemExit(f"the step {step} ended with {done.returncode}; the same command goes on")
    found: Record = json.loads(done.stdout.splitlines()[-1])
    return found


def index_of(case: Record) -> str:
    """Name the index of a case."""
    return f"hybridr-scale-{fingerprint(case)[:10]}"


class Steps:
    """The steps of one case, each of which goes on where it was cut off."""

    def __init__(self, given: argparse.Namespace, cluster: Cluster) -> None:
        self.given, self.runs, self.cluster = given, given.runs, cluster
        self.case: Record = json.loads((self.runs / "case.json").read_text(encoding="utf-8"))
        self.index = index_of(self.case)

    def run(self, step: str) -> Record:
        """Do one step; give what it took, and what its own function tells."""
        spent = Spent(self.runs / f"{step}.spent", node_of(self.cluster))
        told = getattr(self, step)(spent)
        return {**spent.note(), **told, "node": node_memory(self.cluster)}

    def load(self, spent: Spent) -> Record:
        """Load the documents."""
        done = load(self.cluster, self.runs / DOCUMENTS, LoadSettings(index=self.index), progress=spent)
        return {"documents": done.documents, "index": size_of(self.cluster, self.index, KINDS)}

    def reindex(self, spent: Spent) -> Record:
        """Write vectors; the encoder alone and the term table are told beside it."""
        encoder, timed = self.encoder(), TimedCluster(self.cluster)
        texts = [record["text"] for record in islice(read_corpus(self.runs / DOCUMENTS), ALONE)]
        before = self.alone(encoder, texts)
        watched = TimedEncoder(encoder) if self.case["runner"] == "threads" else None
        spent.begin()
        done = reindex(timed, self.index, watched or encoder, self.settings(), progress=spent)
        taken = spent.note()
        after = self.alone(encoder, texts)
        began = time.monotonic()
        provide_term_table(self.cluster, done.destination, encoder)
        return {
            **taken,
            "encoded": done.encoded,
            "skipped": done.skipped,
            "tokens": sum(encoder.count_tokens(texts)) / len(texts),
            "alone": [before, after],
            "encoder_s": round(watched.seconds, 2) if watched else None,
            "requests": timed.told(),
            "stages_s": spent.stages,
            "table_s": round(time.monotonic() - began, 2),
            "index": size_of(self.cluster, done.destination, KINDS),
        }

    def change(self, spent: Spent) -> Record:
        """Change one document in a hundred as its clients would."""
        spent.begin()
        rejects, records = MemoryRejects(), read_corpus(self.runs / DOCUMENTS)
        changes = (action for number, one in enumerate(records) for action in changed(number, one))
        for group in group_by_bytes(changes, 5_000_000):
            write(self.cluster, self.index, group, rejects=rejects)
        self.cluster.refresh(self.index)
        return {"documents": self.cluster.count(self.index)}

    def sync(self, spent: Spent) -> Record:
        """Bring the changes in."""
        encoder = self.encoder()
        spent.begin()
        done = sync(self.cluster, self.index, encoder, self.settings(), progress=spent)
        return {"copied": done.copied, "deleted": done.deleted}

    def verify(self, spent: Spent) -> Record:
        """Compare all documents; raises DataError when one differs."""
        encoder = self.encoder()
        spent.begin()
        found = verify(self.cluster, self.index, encoder, progress=spent)
        if not found.ok:
            raise DataError("; ".join(found.problems()))
        return {"documents": found.findings[0].looked_at}

    def search(self, spent: Spent) -> Record:
        """Time each mode through `Search`, and as the bytes that a client of its own would send at once."""
        texts = spread_queries(self.given.folder, self.case["queries"])
        known, sender = KnownQueries(self.encoder(), texts), Sender(self.cluster.url, 1)
        asking = QueryCompiler(self.cluster, self.index, known, texts, sender)
        hands = hand_written(self.cluster, self.index, known, texts)
        lanes = [sending(f"{mode}, one request", sender, hands[mode]) for mode in (*MODES, "stock")]
        lanes += [next(asking.lanes(mode, SEARCHES[mode])) for mode in MODES]
        spent.begin()
        take_turns(lanes, Times(requests=len(texts), rounds=3, clients=(1,), warm_up=1), spent)
        return {"lanes": [row for lane in lanes for row in lane.records()]}

    def encoder(self) -> Any:
        """Open the encoder as `hybridr reindex` does."""
        info = self.cluster.index_info(self.index)
        return encoder_for(info, self.given.encoder, precision=self.case["precision"])

    def alone(self, encoder: Any, texts: list[str]) -> Record:
        """Time the encoder on texts, 64 at a time as a reindex does, after a call that is not counted."""
        parts = [texts[start : start + 64] for start in range(0, len(texts), 64)]
        encoder.encode_documents(parts[0], max_tokens=self.case["max_tokens"])
        spent = Spent(self.runs / "alone.spent", None)
        spent.begin()
        for part in parts:
            encoder.encode_documents(part, max_tokens=self.case["max_tokens"])
        return {"documents": len(texts), **spent.taken()}

    def settings(self) -> ReindexSettings:
        """Write as the case says."""
        told = {name: self.case[name] for name in ("max_tokens", "workers", "vectors", "runner")}
        return ReindexSettings(**told, term_table=False)


def write_documents(folder: Path, count: int, file: Path) -> None:
    """Write `count` documents as JSONL, every n-th of those that the folder gives. Raises DataError."""
    total = sum(1 for _ in word_windows(folder, WORDS, APART))
    if total < count:
        raise DataError(f"{folder} gives {total:,} different documents, {count:,} were asked for")
    chosen = islice(word_windows(folder, WORDS, APART), 0, count * (total // count), total // count)
    half = file.with_suffix(".half")
    with half.open("w", encoding="utf-8") as lines:
        for number, text in enumerate(chosen):
            lines.write(json.dumps({"_id": f"w{number}", "text": text}, ensure_ascii=False) + "\n")
    half.rename(file)


def changed(number: int, record: Record) -> Iterator[Any]:
    """Give what happens to the n-th document, if anything."""
    doc_id, text = str(record["_id"]), " ".join(reversed(record["text"].split()))
    other = {"text": text, "contents": text}
    if number % CHANGED == 0:
        yield bulk_action("index", doc_id, other)
    elif number % (2 * CHANGED) == 1:
        yield bulk_action("delete", doc_id)
        yield bulk_action("index", f"{doc_id}-new", other)


RUN = "python benchmarks/run.py scale FOLDER/scale_open_en --encoder ENCODER --precision int8 --documents"
SECTIONS = [
    Section(
        155,
        "How it grows with the number of documents",
        "scale",
        "\n    ".join(
            [
                f"{RUN} 10000,100000,300000,1000000",
                f"{RUN} 100000 --vectors byte",
                f"{RUN} 10000,100000 --vectors on_disk",
                f"{RUN} 10000,100000,300000,1000000 --runners ray",
            ]
        ),
        render,
    )
]
