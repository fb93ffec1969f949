"""Adaptation of the packaged retriever."""

from __future__ import annotations

from .markdown import LEAD, Record, machine_of, table

TITLE = "Adaptation of the packaged retriever"
RESULT = "adaptation"
COMMAND = "python benchmarks/adaptation.py FOLDER"


def render(record: Record) -> str:
    """Render adaptation of the retriever: sets by dense and hybrid, before and after."""
    header = ["collection", "documents", "queries", "dense", "adapted", "hybrid", "adapted", "gate"]
    rows = [
        [
            row["set"],
            f"{row['documents']:,}",
            str(row["queries"]),
            *(cell for name in ("dense", "hybrid") for cell in before_and_after(row[name])),
            "promoted" if row["gate"]["passed"] else "vetoed",
        ]
        for row in record["sets"]
    ]
    return f"{LEAD}; default settings. {machine_of(record['machine'])}.\n\n{table(header, rows)}"


def before_and_after(found: Record) -> tuple[str, str]:
    """Render a value and its change."""
    return f"{found['old']:.4f}", f"{found['new'] - found['old']:+.4f} (p {found['p']:.2g})"
