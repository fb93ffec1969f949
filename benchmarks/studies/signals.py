"""What do signals add to the ranking, each alone, left out, and all; what is kept for them?

    python benchmarks/run.py signals FOLDER [--sets cranfield,stackfaq] [--url URL] [--runs FOLDER] [--again]
                                            [--keep-tables]

FOLDER holds collections in BEIR layout, as folders or as NAME.tar.xz. Every one is loaded and reindexed under
its own name unless it is, as `run.py collections` does, and asked the same queries. Its term table is fitted
once more, timed, and takes the place of another one; with --keep-tables one that would be fitted the same way
stays, and the seconds are those of the result that is there. A signal that an index cannot give is left out:
token bits where they were not written. Every query is read once for all systems. A collection is finished
when `results/signals/` holds a result of the same settings, files, encoder, weights and version of hybridr.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

from collection import BASELINES, STATISTICS, Asked, Searched, Work, comparisons, loaded, vectorised
from conditions import chosen, read_conditions, the_twelve
from hybridr import load_encoder
from hybridr.cluster.connection import Cluster, path_of
from hybridr.cluster.destinations import resolve
from hybridr.cluster.record import IndexInfo
from hybridr.encoders.contract import TokenEncoder
from hybridr.encoders.export.exporting import minilm_encoder
from hybridr.evaluation.evaluation import Evaluation, JudgedQueries, evaluate
from hybridr.families import load_member, member_names
from hybridr.files.local import fingerprint, versions
from hybridr.indexing.terms.fitting import fit_term_table, reusable_table
from hybridr.indexing.terms.storage import keep_term_table
from hybridr.records import Progress
from hybridr.search.checks import encoder_for
from hybridr.search.context import SignalSet
from hybridr.search.search import Search
from hybridr.search.settings import SearchSettings
from hybridr.search.signals import FAMILY
from hybridr.search.systems import Condition, system
from hybridr_bench.searching import KnownQueries
from runner import Places, add_places, folder_of, run_open
from studies import collections as rankings
from study import LEAD, Record, Section, add_collections, machine_of, machine_record, table

WORDS, STOCK, PLAIN, DEFAULT = "bm25", "hybrid-stock", "hybrid-plain", "hybrid"
AND = "+"
MARKED = {STOCK: "h", PLAIN: "p"}
LEGEND = """\
hybrid-plain adds true scores of words and vectors, without signals. hybrid is the default of `hybridr
search`, with every usual signal that an index can provide. The others are hybrid-plain with the signals in
their name. With two signals, each one alone is the other one left out. h+ and h-: significantly better and
worse than hybrid-stock, p+ and p-: than hybrid-plain (two-sided paired t-test over queries, p < .05 after
Holm over the systems of a set). The formulas were found on these sets, so the figures are no estimate for
others."""
CHANGES = """\
The table shows the mean change over the collections, how many gain and lose, and on how many
significantly. Significance is after Holm, and in parentheses without any correction, which is the stricter
test of doing no harm."""
COSTS = """\
What is stored: the term table, which searches keep in memory, and the index with its vectors, and with
token bits where they were tried. Seconds are those of fitting the table. They are wall-clock time on a
machine of load {load}, and processor time of this process, in which the encoder reads the sample."""


def options(parser: argparse.ArgumentParser) -> None:
    """Take the collections, the cluster, and where results go."""
    add_collections(parser, the_twelve())
    add_places(parser)
    parser.add_argument("--keep-tables", action="store_true", help="fit no term table that is there")


def measure(given: argparse.Namespace) -> int:
    """Measure every chosen collection that has data and is not finished."""
    encoder, works = minilm_encoder(), []
    identity = load_encoder(encoder).fingerprint
    for condition in chosen(read_conditions(), given.sets):
        if (folder := folder_of(condition.name, given.folder, given.runs)) is None:
            print(f"{condition.name}: not run, it is not in {given.folder}", file=sys.stderr)
            continue
        asked = replace(condition, systems=[WORDS, STOCK, PLAIN, DEFAULT])
        runs = given.runs / "signals" / condition.name
        fitted = fitted_before(given.results, condition.name) if given.keep_tables else None
        works.append(Trial(asked, folder, runs, condition.name, encoder, identity, fitted=fitted))
    return run_open(works, Places(given.results, given.runs, given.again, "signals"), given.url, measure_set)


@dataclass(frozen=True)
class Trial(Work):
    """A collection on which signals are tried; `fitted` says what fitting its term table took before."""

    fitted: Record | None = None

    @property
    def fingerprint(self) -> str:
        """Identify what a result depends on."""
        return fingerprint([super().fingerprint, usual_weights()])


def fitted_before(results: Path, name: str) -> Record | None:
    """Read what fitting the term table of a set took; None where nobody measured it."""
    file = results / "signals" / f"{name}.json"
    if not file.is_file():
        return None
    found = json.loads(file.read_text(encoding="utf-8"))
    took = found["term_table"]
    return {"seconds": took["seconds"], "cpu_s": took["cpu_s"], "load": load_while_fitted(found)}


def load_while_fitted(found: Record) -> float:
    """Give the load of the machine while a term table was fitted; old results have one load for all."""
    return float(found["term_table"].get("load", found["load"]))


def usual_weights() -> dict[str, float]:
    """Give the weight of each signal."""
    return {name: load_member(FAMILY, name).weight for name in member_names(FAMILY)}


def measure_set(
    work: Trial, cluster: Cluster, progress: Progress, step: Callable[[int, int], None]
) -> dict[str, Any]:
    """Measure one collection: what its term table takes, then every system."""
    asked = Asked(work)
    documents = asked.timed("load", lambda: loaded(work, cluster, progress))
    searched = vectorised(work, cluster, asked, progress)
    step(1, 3)
    fitted = em_step(work, cluster, searched, progress)
    step(2, 3)
    info = resolve(cluster, searched.name)
    taken, evaluation = evaluated(work, cluster, info, asked, progress)
    return {
        "name": work.condition.name,
        "condition": work.fingerprint,
        "settings": work.condition.settings(),
        "inputs": work.inputs,
        "encoder": work.encoder_fingerprint,
        "documents": documents,
        "queries": evaluation.queries,
        "systems": evaluation.systems,
        "intervals": evaluation.intervals,
        "comparisons": comparisons(evaluation, (*BASELINES, PLAIN)),
        "statistics": STATISTICS,
        "weights": usual_weights(),
        "left_out": taken.left_out,
        "term_table": fitted,
        "index_bytes": stored_bytes(cluster, info),
        "seconds": asked.seconds,
        "load": round(os.getloadavg()[0], 2),
        "machine": machine_record(),
        "versions": {**versions(), "opensearch": cluster.info["version"]["number"]},
    }


def em_step(work: Trial, cluster: Cluster, searched: Searched, progress: Progress) -> Record:
    """Fit the term table of an index and let the index have it; give its size and the seconds of fitting.

    Where that was measured before, a table that would be fitted the same way stays.
    """
    info = resolve(cluster, searched.name)
    encoder = encoder_for(info, searched.encoder)
    made, took = reusable_table(cluster, info, encoder) if work.fitted else None, work.fitted
    if made is None or took is None:
        started, busy = time.monotonic(), time.process_time()
        made = fit_term_table(cluster, info, encoder, progress=progress)
        took = {
            "seconds": round(time.monotonic() - started, 1),
            "cpu_s": round(time.process_time() - busy, 1),
            "load": round(os.getloadavg()[0], 2),
        }
        keep_term_table(cluster, info, made)
    size = {"terms": len(made.terms), "bytes": len(made.packed())}
    return {"fingerprint": made.fingerprint, "documents": made.origin["documents"], **size, **took}


def evaluated(
    work: Work, cluster: Cluster, info: IndexInfo, asked: Asked, progress: Progress
) -> tuple[SignalSet, Evaluation]:
    """Ask every system; give the signals that the index has, and what was found."""
    condition = work.condition
    queries, qrels = JudgedQueries(work.folder, condition.split, asked.qrels).read()
    known = KnownQueries(encoder_for(info, work.encoder), [query.text for query in queries])
    taken = signals_of(cluster, info, known)
    searches = {
        name: Search(
            cluster, info, known, one.mode, settings=one.search_settings(None, SearchSettings().depth)
        )
        for name, one in {WORDS: system(WORDS), STOCK: system(STOCK), **compared(taken)}.items()
    }
    found = asked.timed(
        "searches", lambda: evaluate(searches, queries, qrels, condition.measures, progress=progress)
    )
    return taken, found


def signals_of(cluster: Cluster, info: IndexInfo, encoder: TokenEncoder) -> SignalSet:
    """Give the signals that an index can give."""
    return Search(cluster, info, encoder, settings=SearchSettings(tuned=False, signals=("all",))).signals


def compared(taken: SignalSet) -> dict[str, Condition]:
    """Give the systems by name: without signals, each signal alone, each left out, all, and the default."""
    some = {AND.join(one): one for one in subsets(tuple(taken.members)) if one != taken.usual}
    chosen_signals = {PLAIN: ("none",), **some, DEFAULT: ("auto",)}
    return {
        name: Condition("hybrid", settings={"tuned": False, "signals": signals})
        for name, signals in chosen_signals.items()
    }


def subsets(names: tuple[str, ...]) -> list[tuple[str, ...]]:
    """Give each name alone, all but one, and all; none twice."""
    sizes = dict.fromkeys([1, len(names) - 1, len(names)])
    return [one for size in sizes if size > 0 for one in combinations(names, size)]


def stored_bytes(cluster: Cluster, info: IndexInfo) -> int:
    """Give the size of an index."""
    found = cluster.request("GET", path_of(info.name, "_stats", "store"))
    return int(found["_all"]["primaries"]["store"]["size_in_bytes"])


def render(record: Record) -> str:
    """Render values by set, the changes, and what is kept."""
    record = {name: record[name] for name in the_twelve() if name in record}
    systems = shown(record)
    machines = dict.fromkeys(machine_of(found["machine"]) for found in record.values())
    said = (
        f"{len(record)} of the twelve collections, at most {rankings.most_queries():,} queries each, "
        f"those of the rankings above; the packaged MiniLM. {'. '.join(machines)}."
    )
    loads = [load_while_fitted(found) for found in record.values()]
    costs = COSTS.format(load=f"{min(loads):.0f} to {max(loads):.0f}")
    tables = [values_table(record, systems), LEGEND, CHANGES, changes_table(record, systems), costs]
    return "\n\n".join([said, *tables, costs_table(record), *left_out(record)])


def shown(record: Record) -> list[str]:
    """Name the systems of all sets, the default last."""
    found = dict.fromkeys(name for one in record.values() for name in one["systems"])
    return [name for name in found if name not in (WORDS, DEFAULT)] + [DEFAULT]


def values_table(record: Record, systems: Sequence[str]) -> str:
    """Render the means of systems by sets, and those over the sets."""
    rows = [
        [name, f"{one['queries']:,}", *(value_cell(one, system) for system in systems)]
        for name, one in record.items()
    ]
    means = [rankings.mean_cell(record, system) for system in systems]
    return table([LEAD, "queries", *systems], [*rows, [f"**mean of {len(record)}**", "", *means]])


def value_cell(found: Record, system: str) -> str:
    """Render one value with its marks; nothing where the index lacks a signal."""
    if system not in found["systems"]:
        return ""
    marks = [rankings.mark(found, system, baseline, letter) for baseline, letter in MARKED.items()]
    return " ".join([f"{rankings.value_of(found, system):.4f}", *filter(None, marks)])


class Change(NamedTuple):
    """The change of a set, and how sure it is."""

    name: str
    difference: float
    p_value: float
    p_holm: float


def changes_table(record: Record, systems: Sequence[str]) -> str:
    """Render a row for each system: its changes against both baselines."""
    header = ["system", "sets"]
    for baseline in reversed(MARKED):
        header += [f"against {baseline}", "sets up/down", "significantly", "worst"]
    rows = []
    for one in systems:
        found = {baseline: changes_of(record, one, baseline) for baseline in reversed(MARKED)}
        ran = sum(one in measured["systems"] for measured in record.values())
        rows.append([one, str(ran), *(cell for each in found.values() for cell in change_cells(each))])
    return table(header, rows)


def changes_of(record: Record, system: str, baseline: str) -> list[Change]:
    """Collect the changes of one system over the sets that have it."""
    found = {name: rankings.comparison(one, system, baseline) for name, one in record.items()}
    return [
        Change(name, one["difference"], one["p_value"], one["p_holm"]) for name, one in found.items() if one
    ]


def change_cells(changes: Sequence[Change]) -> list[str]:
    """Render the changes of one system; nothing for the baseline itself."""
    if not changes:
        return [""] * 4
    values = {one.name: one.difference for one in changes}
    sure = f"{significant(changes, 'p_holm')} ({significant(changes, 'p_value')})"
    return [rankings.mean_change(values), rankings.up_down(values), sure, rankings.worst(values)]


def significant(changes: Sequence[Change], by: str) -> str:
    """Count the sets that gain and lose significantly."""
    sure = [one.difference for one in changes if getattr(one, by) < rankings.SIGNIFICANT]
    return f"{sum(one > 0 for one in sure)}/{sum(one < 0 for one in sure)}"


def costs_table(record: Record) -> str:
    """Render what each set keeps."""
    header = ["collection", "documents", "index MB", "read for the table", "terms", "table MB"]
    rows = []
    for name, found in record.items():
        made = found["term_table"]
        rows.append(
            [
                name,
                f"{found['documents']:,}",
                f"{found['index_bytes'] / 1e6:.1f}",
                f"{made['documents']:,}",
                f"{made['terms']:,}",
                f"{made['bytes'] / 1e6:.2f}",
                f"{made['seconds']:.1f}",
                f"{made['cpu_s']:.1f}",
            ]
        )
    return table([*header, "seconds", "CPU s"], rows)


def left_out(record: Record) -> list[str]:
    """Say which signals some indices could not give."""
    lacking: dict[str, list[str]] = {}
    for name, found in record.items():
        for signal in found["left_out"]:
            lacking.setdefault(signal, []).append(name)
    return [f"Without {signal}: {', '.join(names)}." for signal, names in lacking.items()]


SECTIONS = [
    Section(
        15,
        "Signals, alone and left out",
        "signals",
        "python benchmarks/run.py signals FOLDER",
        render,
    )
]
