"""Makes benchmarks/README.md, its plot, and the table of the main README from the committed results.

With `--check` nothing is written; the exit code is 1 when one of them does not say what the results say.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import study
from hybridr.errors import DataError
from hybridr.files.local import fingerprint
from pictures import svg
from studies.collections import REFERENCE, comparison, of_group, overview, systems_of, with_default
from study import HERE, Record, Section, all_sections, read_result

PAGE, README, ANSWERED = HERE / "README.md", HERE.parent / "README.md", HERE / "answered.md"
PLOT = HERE / "plots" / "headline.svg"
BLOCK = re.compile(r"(?<=<!-- headline -->\n).*?(?=<!-- /headline -->)", re.DOTALL)
RANKINGS = "collections"
DRAWN = "hybrid"
"""The other systems are so far from the hybrids that nothing else could be seen."""
UNKNOWN = {"commit": "not recorded", "ranking": None}
MISSING = "Not run: no result is committed."

Draw = Callable[[Path, Any, str], None]
Changes = dict[str, dict[str, tuple[float, float, float]]]

HEAD = """# Benchmarks

This page measures hybridr's ranking, speed, memory and training, and compares them with OpenSearch's own
hybrid search and with other libraries. The first section compares the default hybrid with OpenSearch's
hybrid on twelve collections.

`make bench-report` writes this page from the results in `results/`; a test checks that it is up to date.
`conditions.toml` and `published.toml` define what is run, the settings, and the expected values. FOLDER
holds test collections, the open ones in BEIR layout. What could not be run is marked "not run", never
filled in.

`python benchmarks/run.py` lists the studies. `run.py STUDY --help` says what a study measures, and its
options. A study is one file in `studies/`: how it measures, where its result is stored, how that is
rendered. A new file there is a new study; `study.py` says what it must contain.

All studies need a checkout. `run.py speed RACE` compares hybridr with the alternatives, on Python's
documentation or on your own BEIR folders. `--json FILE` keeps its figures out of `results/`.

"The twelve", here and in all docs, are the first twelve sets of the first table (group `twelve` of
`conditions.toml`). Each has at most 1,000 queries. If one of them is left out, the number of sets is
stated.

`make bench COLLECTIONS=FOLDER` runs every open collection that is not finished. A condition is finished if
`results/collections/` has a result with the same settings, files, encoder and ranking code.
`results/failed/` says why one failed. Interrupted ones continue from the index, and from the adapted
encoders and run files in `runs/`. Neither folder is committed.

Each result names machine, versions, seconds, the sha256 of its run files, its commit and a digest of the
ranking code (`RANKING` in `study.py`). Sections say if that code has changed since. Older measurements are
"not recorded": the code may or may not have changed."""


def main(arguments: list[str] | None = None) -> int:
    """Write what the results give, or check that it stands there."""
    parser = argparse.ArgumentParser("run.py report", description=__doc__)
    parser.add_argument("--check", action="store_true")
    if not parser.parse_args(arguments).check:
        write()
        return 0
    for name in (found := stale()):
        print(f"{name} is not what the results say: make bench-report", file=sys.stderr)
    return int(bool(found))


def write() -> None:
    """Write page, table and pictures."""
    PAGE.write_text(render_page(), encoding="utf-8")
    README.write_text(render_readme(), encoding="utf-8")
    for file, (values, draw_values) in pictures().items():
        if not is_current(file, values):
            draw_values(file, values, identity(values))


def stale() -> list[str]:
    """Name what does not say what the results say."""
    pages = {PAGE: render_page(), README: render_readme()}
    found = [file for file, text in pages.items() if read(file) != text]
    found += [file for file, (values, _) in pictures().items() if not is_current(file, values)]
    return [str(file.relative_to(HERE.parent)) for file in found]


def read(file: Path) -> str:
    """Read a page; one that is not there is empty."""
    return file.read_text(encoding="utf-8") if file.is_file() else ""


def pictures() -> dict[Path, tuple[Record, Draw]]:
    """Give what each picture shows and how it is drawn, without those that have nothing to show."""
    found: dict[Path, tuple[Record, Draw]] = {
        PLOT: (changes_of(with_default(read_result(RANKINGS) or {})), draw)
    }
    for section in all_sections():
        if section.picture is not None and (record := read_result(section.result)) is not None:
            file = PLOT.with_name(f"{section.result}.svg")
            found[file] = (section.picture.values(record), section.picture.draw)
    return {file: shown for file, shown in found.items() if shown[0]}


def render_readme() -> str:
    """Put the table between its markers in the main README. Raises DataError when there are none."""
    page, record = read(README), read_result(RANKINGS)
    if not BLOCK.search(page):
        raise DataError("README.md has no <!-- headline --> and <!-- /headline -->, each on its own line")
    shown = overview(with_default(record)) if record else MISSING
    return BLOCK.sub(lambda _: f"{shown}\n", page)


def render_page() -> str:
    """Render the sections of all studies."""
    answered = ANSWERED.read_text(encoding="utf-8").rstrip()
    return "\n\n".join([HEAD, *map(render_section, all_sections()), answered]) + "\n"


def render_section(section: Section) -> str:
    """Render one section: title, the command that measures it, what was found."""
    record = read_result(section.result)
    if record is None:
        return f"## {section.title}\n\n    {section.command}\n\n{section.missing}"
    results = list(record.values()) if (study.RESULTS / section.result).is_dir() else [record]
    body = f"{told_code(results)}\n\n{section.render(record)}"
    return f"## {section.title}\n\n    {section.command}\n\n{body}"


def told_code(results: list[Record]) -> str:
    """Say at which commits results were measured, and where what ranks is other code today."""
    today = study.ranking_code()
    codes = [code for result in results for code in result.get("code", [UNKNOWN])]
    changed = {True: "", False: " (the ranking code has changed since)"}
    said = [code["commit"] + changed[code["ranking"] in (None, today)] for code in codes]
    counted = [f"{commit}, {count} of {len(said)}" for commit, count in Counter(said).items()]
    return f"Commit: {said[0] if len(counted) == 1 else '; '.join(counted)}."


def changes_of(record: dict[str, Any]) -> Changes:
    """Collect what is drawn: system -> set -> change against the stock hybrid, and its interval."""
    drawn: Changes = {}
    for system in systems_of(record):
        for name, found in of_group(record).items():
            versus = comparison(found, system, REFERENCE)
            if versus is not None and system.startswith(DRAWN):
                drawn.setdefault(system, {})[name] = (versus["difference"], versus["low"], versus["high"])
    return drawn


def identity(values: Record) -> str:
    """Identify what is drawn, for the check that a picture is up to date."""
    return f"values {fingerprint(values)[:16]}"


def is_current(file: Path, values: Record) -> bool:
    """Tell whether a picture shows these values, whichever matplotlib drew it."""
    return file.is_file() and identity(values) in file.read_text(encoding="utf-8")


def draw(file: Path, changes: Changes, description: str) -> None:
    """Draw a point with its interval for every system and set into an SVG."""
    names = list(dict.fromkeys(name for found in changes.values() for name in found))
    with svg(file, (8, 0.9 + 0.42 * len(names)), {"Creator": None, "Description": description}) as axes:
        for number, (system, found) in enumerate(changes.items()):
            shift = (number - (len(changes) - 1) / 2) * 0.6 / max(len(changes), 1)
            places = [names.index(name) + shift for name in found]
            middle = [value for value, _, _ in found.values()]
            below = [value - low for value, low, _ in found.values()]
            above = [high - value for value, _, high in found.values()]
            axes.errorbar(
                middle, places, xerr=[below, above], fmt="o", markersize=4, linewidth=1, label=system
            )
        axes.axvline(0.0, color="black", linewidth=0.8)
        axes.set_yticks(range(len(names)), names)
        axes.set_ylim(len(names) - 0.5, -0.5)
        axes.set_xlabel("change of nDCG@10 against hybrid-stock, with its 95 % interval")
        axes.legend(loc="best", fontsize="small")
