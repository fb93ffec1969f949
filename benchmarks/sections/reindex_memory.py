"""The peaks of `benchmarks/reindexing.py memory`."""

from __future__ import annotations

from .markdown import Record, machine_of, table

TITLE = "Memory of reindexing by size of the index"
RESULT = "reindex-memory"
COMMAND = (
    "python benchmarks/reindexing.py memory FOLDER/scale_open_en --json "
    "benchmarks/results/reindex-memory.json"
)


def render(record: Record) -> str:
    """Render the peaks of `benchmarks/reindexing.py memory`."""
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
        f"Documents of `{record['corpus']}`, of which the first 16 tokens are encoded. From the first to the "
        f"last {record['growth']:+.1%}. {machine_of(record['machine'])}."
    )
    return f"{said}\n\n{table(header, rows)}"
