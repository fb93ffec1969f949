"""Regenerates benchmarks/README.md from the committed results: `make bench-report`.

    python benchmarks/report.py [--check]

With `--check` nothing is written; the exit code is 1 when the page does not say what the results say.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
RESULTS, PAGE = HERE / "results", HERE / "README.md"
NOT_RUN = "Not run: no result is committed (the full form of DR versus DDR wants a GPU)."
LEAD = "nDCG@10"
ROWS = {
    "bm25": "BM25",
    "as-is": "the backbone as it comes (a retriever)",
    "source": "source DAM + REM, nothing fitted to the target",
    "dr": "DR: all weights trained on the source's labels",
    "ddr": "DDR: target DAM + REM",
    "ddr-si": "DDR without sequential initialisation",
    "ddr-df": "DDR without disentangled finetuning",
    "lora": "DDR, REM of LoRA",
    "parallel": "DDR, REM of a parallel adapter",
    "both": "DDR, REM of both",
}
Record = dict[str, Any]


def main() -> int:
    """Write the page, or check that it is what the results give."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true")
    page = render_page()
    if parser.parse_args().check:
        stale = not PAGE.is_file() or PAGE.read_text(encoding="utf-8") != page
        if stale:
            print("benchmarks/README.md is not what the results say: make bench-report", file=sys.stderr)
        return int(stale)
    PAGE.write_text(page, encoding="utf-8")
    return 0


def render_page() -> str:
    """Render all sections."""
    sections: list[tuple[str, str, str, Callable[[Record], str]]] = [
        ("DR versus DDR, reduced form", "ddr-reduced", DDR_COMMAND.format(form="reduced"), render_ddr),
        ("DR versus DDR, full form", "ddr-full", DDR_COMMAND.format(form="full"), render_ddr),
        ("Adaptation of the packaged retriever", "adaptation", "python benchmarks/adaptation.py FOLDER",
         render_adaptation),
        ("Masked-LM training against a plain Trainer", "adapt-speed",
         "hybridr bench adapt --json benchmarks/results/adapt-speed.json", render_speed),
        ("Encoding against other libraries", "encode",
         "hybridr bench encode benchmarks/results/encode.json --beir FOLDER/scifact --beir FOLDER/npl "
         "--peers PYTHON", render_encode),
        ("What int8 documents cost", "precision", "python benchmarks/precision.py FOLDER", render_precision),
        ("Reindexing", "reindex-speed",
         "hybridr node start --with-ml --heap 2g\n"
         "    hybridr bench reindex benchmarks/results/reindex-speed.json --beir FOLDER/scale_open_en "
         "--server-batches 1,32,128", render_reindex),
        ("Memory of reindexing by size of the index", "reindex-memory",
         "python benchmarks/reindexing.py memory FOLDER/scale_open_en --json "
         "benchmarks/results/reindex-memory.json", render_memory),
        ("Reindexing killed at half", "reindex-restart",
         "python benchmarks/reindexing.py restart FOLDER/scale_open_en --json "
         "benchmarks/results/reindex-restart.json", render_restart),
    ]  # fmt: skip
    parts = [HEAD]
    for title, name, command, render in sections:
        file = RESULTS / f"{name}.json"
        missing = NOT_RUN if name == "ddr-full" else "Not run: no result is committed."
        body = render(json.loads(file.read_text(encoding="utf-8"))) if file.is_file() else missing
        parts.append(f"## {title}\n\n    {command}\n\n{body}")
    return "\n\n".join(parts) + "\n"


NOTES = {
    "reduced": """How to read it: every row but BM25 starts from MiniLM, and all trained ones lose against
MiniLM as it comes: so few labels and steps, by inner product, cost more than they
bring. A few hundred steps of masked-LM with a head that starts from nothing undo most
of what a retriever has learnt. Sequential initialisation helps (DDR above DDR without
it, on both); fitting the DAM to the target does not at this scale. The paper's regime,
100,000 steps on a masked-LM checkpoint, is another one: this table says nothing about
it."""
}
DDR_COMMAND = "python benchmarks/ddr.py FOLDER --form {form}"
HEAD = """# Benchmarks

Made by `make bench-report` from `results/*.json`; a test checks that it is up to date. The conditions stand
in `conditions.toml`. FOLDER holds test collections in BEIR layout. What could not be run is marked so."""


def render_ddr(record: Record) -> str:
    """Render DR versus DDR: rows by targets."""
    targets: dict[str, Record] = record["targets"]
    names = list(dict.fromkeys(row for found in targets.values() for row in found["systems"]))
    header = [LEAD, *(f"{name} ({found['queries']:,} queries)" for name, found in targets.items())]
    rows = [[ROWS[name], *(ddr_cell(found, name) for found in targets.values())] for name in names]
    form = record["settings"]
    said = (
        f"Source `{form['source']}`, backbone {backbone_of(form)}. A star marks p < .05 against DR (paired "
        f"t, Holm over the rows). {machine_of(record['machine'])}."
    )
    return (
        f"{said}\n\n{markdown(header, rows)}\n\n{time_of(record)}\n\n{NOTES.get(record['form'], '')}".rstrip()
    )


def ddr_cell(found: Record, name: str) -> str:
    """Render one value."""
    star = "*" if found["against_dr"].get(name, {"p_holm": 1.0})["p_holm"] < 0.05 else ""
    return f"{found['systems'][name][LEAD]:.4f}{star}"


def backbone_of(form: Record) -> str:
    """Say what the backbone was."""
    if form["backbone"] != "minilm":
        return f"`{Path(form['backbone']).name}`"
    return "the packaged MiniLM with a masked-LM head tied to its embeddings"


def time_of(record: Record) -> str:
    """Say how long the trainings took."""
    seconds = ", ".join(f"{name} {value:.0f} s" for name, value in record["training_s"].items())
    return f"Training, by the clock: {seconds}."


def render_adaptation(record: Record) -> str:
    """Render adaptation of the retriever: sets by dense and hybrid, before and after."""
    header = ["collection", "documents", "queries", "dense", "adapted", "hybrid", "adapted", "gate"]
    rows = [
        [
            row["set"], f"{row['documents']:,}", str(row["queries"]),
            *(cell for name in ("dense", "hybrid") for cell in before_and_after(row[name])),
            "promoted" if row["gate"]["passed"] else "vetoed",
        ]
        for row in record["sets"]
    ]  # fmt: skip
    return f"{LEAD}; default settings. {machine_of(record['machine'])}.\n\n{markdown(header, rows)}"


def before_and_after(found: Record) -> tuple[str, str]:
    """Render a value and its change."""
    return f"{found['old']:.4f}", f"{found['new'] - found['old']:+.4f} (p {found['p']:.2g})"


def render_speed(record: Record) -> str:
    """Render the race of `hybridr bench adapt`: a row for each way to train each model."""
    header = ["model", "way", "tokens per second", "times the Trainer", "loss on unseen text"]
    rows = [
        [
            race["size"], lane["name"], f"{lane['tokens_per_second']:,.0f}", f"{lane['times']:.2f}",
            f"{lane['unseen_loss']:.3f}",
        ]
        for race in record["races"]
        for lane in race["lanes"]
    ]  # fmt: skip
    return f"Real tokens, without padding. {machine_of(record['machine'])}.\n\n{markdown(header, rows)}"


def render_encode(record: Record) -> str:
    """Render `hybridr bench encode`: a table for each set of texts."""
    header = ["encoder", "CPU s", "times", "documents/s", "tokens/s", "peak MB", "least cosine"]
    machine, parts = record["machine"], []
    for found in record["sets"]:
        rows = [encode_row(row) for row in found["contenders"]]
        parts.append(
            f"{found['name']}: {found['documents']:,} texts, {found['tokens']:,} tokens\n\n"
            f"{markdown(header, rows)}"
        )
    said = (
        f"CPU seconds of all threads, {record['settings']['rounds']} rounds in turns, medians; times: the "
        "first that ran over this one; documents and tokens by the clock; cosine to hybridr fp32. "
        f"{machine_of(machine)}, {', '.join(machine['features'])}."
    )
    return "\n\n".join([said, *parts])


def encode_row(row: Record) -> list[str]:
    """Render one contender."""
    if "not_run" in row:
        return [row["name"], f"not run: {row['not_run']}", "", "", "", "", ""]
    return [
        row["name"], f"{row['cpu_s']:.2f}", f"{row['ratio']:.2f}", f"{row['documents_per_s']:,.0f}",
        f"{row['tokens_per_s']:,.0f}", f"{row['peak_mb']:,}",
        f"{row['cosine']['least']:.4f}" if row["cosine"] else "",
    ]  # fmt: skip


def render_precision(record: Record) -> str:
    """Render what int8 documents cost, set by set and in the mean."""
    header = ["collection", "documents", "queries", "fp32", "int8 documents", "least cosine"]
    rows, changes = [], []
    for name, found in record["sets"].items():
        changes.append(found["int8"] - found["fp32"])
        rows.append([
            name, f"{found['documents']:,}", f"{found['queries']:,}", f"{found['fp32']:.4f}",
            f"{changes[-1]:+.4f} (p {found['p']:.2g})", f"{found['cosine']['least']:.4f}",
        ])  # fmt: skip
    mean, limit = sum(changes) / len(changes), record["settings"]["documents"]
    part = f"Only the judged documents and others up to {limit:,} a collection. " if limit else ""
    return (
        f"{LEAD}, queries fp32, exact search. {part}Mean change over {len(changes)} collections "
        f"{mean:+.4f}. Machine: {record['machine']['cpu']}.\n\n{markdown(header, rows)}"
    )


def render_reindex(record: Record) -> str:
    """Render `hybridr bench reindex`: a row for each way through the documents."""
    header = ["way", "documents", "documents per second", "of encoding alone", "encoder busy"]
    alone = record["lanes"][0]["documents_per_second"]
    rows = [
        [
            lane["name"], f"{lane['documents']:,}",
            f"failed: {lane['failure']}" if lane["failure"] else f"{lane['documents_per_second']:.1f}",
            "" if lane["failure"] else f"{lane['documents_per_second'] / alone:.1%}",
            "" if lane["busy"] is None else f"{lane['busy']:.1%}",
        ]
        for lane in record["lanes"]
    ]  # fmt: skip
    said = (
        f"Documents of `{record['corpus']}`, spread and shuffled; packaged MiniLM in fp32, ONNX Runtime, "
        "batches of 1,024 tokens, the node on the same cores. hybridr's time is that of the whole command: "
        "checks, fill, catch-up, verification, switch. `_reindex` asks `hybridr serve`, which batches across "
        f"requests, with the same encoder. {machine_of(record['machine'])}."
    )
    return f"{said}\n\n{markdown(header, rows)}"


def render_memory(record: Record) -> str:
    """Render the peaks of `benchmarks/reindexing.py memory`."""
    header = ["documents", "encoded", "seconds", "peak resident MB"]
    rows = [
        [
            f"{run['documents']:,}", f"{run['encoded']:,}", f"{run['seconds']:.0f}",
            f"{run['peak_kib'] / 1024:,.0f}",
        ]
        for run in record["runs"]
    ]  # fmt: skip
    said = (
        f"Documents of `{record['corpus']}`, of which the first 16 tokens are encoded. From the first to the "
        f"last {record['growth']:+.1%}. {machine_of(record['machine'])}."
    )
    return f"{said}\n\n{markdown(header, rows)}"


def render_restart(record: Record) -> str:
    """Render `benchmarks/reindexing.py restart`."""
    same = {True: "the same", False: "NOT the same"}
    return (
        f"{record['documents']:,} documents of `{record['corpus']}`; SIGKILL when {record['killed_at']:,} "
        f"were written, then the same command again. Encoded twice: {record['encoded_twice']:.2%}. Against "
        f"an undisturbed run: ids {same[record['same_ids']]}, sources {same[record['same_sources']]}, "
        f"vectors within {record['largest_difference']:.1g}. {machine_of(record['machine'])}."
    )


def machine_of(machine: Record) -> str:
    """Name the machine."""
    size = f"{machine['cores']} cores" if "cores" in machine else f"threads: {machine['threads']}"
    return f"Machine: {machine.get('gpu') or machine['cpu']}, {size}"


def markdown(header: list[str], rows: list[list[str]]) -> str:
    """Render a table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


if __name__ == "__main__":
    sys.exit(main())
