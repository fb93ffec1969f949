"""What does reindexing cost beside time: memory by size of the index, and work lost by a kill?

    python benchmarks/run.py reindexing memory FOLDER [--documents 10000,200000] [--json FILE]
    python benchmarks/run.py reindexing restart FOLDER [--documents 20000] [--json FILE]

FOLDER is a BEIR folder with enough documents; the cluster is that of `HYBRIDR_URL`, else the running embedded
node. Both work on indices of their own names and delete them. `memory` encodes the first 16 tokens of each
document, to save time; every run is a process of its own and tells its own peak.
`restart` kills a run at half of the documents by SIGKILL, runs it again, and compares what came of it with an
undisturbed run.
"""

from __future__ import annotations

import argparse
import json
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from hybridr import connect
from hybridr.cluster.connection import Cluster
from hybridr.cluster.reading import read_documents
from hybridr.encoders.contract import Encoder
from hybridr.encoders.export.exporting import minilm_encoder
from hybridr.encoders.opening import load_encoder
from hybridr.indexing.reindexing import reindex
from hybridr.indexing.settings import ReindexSettings
from hybridr_bench.corpora import spread_records
from hybridr_bench.reindexing import delete_index, forget_reindex, load_records
from study import (
    RESULTS,
    Record,
    Section,
    listed,
    machine_of,
    machine_record,
    own_process,
    table,
    write_result,
)

FEW_TOKENS = 16
VECTOR = ReindexSettings().vector_field


class Counting:
    """An encoder that writes down how many documents it encoded, so that a killed process has told."""

    def __init__(self, encoder: Encoder, file: Path) -> None:
        self.encoder, self.file = encoder, file

    def __getattr__(self, name: str) -> Any:
        return getattr(self.encoder, name)

    def encode_documents(self, texts: Sequence[str], *, max_tokens: int | None = None) -> np.ndarray:
        """Encode to float32 `(n, dim)` and note `n`."""
        vectors = self.encoder.encode_documents(texts, max_tokens=max_tokens)
        with self.file.open("a") as lines:
            lines.write(f"{len(texts)}\n")
        return vectors


def options(parser: argparse.ArgumentParser) -> None:
    """Take which of the two, and how many documents."""
    parser.add_argument("what", choices=["memory", "restart"])
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    parser.add_argument("--documents", type=listed, metavar="A,B", help="sizes")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--part", help=argparse.SUPPRESS)


def measure(given: argparse.Namespace) -> None:
    """Run one of the two, or one part of it in a process of its own."""
    if given.part:
        run_part(given.what, given.part, given.work)
        return
    run: dict[str, Callable[..., Record]] = {"memory": memory, "restart": restart}
    with tempfile.TemporaryDirectory() as scratch:
        work = given.work or Path(scratch)
        work.mkdir(parents=True, exist_ok=True)
        sizes = [[int(size) for size in given.documents]] if given.documents else []
        found = {"machine": machine_record("onnxruntime"), "corpus": given.folder.name}
        found |= run[given.what](connect(), given.folder, work, *sizes)
    print(json.dumps(found, indent=2))
    write_result(given.json or RESULTS / f"reindex-{given.what}.json", found)


def run_part(what: str, index: str, work: Path) -> None:
    """Reindex in this process and print what it took."""
    encoder: Encoder = load_encoder(minilm_encoder())
    encoder.encode_documents(["warm " * 300] * 8)  # full batches, as whole texts would bring
    if what == "memory":
        done = reindex(connect(), index, encoder, ReindexSettings(max_tokens=FEW_TOKENS))
    else:
        done = reindex(connect(), index, Counting(encoder, work / "encoded"))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(json.dumps({**done.to_json(), "peak_kib": peak}))


def part(what: str, index: str, work: Path) -> subprocess.Popen[str]:
    """Start `run_part` in a process of its own."""
    command = own_process("reindexing", what, ".", "--work", work, "--part", index)
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen[str]) -> dict[str, Any]:
    """Wait for a part and read what it printed."""
    printed = process.communicate()[0]
    if process.returncode:
        raise SystemExit(f"a part ended with {process.returncode}")
    record: dict[str, Any] = json.loads(printed)
    return record


@contextmanager
def loaded(cluster: Cluster, folder: Path, index: str, documents: int) -> Iterator[None]:
    """Have an index of documents for the length of the block."""
    try:
        load_records(cluster, index, spread_records(folder, documents), lambda *_: None)
        yield
    finally:
        forget_reindex(cluster, index)
        delete_index(cluster, index)


def memory(
    cluster: Cluster, folder: Path, work: Path, sizes: Sequence[int] = (10_000, 200_000)
) -> dict[str, Any]:
    """Measure the peak of each size."""
    found = []
    for documents in sizes:
        with loaded(cluster, folder, f"hybridr-memory-{documents}", documents):
            done = finish(part("memory", f"hybridr-memory-{documents}", work))
        found.append({name: done[name] for name in ("documents", "encoded", "seconds", "peak_kib")})
        print(found[-1], file=sys.stderr)
    growth = found[-1]["peak_kib"] / found[0]["peak_kib"] - 1
    return {"runs": found, "growth": round(growth, 4)}


def restart(cluster: Cluster, folder: Path, work: Path, sizes: Sequence[int] = (20_000,)) -> dict[str, Any]:
    """Kill a run at half, run it again, and compare with an undisturbed one."""
    documents, index = sizes[0], "hybridr-restart"
    with loaded(cluster, folder, index, documents):
        process = part("restart", index, work)
        written = kill_at(cluster, process, f"{index}-hybridr-1", documents // 2)
        done = finish(part("restart", index, work))
        encoded = sum(map(int, (work / "encoded").read_text().split()))
        disturbed = contents(cluster, done["destination"])
        forget_reindex(cluster, index)
        undisturbed = contents(cluster, finish(part("restart", index, work))["destination"])
    return {
        "documents": documents,
        "killed_at": written,
        "encoded": encoded,
        "encoded_twice": round((encoded - documents) / documents, 4),
        **compare(disturbed, undisturbed),
    }


def kill_at(cluster: Cluster, process: subprocess.Popen[str], destination: str, documents: int) -> int:
    """Kill the process when so many documents are written; give how many were."""
    written = 0
    while written < documents:
        if process.poll() is not None:
            raise SystemExit("the run ended before it could be killed")
        time.sleep(0.5)
        if cluster.exists(destination):
            cluster.refresh(destination)
            written = cluster.count(destination)
    process.send_signal(signal.SIGKILL)
    process.wait()
    cluster.refresh(destination)
    return cluster.count(destination)


def contents(cluster: Cluster, index: str) -> dict[str, tuple[str, np.ndarray]]:
    """Read every document: its source as text, and its vector `(dim,)`."""
    found = {}
    for document in read_documents(cluster, index):
        vector = np.array(document.source.pop(VECTOR), dtype=np.float32)
        found[document.doc_id] = (json.dumps(document.source, sort_keys=True), vector)
    return found


def compare(
    one: dict[str, tuple[str, np.ndarray]], other: dict[str, tuple[str, np.ndarray]]
) -> dict[str, Any]:
    """Compare ids, sources and vectors."""
    same_ids = one.keys() == other.keys()
    both = one.keys() & other.keys()
    furthest = max(float(np.abs(one[key][1] - other[key][1]).max()) for key in both)
    return {
        "same_ids": same_ids,
        "same_sources": all(one[key][0] == other[key][0] for key in both),
        "largest_difference": furthest,
    }


def render_memory(record: Record) -> str:
    """Render the peak of each size."""
    header = ["documents", "encoded", "seconds", "peak resident MB"]
    rows = [
        [
            f"{run['documents']:,}",
            f"{run['encoded']:,}",
            f"{run['seconds']:.0f}",
            f"{run['peak_kib'] / 1024:,.0f}",
        ]
        for run in record["runs"]
    ]
    said = (
        f"Documents of `{record['corpus']}`, of which the first 16 tokens are encoded. The peak grew by "
        f"{record['growth']:+.1%} from the first size to the last. {machine_of(record['machine'])}."
    )
    return f"{said}\n\n{table(header, rows)}"


def render_restart(record: Record) -> str:
    """Render what a kill cost."""
    same = {True: "the same", False: "NOT the same"}
    return (
        f"{record['documents']:,} documents of `{record['corpus']}`; SIGKILL when {record['killed_at']:,} "
        f"were written, then the same command again. Encoded twice: {record['encoded_twice']:.2%}. Compared "
        f"with an undisturbed run: ids {same[record['same_ids']]}, sources {same[record['same_sources']]}, "
        f"vectors within {record['largest_difference']:.1g}. {machine_of(record['machine'])}."
    )


SECTIONS = [
    Section(
        140,
        "Memory of reindexing by size of the index",
        "reindex-memory",
        "python benchmarks/run.py reindexing memory FOLDER/scale_open_en",
        render_memory,
    ),
    Section(
        150,
        "Reindexing killed at half",
        "reindex-restart",
        "python benchmarks/run.py reindexing restart FOLDER/scale_open_en",
        render_restart,
    ),
]
