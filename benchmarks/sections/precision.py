"""The price of int8 documents."""

from __future__ import annotations

from .markdown import LEAD, Record, table

TITLE = "What int8 documents cost"
RESULT = "precision"
COMMAND = "python benchmarks/precision.py FOLDER"


def render(record: Record) -> str:
    """Render what int8 documents cost, set by set and in the mean."""
    header = ["collection", "documents", "queries", "fp32", "int8 documents", "least cosine"]
    rows, changes = [], []
    for name, found in record["sets"].items():
        changes.append(found["int8"] - found["fp32"])
        rows.append(
            [
                name,
                f"{found['documents']:,}",
                f"{found['queries']:,}",
                f"{found['fp32']:.4f}",
                f"{changes[-1]:+.4f} (p {found['p']:.2g})",
                f"{found['cosine']['least']:.4f}",
            ]
        )
    mean, limit = sum(changes) / len(changes), record["settings"]["documents"]
    part = f"Only the judged documents and others up to {limit:,} a collection. " if limit else ""
    return (
        f"{LEAD}, queries fp32, exact search. {part}Mean change over {len(changes)} collections "
        f"{mean:+.4f}. Machine: {record['machine']['cpu']}.\n\n{table(header, rows)}"
    )
