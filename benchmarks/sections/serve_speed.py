"""The figures of `hybridr bench serve`."""

from __future__ import annotations

from .markdown import Record, machine_of, table

TITLE = "The server against the encoder alone"
RESULT = "serve-speed"
COMMAND = (
    "hybridr bench serve benchmarks/results/serve-speed.json --beir FOLDER/scale_open_en "
    "--passages 320 --queries 400 --rounds 3"
)
HEADER = ["texts", "in a request", "served per second", "alone per second", "share"]


def render(record: Record) -> str:
    """Render a row for passages and one for queries."""
    rows = [
        [
            one["side"],
            str(one["in_a_request"]),
            f"{one['served_per_second']:.0f}",
            f"{one['alone_per_second']:.0f}",
            f"{one['share']['median']:.2f} ({one['share']['least']:.2f} to {one['share']['most']:.2f})",
        ]
        for one in record["shares"]
    ]
    before, after = record["load"]
    return (
        f"{machine_of(record['machine'])}; its load before {before:.1f}, at the end {after:.1f}. "
        f"{record.get('remark', '')} Server, "
        "clients and encoder share the cores. Passages by two clients, queries by 16, none in the cache; "
        f"alone, passages in calls of 32, queries in calls of 16.\n\n{table(HEADER, rows)}"
    )
