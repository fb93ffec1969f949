"""Encoding against other libraries, as `hybridr bench encode` measures it."""

from __future__ import annotations

from .markdown import Record, machine_of, table

TITLE = "Encoding against other libraries"
RESULT = "encode"
COMMAND = (
    "hybridr bench encode benchmarks/results/encode.json --beir FOLDER/scifact --beir FOLDER/npl "
    "--peers PYTHON"
)


def render(record: Record) -> str:
    """Render `hybridr bench encode`: a table for each set of texts."""
    header = ["encoder", "CPU s", "times", "documents/s", "tokens/s", "peak MB", "least cosine"]
    machine, parts = record["machine"], []
    for found in record["sets"]:
        rows = [encode_row(row) for row in found["contenders"]]
        parts.append(
            f"{found['name']}: {found['documents']:,} texts, {found['tokens']:,} tokens\n\n"
            f"{table(header, rows)}"
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
        row["name"],
        f"{row['cpu_s']:.2f}",
        f"{row['ratio']:.2f}",
        f"{row['documents_per_s']:,.0f}",
        f"{row['tokens_per_s']:,.0f}",
        f"{row['peak_mb']:,}",
        f"{row['cosine']['least']:.4f}" if row["cosine"] else "",
    ]
