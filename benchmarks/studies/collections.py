"""How does every system rank the open collections, and what changes against the stock hybrid?

    python benchmarks/run.py collections FOLDER [--sets cisi,npl] [--url URL] [--runs FOLDER] [--again]

FOLDER holds collections in BEIR layout, as folders or as NAME.tar.xz; `conditions.toml` says what is asked of
each and what is expected. Without `--url` (or HYBRIDR_URL) an embedded node called `bench` is started.
Finished conditions stand in `results/collections/` and are not run again unless their settings, files,
encoder or hybridr's version changed; failed ones are explained in `results/failed/`; unfinished ones go on
where they stopped, from the index and what lies in `--runs`.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from collection import Work
from conditions import ADAPTED, Condition, chosen, read_conditions, the_twelve
from hybridr import load_encoder
from hybridr.encoders.export.exporting import minilm_encoder
from runner import Places, add_places, folder_of, run_open
from study import LEAD, Record, Section, add_collections, machine_of, read_result, table

REFERENCE, BASELINE, DENSE, DEFAULT = "hybrid-stock", "bm25", "dense", "hybrid"
SIGNALS = "signals"
SAMPLE = ("settings", "inputs", "encoder")
"""What two results have in common when they are of the same queries and documents."""
SIGNIFICANT = 0.05
LABELS = {"bm25": "BM25", "rm3": "BM25+RM3"}
SHOWN = ("bm25", "rm3", "dense", "hybrid-stock", "hybrid-plain", "hybrid")
"""What the main README shows; the page has all."""
LEGEND = (
    "b+ and b-: significantly better and worse than BM25; h+ and h-: than hybrid-stock (two-sided paired "
    "t-test over queries, p < .05 after Holm over the systems of a set).\n\n"
    "- hybrid-stock is OpenSearch's own normalization-processor: min_max, .5/.5, 100 candidates a "
    "retriever.\n"
    "- hybrid-plain adds true scores of words and vectors (docs/ranking.md).\n"
    "- hybrid, the default of `hybridr search`, adds signals too. Where it was not run here, its values come "
    "from the study of signals below, over the same queries.\n"
    "- `-adapted`: after `hybridr adapt` of the encoder to this set without labels, and a second reindex. "
    "Vetoed: the gate kept the unadapted encoder, whose value is shown.\n\n"
    "The defaults were chosen on these sets."
)
GONE = ("-tuned", "-span")
"""Ends of systems that went; what was measured of them is still in the results."""
WENT = (
    "The results still contain two removed systems, and Holm's correction still counts them. `-tuned` had a "
    "query map that `hybridr tune` fitted without labels: hybrid-plain had .5587 without and .5596 with the "
    "map. `-span` had an encoder that was fitted by span contrast: dense +.0012, hybrid-plain +.0009."
)
COMPLETED = "hybrid-completed, which is no longer run, fused z-scores of true scores over both lists."
ADAPTATIONS = (
    "What adaptation alone changes: each system against the same one without it (significantly: p < .05 on a "
    "set, not corrected; promoted sets only)."
)
BETTER = "The better retriever is BM25 or dense, whichever ranks a set better. Users cannot know which."
PLOT = "![Change of nDCG@10 against hybrid-stock by set](plots/headline.svg)"


def options(parser: argparse.ArgumentParser) -> None:
    """Take the collections, the cluster, and where results go."""
    add_collections(parser, list(read_conditions()))
    add_places(parser)


def measure(given: argparse.Namespace) -> int:
    """Run every chosen condition that has data and is not finished, and say what came of each."""
    found = [
        (one, folder_of(one.name, given.folder, given.runs)) for one in chosen(read_conditions(), given.sets)
    ]
    for condition, folder in found:
        if folder is None:
            print(f"{condition.name}: not run, it is not in {given.folder}", file=sys.stderr)
    there = [(condition, folder) for condition, folder in found if folder is not None]
    return run_open(
        with_encoder(there, given.runs), Places(given.results, given.runs, given.again), given.url
    )


def with_encoder(there: list[tuple[Condition, Path]], runs: Path) -> list[Work]:
    """Turn conditions into work; those that need vectors get the packaged MiniLM."""
    encoder = minilm_encoder() if any(condition.needs_vectors for condition, _ in there) else None
    identity = load_encoder(encoder).fingerprint if encoder else None
    return [
        Work(condition, folder, runs / condition.name, condition.name, encoder, identity)
        if condition.needs_vectors
        else Work(condition, folder, runs / condition.name, condition.name)
        for condition, folder in there
    ]


def render(record: Record) -> str:
    """Render the tables, the plot, and what was not expected."""
    record = with_default(record)
    machines = dict.fromkeys(machine_of(found["machine"]) for found in record.values())
    servers = dict.fromkeys(found["versions"]["opensearch"] for found in record.values())
    said = (
        f"Whole corpora, at most {most_queries():,} queries per set, drawn at random if there are more. "
        f"OpenSearch {', '.join(servers)}; the packaged MiniLM in fp32. {'. '.join(machines)}."
    )
    return "\n\n".join([said, tables(record), PLOT, *not_asked(record), *not_run(), expectation(record)])


def with_default(record: Record) -> Record:
    """Put the default beside the other systems as the study of signals measured it, over the same sample."""
    signals = read_result(SIGNALS) or {}
    return {name: beside(found, signals.get(name)) for name, found in record.items()}


def beside(found: Record, other: Record | None) -> Record:
    """Add the default of another result, and what it was compared with; nothing if it was asked here too."""
    if other is None or DEFAULT in found["systems"]:
        return found
    if any(found.get(name) != other[name] for name in SAMPLE):
        return found
    compared = {
        baseline: rows + [one for one in other["comparisons"].get(baseline, []) if one["system"] == DEFAULT]
        for baseline, rows in found["comparisons"].items()
    }
    systems = found["systems"] | {DEFAULT: other["systems"][DEFAULT]}
    return found | {"systems": systems, "comparisons": compared}


def tables(record: Record) -> str:
    """Render every system by every set, and the changes."""
    systems = systems_of(record)
    gone = any(system.endswith(GONE) for found in record.values() for system in found["systems"])
    legend = f"{LEGEND} {COMPLETED}{f' {WENT}' if gone else ''}"
    twelve = of_group(record)
    parts = [values_table(record, systems), legend, changes(twelve, systems), BETTER]
    if adapted := adaptations(twelve, systems):
        parts += [ADAPTATIONS, adapted]
    return "\n\n".join(parts)


def overview(record: Record) -> str:
    """Render what the main README shows: the systems that matter most, by their means over the twelve."""
    twelve = of_group(record)
    header = [f"mean of {len(twelve)} collections", LEAD, "against hybrid-stock", "sets up/down"]
    rows = []
    for system in SHOWN:
        if system in systems_of(record):
            label, *against = change_row(twelve, system)
            rows.append([label, mean_cell(twelve, system).strip("*"), *against[:2]])
    return f"{table(header, rows)}\n\n{verdict(twelve)}"


def verdict(twelve: Record) -> str:
    """Say where the default is surely better or worse than the stock hybrid, and where dense is better."""
    ran = {name: found for name, found in twelve.items() if {DEFAULT, DENSE} <= found["systems"].keys()}
    sure = [mark(found, DEFAULT, REFERENCE, "") for found in ran.values()]
    behind = [name for name, found in ran.items() if value_of(found, DEFAULT) < value_of(found, DENSE)]
    better, worse = sure.count("+"), sure.count("-")
    return (
        f"On {better} of the {len(ran)} hybrid is significantly better than hybrid-stock, on {worse} worse, "
        f"on {len(ran) - better - worse} neither; vectors alone rank better on {', '.join(behind) or 'none'}."
    )


def values_table(record: Record, systems: list[str]) -> str:
    """Render the means of systems by sets, and those over the twelve."""
    header = [LEAD, "documents", "queries", *(LABELS.get(name, name) for name in systems)]
    twelve = of_group(record)
    means = [mean_cell(twelve, system) for system in systems]
    rows = [row(name, record.get(name), systems) for name in read_conditions()]
    return table(header, [*rows, [f"**mean of {len(twelve)} of the twelve**", "", "", *means]])


def systems_of(record: Record) -> list[str]:
    """Name the systems of all results, in the order of the conditions."""
    ran = dict.fromkeys(
        system for found in record.values() for system in found["systems"] if not system.endswith(GONE)
    )
    return list(dict.fromkeys([*(one for one in named_systems() if one in ran), *ran]))


def named_systems() -> list[str]:
    """Name the systems of all conditions."""
    return list(dict.fromkeys(one for condition in read_conditions().values() for one in condition.systems))


def not_asked(record: Record) -> list[str]:
    """Name the systems that were run on no set."""
    ran = systems_of(record)
    missing = [system for system in named_systems() if system not in ran]
    return [f"Not run on any set so far: {', '.join(missing)}."] if missing else []


def most_queries() -> int:
    """Tell how many queries are asked at most."""
    return max(condition.queries for condition in read_conditions().values())


def of_group(record: Record) -> Record:
    """Keep the results of the sets whose mean is taken."""
    return {name: record[name] for name in the_twelve() if name in record}


def row(name: str, found: Record | None, systems: list[str]) -> list[str]:
    """Render one set."""
    if found is None:
        return [name, "", "", *("not run" for _ in systems)]
    cells = [cell(found, system) for system in systems]
    return [name, f"{found['documents']:,}", f"{found['queries']:,}", *cells]


def cell(found: Record, system: str) -> str:
    """Render one value with its marks."""
    if system not in found["systems"]:
        return "not run"
    marks = [mark(found, system, BASELINE, "b"), mark(found, system, REFERENCE, "h")]
    veto = "vetoed" if is_vetoed(found, system) else ""
    return " ".join([f"{value_of(found, system):.4f}", *filter(None, [*marks, veto])])


def is_vetoed(found: Record, system: str) -> bool:
    """Tell whether the gate kept the unadapted encoder, so that this is what was asked."""
    return ADAPTED in system and not found["adaptation"]["promoted"]


def mark(found: Record, system: str, baseline: str, letter: str) -> str:
    """Mark a significant difference, whichever way it goes."""
    versus = comparison(found, system, baseline)
    if versus is None or versus["p_holm"] >= SIGNIFICANT:
        return ""
    return f"{letter}{'+' if versus['difference'] > 0 else '-'}"


def comparison(found: Record, system: str, baseline: str) -> dict[str, Any] | None:
    """Find a comparison by the leading measure."""
    for one in found["comparisons"].get(baseline, []):
        if one["system"] == system and one["measure"] == LEAD:
            return dict(one)
    return None


def value_of(found: Record, system: str) -> float:
    """Give a system's mean."""
    return float(found["systems"][system][LEAD])


def mean_cell(twelve: Record, system: str) -> str:
    """Render the mean over sets, only where the system ran on all of them."""
    if not twelve or any(system not in found["systems"] for found in twelve.values()):
        return "not run"
    return f"**{sum(value_of(found, system) for found in twelve.values()) / len(twelve):.4f}**"


def changes(twelve: Record, systems: list[str]) -> str:
    """Render the changes against the stock hybrid and against the better single retriever."""
    header = [
        "system",
        "against hybrid-stock",
        "sets up/down",
        "significantly",
        "worst",
        "against the better retriever",
        "sets up/down",
        "worst",
    ]
    shown = [system for system in systems if any(system in found["systems"] for found in twelve.values())]
    return table(header, [change_row(twelve, system) for system in shown])


def change_row(twelve: Record, system: str) -> list[str]:
    """Render one system's changes over the sets where it ran beside both."""
    ran = {name: found for name, found in twelve.items() if system in found["systems"]}
    stock = {
        name: value_of(found, system) - value_of(found, REFERENCE)
        for name, found in ran.items()
        if REFERENCE in found["systems"]
    }
    single = {
        name: value_of(found, system) - max(value_of(found, BASELINE), value_of(found, DENSE))
        for name, found in ran.items()
        if {BASELINE, DENSE} <= found["systems"].keys()
    }
    sure = [mark(found, system, REFERENCE, "") for found in ran.values()]
    label = LABELS.get(system, system) + (f" ({len(ran)} sets)" if len(ran) < len(twelve) else "")
    against = (
        ["", "", "", ""]
        if system == REFERENCE
        else [mean_change(stock), up_down(stock), f"{sure.count('+')}/{sure.count('-')}", worst(stock)]
    )
    return [label, *against, mean_change(single), up_down(single), worst(single)]


def adaptations(twelve: Record, systems: list[str]) -> str:
    """Render what adaptation changes; nothing where it was not run."""
    header = ["system", "against", "mean of all", "promoted", "sets up/down", "significantly"]
    shown = [
        system
        for system in systems
        if ADAPTED in system and any(comparison(one, system, without(system)) for one in twelve.values())
    ]
    rows = [adaptation_row(twelve, system) for system in shown]
    return table([*header, "worst", "best"], rows) if shown else ""


def without(system: str) -> str:
    """Name the same system without adaptation."""
    return system.replace(ADAPTED, "")


def adaptation_row(twelve: Record, system: str) -> list[str]:
    """Render what adaptation changes in one system; a vetoed one changes nothing."""
    found = {name: one for name, one in twelve.items() if comparison(one, system, without(system))}
    ran = {name: one for name, one in found.items() if not is_vetoed(one, system)}
    gains = {name: value_of(one, system) - value_of(one, without(system)) for name, one in ran.items()}
    sure = [mark(one, system, without(system), "") for one in ran.values()]
    every = {name: gains.get(name, 0.0) for name in found}
    return [
        system,
        LABELS.get(without(system), without(system)),
        mean_change(every),
        f"{len(ran)} of {len(found)}",
        up_down(gains),
        f"{sure.count('+')}/{sure.count('-')}",
        worst(gains),
        best(gains),
    ]


def mean_change(found: dict[str, float]) -> str:
    """Render the mean of changes."""
    return f"{sum(found.values()) / len(found):+.4f}" if found else "not run"


def up_down(found: dict[str, float]) -> str:
    """Count the sets that gain and lose."""
    return f"{sum(value > 0 for value in found.values())}/{sum(value < 0 for value in found.values())}"


def worst(found: dict[str, float]) -> str:
    """Render the least change and its set."""
    return named(found, min(found, key=lambda one: found[one])) if found else ""


def best(found: dict[str, float]) -> str:
    """Render the greatest change and its set."""
    return named(found, max(found, key=lambda one: found[one])) if found else ""


def named(found: dict[str, float], name: str) -> str:
    """Render a change and its set."""
    return f"{found[name]:+.4f} ({name})"


def not_run() -> list[str]:
    """Say why some systems do not run on some sets."""
    reasons: dict[str, list[str]] = {}
    for name, condition in read_conditions().items():
        if condition.not_run:
            reasons.setdefault(condition.not_run, []).append(name)
    return [f"Not run on {', '.join(names)}: {reason}." for reason, names in reasons.items()]


def expectation(record: Record) -> str:
    """Say which of the expected values were met."""
    conditions = read_conditions()
    checked = [(one, record[one.name]["systems"]) for one in conditions.values() if one.name in record]
    wanted = sum(name in systems for one, systems in checked for name in one.expected)
    off = [text for one, systems in checked for text in unexpected(one, systems)]
    met = f"Of {wanted} expected values (`conditions.toml`), {wanted - len(off)} were met"
    return f"{met}. Not met: {', '.join(off)}." if off else f"{met}."


def unexpected(condition: Condition, systems: Record) -> list[str]:
    """List the values that differ from what was expected by more than the tolerance."""
    return [
        f"{condition.name} {name} {systems[name][LEAD]:.4f}, expected {value:.3f}"
        for name, value in condition.expected.items()
        if name in systems and abs(systems[name][LEAD] - value) > condition.tolerance
    ]


SECTIONS = [
    Section(
        10,
        "Rankings of the open collections",
        "collections",
        "python benchmarks/run.py collections FOLDER",
        render,
    )
]
