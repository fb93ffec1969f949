"""What label-free statistics tell about the true change of ranking."""

from __future__ import annotations

from .markdown import Record, machine_of, table

TITLE = "Label-free statistics and the true change"
RESULT = "label-free"
COMMAND = "python benchmarks/label_free.py FOLDER"
COLUMNS = {
    "spearman_within": "Spearman, within a set",
    "kendall_within": "Kendall, within a set",
    "spearman_pooled": "Spearman, pooled",
    "spearman_small": "Spearman, small changes",
    "spearman_map": "Spearman, query maps",
    "disaster_auc": "disasters, area",
}


def render(record: Record) -> str:
    """Render one row per statistic, best at telling disasters first."""
    rows = record["rows"]
    sets = dict.fromkeys(row["set"] for row in rows)
    variants = dict.fromkeys(row["variant"] for row in rows)
    bad = sum(row["true"] < record["disaster"] for row in rows)
    said = (
        f"{len(variants)} variants of the plain hybrid on {len(sets)} collections. A disaster loses more "
        f"than {-record['disaster']:g} nDCG@10 ({bad} of {len(rows)} rows); the area is the chance that a "
        f"statistic is lower for a disaster than for another variant, .5 by guessing. Small changes are "
        f"below {record['small']:g}. {machine_of(record['machine'])}."
    )
    body = [
        [found["statistic"], str(found["sets"]), *(shown(found[name]) for name in COLUMNS)]
        for found in record["statistics"]
    ]
    told = table(["statistic", "sets", *COLUMNS.values()], body)
    changes = table(
        ["variant", "mean true change", "sets up", "worst"], [by_variant(one, rows) for one in variants]
    )
    return f"{said}\n\n{told}\n\nWhat the variants truly change, nDCG@10 of the hybrid:\n\n{changes}"


def by_variant(name: str, rows: list[Record]) -> list[str]:
    """Render the true changes of one variant over all collections."""
    found = {row["set"]: row["true"] for row in rows if row["variant"] == name}
    worst = min(found, key=lambda one: found[one])
    mean, up = sum(found.values()) / len(found), sum(change > 0 for change in found.values())
    return [name, f"{mean:+.4f}", f"{up} of {len(found)}", f"{found[worst]:+.4f} ({worst})"]


def shown(value: float | None) -> str:
    """Render a correlation or an area."""
    return "" if value is None else f"{value:.2f}"
