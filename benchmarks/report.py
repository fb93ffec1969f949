"""Regenerates benchmarks/README.md from the committed results: `make bench-report`.

    python benchmarks/report.py [--check]

With `--check` nothing is written; the exit code is 1 when the page does not say what the results say.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from sections import (
    adapt_speed,
    adaptation,
    ddr_full,
    ddr_reduced,
    encode,
    precision,
    reindex_memory,
    reindex_restart,
    reindex_speed,
)

HERE = Path(__file__).parent
RESULTS, PAGE = HERE / "results", HERE / "README.md"
SECTIONS = [
    ddr_reduced,
    ddr_full,
    adaptation,
    adapt_speed,
    encode,
    precision,
    reindex_speed,
    reindex_memory,
    reindex_restart,
]
MISSING = "Not run: no result is committed."
HEAD = """# Benchmarks

Made by `make bench-report` from `results/*.json`; a test checks that it is up to date. The conditions stand
in `conditions.toml`. FOLDER holds test collections in BEIR layout. What could not be run is marked so."""


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
    return "\n\n".join([HEAD, *(render_section(section) for section in SECTIONS)]) + "\n"


def render_section(section: ModuleType) -> str:
    """Render one section: title, the command that measures it, what was found."""
    record = read_result(RESULTS / section.RESULT)
    body = section.render(record) if record else getattr(section, "MISSING", MISSING)
    return f"## {section.TITLE}\n\n    {section.COMMAND}\n\n{body}"


def read_result(path: Path) -> dict[str, Any] | None:
    """Read `path`.json, or every file of the folder `path` by its name; None when there is neither."""
    if path.is_dir():
        files = sorted(path.glob("*.json"))
        return {file.stem: json.loads(file.read_text(encoding="utf-8")) for file in files} or None
    file = path.with_name(f"{path.name}.json")
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else None


if __name__ == "__main__":
    sys.exit(main())
