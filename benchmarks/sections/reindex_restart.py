"""What `benchmarks/reindexing.py restart` found."""

from __future__ import annotations

from .markdown import Record, machine_of

TITLE = "Reindexing killed at half"
RESULT = "reindex-restart"
COMMAND = (
    "python benchmarks/reindexing.py restart FOLDER/scale_open_en --json "
    "benchmarks/results/reindex-restart.json"
)


def render(record: Record) -> str:
    """Render `benchmarks/reindexing.py restart`."""
    same = {True: "the same", False: "NOT the same"}
    return (
        f"{record['documents']:,} documents of `{record['corpus']}`; SIGKILL when {record['killed_at']:,} "
        f"were written, then the same command again. Encoded twice: {record['encoded_twice']:.2%}. Against "
        f"an undisturbed run: ids {same[record['same_ids']]}, sources {same[record['same_sources']]}, "
        f"vectors within {record['largest_difference']:.1g}. {machine_of(record['machine'])}."
    )
