"""The race of `hybridr bench adapt`."""

from __future__ import annotations

from .markdown import Record, machine_of, table

TITLE = "Masked-LM training against a plain Trainer"
RESULT = "adapt-speed"
COMMAND = "hybridr bench adapt --json benchmarks/results/adapt-speed.json"


def render(record: Record) -> str:
    """Render the race of `hybridr bench adapt`: a row for each way to train each model."""
    header = ["model", "way", "tokens per second", "times the Trainer", "loss on unseen text"]
    rows = [
        [
            race["size"],
            lane["name"],
            f"{lane['tokens_per_second']:,.0f}",
            f"{lane['times']:.2f}",
            f"{lane['unseen_loss']:.3f}",
        ]
        for race in record["races"]
        for lane in race["lanes"]
    ]
    return f"Real tokens, without padding. {machine_of(record['machine'])}.\n\n{table(header, rows)}"
