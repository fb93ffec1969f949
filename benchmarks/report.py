"""Regenerates benchmarks/README.md, its plot, and the headline of the main README: `make bench-report`.

    python benchmarks/report.py [--check]

They are made of the committed results. With `--check` nothing is written; the exit code is 1 when one of them
does not say what the results say.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import plots
from hybridr.errors import DataError
from sections import (
    adapt_speed,
    adaptation,
    baselines,
    ddr_full,
    ddr_reduced,
    encode,
    fusion,
    headline,
    label_free,
    precision,
    reindex_memory,
    reindex_restart,
    reindex_speed,
    reproduction,
    search_speed,
    serve_speed,
)

HERE = Path(__file__).parent
RESULTS, PAGE, README = HERE / "results", HERE / "README.md", HERE.parent / "README.md"
PLOT = HERE / "plots" / "headline.svg"
BLOCK = re.compile(r"(?<=<!-- headline -->\n).*?(?=<!-- /headline -->)", re.DOTALL)
SECTIONS = [
    headline,
    fusion,
    label_free,
    baselines,
    search_speed,
    serve_speed,
    ddr_reduced,
    ddr_full,
    adaptation,
    adapt_speed,
    encode,
    precision,
    reindex_speed,
    reindex_memory,
    reindex_restart,
    reproduction,
]
MISSING = "Not run: no result is committed."
HEAD = """# Benchmarks

Made by `make bench-report` from what is committed in `results/`; a test checks that it is up to date. What
is run, with which settings and what is expected stand in `conditions.toml` and `published.toml`. FOLDER holds
test collections, the open ones in BEIR layout. What could not be run is marked "not run", never filled in.

`make bench COLLECTIONS=FOLDER` runs every open collection that is not finished. A condition is finished when
`results/collections/` holds a result with the same settings, files, encoder and version of hybridr. Why one
failed is told in `results/failed/`; interrupted ones go on from the index, and from the adapted encoders and
run files in `runs/`. Neither is committed. Each result names machine, versions, seconds and the sha256 of its
run files."""


def main() -> int:
    """Write what the results give, or check that it stands there."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true")
    if not parser.parse_args().check:
        write()
        return 0
    for name in (found := stale()):
        print(f"{name} is not what the results say: make bench-report", file=sys.stderr)
    return int(bool(found))


def write() -> None:
    """Write page, headline and plot."""
    PAGE.write_text(render_page(), encoding="utf-8")
    README.write_text(render_readme(), encoding="utf-8")
    if not is_plot_current():
        plots.draw(PLOT, changes())


def stale() -> list[str]:
    """Name what does not say what the results say."""
    pages = {PAGE: render_page(), README: render_readme()}
    found = [file for file, text in pages.items() if read(file) != text]
    return [str(file.relative_to(HERE.parent)) for file in [*found, *([] if is_plot_current() else [PLOT])]]


def read(file: Path) -> str:
    """Read a page; one that is not there is empty."""
    return file.read_text(encoding="utf-8") if file.is_file() else ""


def changes() -> plots.Changes:
    """Collect what the plot shows."""
    return plots.changes_of(read_result(RESULTS / headline.RESULT) or {})


def is_plot_current() -> bool:
    """Tell whether the plot shows the results; without any there is nothing to draw."""
    return not changes() or plots.is_current(PLOT, changes())


def render_readme() -> str:
    """Put the headline between its markers in the main README. Raises DataError when there are none."""
    page, record = read(README), read_result(RESULTS / headline.RESULT)
    if not BLOCK.search(page):
        raise DataError("README.md has no <!-- headline --> and <!-- /headline -->, each on its own line")
    return BLOCK.sub(lambda _: f"{headline.overview(record) if record else MISSING}\n", page)


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
