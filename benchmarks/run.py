"""Runs the studies of `studies/`, and writes their page.

    python benchmarks/run.py                       list the studies
    python benchmarks/run.py STUDY [options]       measure; `--help` says how, and what it takes
    python benchmarks/run.py report [--check]      make the tables of the results: `make bench-report`

What is measured lies in `results/`. Most studies go on where they stopped: the same command again.
"""

from __future__ import annotations

import argparse
import sys

from hybridr.errors import HybridrError
from study import open_study, question_of, study_files

INTERRUPTED = 130


def main(arguments: list[str] | None = None) -> int:
    """Run one study; exit code 1 when something failed, 2 for wrong usage, 130 when interrupted."""
    name, *rest = (sys.argv[1:] if arguments is None else arguments) or ["--help"]
    if name == "report":
        import report  # it needs every study, and what they need: too much beside a peak that is measured

        return report.main(rest)
    if name in ("-h", "--help"):
        print(listing())
        return 0
    if name not in study_files():
        print(f"error: there is no study '{name}'\n\n{listing()}", file=sys.stderr)
        return 2
    return run(name, rest)


def listing() -> str:
    """List the studies and what each asks."""
    lines = (f"    {name:<16} {question_of(file)}" for name, file in study_files().items())
    return "\n".join([str(__doc__), *lines])


def run(name: str, arguments: list[str]) -> int:
    """Run a study and say in a line why it could not be."""
    study = open_study(name)
    parser = argparse.ArgumentParser(
        f"run.py {name}", description=study.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    study.options(parser)
    try:
        return study.measure(parser.parse_args(arguments)) or 0
    except KeyboardInterrupt:
        print("interrupted: the same command goes on from what is kept", file=sys.stderr)
        return INTERRUPTED
    except HybridrError as error:
        print(f"error: {error.message}" + (f"\nhint: {error.hint}" if error.hint else ""), file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
