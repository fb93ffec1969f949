"""What every section writes: tables and the machine."""

from __future__ import annotations

from typing import Any

LEAD = "nDCG@10"
Record = dict[str, Any]


def machine_of(machine: Record) -> str:
    """Name the machine."""
    size = f"{machine['cores']} cores" if "cores" in machine else f"threads: {machine['threads']}"
    return f"Machine: {machine.get('gpu') or machine['cpu']}, {size}"


def table(header: list[str], rows: list[list[str]]) -> str:
    """Render a table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
