"""The tables of DR, DDR and its rivals: means over seeds, what DDR gains by target, trials, trainings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

from conditions import read_form
from hybridr.evaluation.significance import CONFIDENCE, SEED, holm, paired_t
from paper import DEEP, EFFECTS, NO_SEED, PAIRS, ROWS, SCALE, TRIAL, WAYS
from pictures import svg
from study import LEAD, Record, machine_of, table

DRAWS = 2_000
BASE = "dr"
SHOWN = (("dense", LEAD), ("hybrid", LEAD), ("dense", DEEP), ("hybrid", DEEP))
Array = NDArray[np.float64]


def render(record: Record) -> str:
    """Render all that the study has found, by target."""
    form = read_form("ddr", "small")
    counted = [name for name in form["targets"] if name in record]
    machine = machine_of(next(iter(record.values()))["machine"])
    tried = any(runs_of(record, name, row) for name in form["choosing"] for row in form["trial_rows"])
    said = (
        f"Source `{form['source']}`, backbone {form['backbone']['package']} (2 layers of 128). Settings were "
        f"tried on {' and '.join(form['choosing'])}, which do not count{'; no trial ran yet' * (not tried)}. "
        "Values are means over the seeds that ran; their number is in parentheses if it is not "
        f"{len(form['seeds'])}. A star marks p < .05 against DR (paired t over queries, their values "
        f"averaged over seeds; Holm over the targets that ran). {machine}."
    )
    seeds, rows = len(form["seeds"]), [row for rows in form["rounds"] for row in rows]
    tables = [values_table(record, counted, rows, seeds, shown) for shown in SHOWN] if counted else []
    pairs = {f"DDR less DR by {loss}": pair for loss, pair in PAIRS.items()} | EFFECTS
    tables += [gains_table(record, counted, title, pair) for title, pair in pairs.items()]
    trials = [*form["rounds"][0], *form["trial_rows"]]
    tables.append(values_table(record, form["choosing"], trials, seeds, SHOWN[0]))
    tables += [trainings_table(record), missing(record, counted, rows)]
    picture = "![DDR less DR on each target](plots/ddr-small.svg)" if gains_drawn(record) else ""
    return "\n\n".join(part for part in [said, picture, *tables] if part)


def missing(record: Record, names: Sequence[str], rows: Sequence[str]) -> str:
    """Say which rows were measured on no target."""
    absent = [title_of(row) for row in rows if not any(runs_of(record, name, row) for name in names)]
    return f"Not run: {'; '.join(absent)}." if absent else ""


def values_table(
    record: Record, names: Sequence[str], rows: Sequence[str], seeds: int, shown: tuple[str, str]
) -> str:
    """Render one measure (way and name), rows by targets and their mean."""
    way, measure = shown
    header = [f"{measure}, {way}", *(heading(record, name) for name in names), "mean"]
    ran = [row for row in rows if any(runs_of(record, name, row) for name in names)]
    return table(header, [line(record, names, row, shown, seeds) for row in ran])


def heading(record: Record, name: str) -> str:
    """Name a target, with how many queries were asked of it."""
    return f"{name} ({record[name]['queries']:,})" if name in record else name


def line(record: Record, names: Sequence[str], row: str, shown: tuple[str, str], seeds: int) -> list[str]:
    """Render a row; the mean only where it was measured on every target."""
    values = {name: mean_of(record, name, row, shown) for name in names}
    stars = starred(record, names, row, shown[0]) if shown[1] == LEAD else set()
    cells = [cell(record, name, row, values[name], seeds) + "*" * (name in stars) for name in names]
    present = [value for value in values.values() if value is not None]
    mean = f"{fmean(present):.4f}" if present and len(present) == len(names) else "not run"
    return [title_of(row), *cells, mean]


def title_of(row: str) -> str:
    """Say what a row is, and with which settings where it is a trial."""
    name, _, trial = row.partition(TRIAL)
    return f"{ROWS[name].title}, trial `{trial}`" if trial else ROWS[name].title


def runs_of(record: Record, name: str, row: str) -> Mapping[str, Record]:
    """Give what was measured of a row on a target, by seed."""
    found: Mapping[str, Record] = record.get(name, {}).get("rows", {}).get(row, {})
    return found


def mean_of(record: Record, name: str, row: str, shown: tuple[str, str]) -> float | None:
    """Average a measure over the seeds; None where there is none."""
    way, measure = shown
    found = [run["mean"][way][measure] for run in runs_of(record, name, row).values()]
    return fmean(found) if found else None


def cell(record: Record, name: str, row: str, value: float | None, seeds: int) -> str:
    """Render a value, and of how many seeds it is where that is not all."""
    if value is None:
        return "not run"
    runs = runs_of(record, name, row)
    partial = len(runs) < seeds and NO_SEED not in runs
    return f"{value:.4f}" + (f" ({len(runs)})" if partial else "")


def starred(record: Record, names: Sequence[str], row: str, way: str) -> set[str]:
    """Name the targets on which a row differs from DR, a trial from DR with its settings."""
    name, mark, trial = row.partition(TRIAL)
    found = {each: differences(record, each, row, way, f"{BASE}{mark}{trial}") for each in names}
    known = {each: one for each, one in found.items() if one is not None}
    if name == BASE or not known:
        return set()
    p_values = np.array([float(paired_t(one.mean(axis=0)[:, None])[0]) for one in known.values()])
    return {each for each, p in zip(known, holm(p_values), strict=True) if p < 1 - CONFIDENCE}


def differences(record: Record, name: str, row: str, way: str, than: str = BASE) -> Array | None:
    """Give a row's nDCG less another's, `(seeds, queries)`; of what has no seed the same for each."""
    ours, base = runs_of(record, name, row), runs_of(record, name, than)
    seeds = sorted(base.keys() if NO_SEED in ours else ours.keys() & base.keys())
    if not seeds:
        return None
    pairs = [(ours.get(seed, ours.get(NO_SEED, {})), base[seed]) for seed in seeds]
    return np.array([by_query(one, way) - by_query(two, way) for one, two in pairs])


def by_query(run: Record, way: str) -> Array:
    """Read nDCG of each query, `(queries,)`."""
    return np.array(run["queries"][way].split(), dtype=np.float64) / SCALE


def drawn_means(values: Array, place: int) -> Array:
    """Give means `(draws,)` of differences `(seeds, queries)`, both drawn with replacement.

    The seeds are drawn alike for all targets, the queries for each target, known by its place, by itself.
    """
    seeds, queries = values.shape
    picked = np.random.default_rng(SEED).integers(0, seeds, (DRAWS, seeds))
    asked = np.random.default_rng([SEED, place]).integers(0, queries, (DRAWS, queries))
    return np.array([values[one][:, two].mean() for one, two in zip(picked, asked, strict=True)])


def gains_table(record: Record, names: Sequence[str], title: str, pair: tuple[str, str]) -> str:
    """Render what a row gains over another on each target, with intervals over seeds and queries.

    Beside it stands the loss of the row's DAM on unseen documents of the target, before its fit and after.
    """
    than, ours = pair
    found = {way: {name: differences(record, name, ours, way, than) for name in names} for way in WAYS}
    ran = [name for name in names if found[WAYS[0]][name] is not None]
    if not ran:
        return ""
    objective = ROWS[ours].domain
    columns = [[*(domain_loss(record[name]["training"], name, str(objective)) for name in ran), ""]]
    columns += [gains([found[way][name] for name in ran]) for way in WAYS]
    header = [
        f"{title}, {LEAD}",
        f"loss ({objective}), source DAM to target DAM",
        *(f"{way}, 95 % interval" for way in WAYS),
    ]
    labels = [*ran, f"mean of {len(ran)}"]
    return table(header, [list(cells) for cells in zip(labels, *columns, strict=True)])


def domain_loss(training: Mapping[str, Record], name: str, objective: str) -> str:
    """Render the loss on unseen documents of a target before and after its DAM was fitted, over the seeds."""
    losses = [one["unseen_loss"] for each, one in training.items() if f"/{objective}-target-{name}-" in each]
    return "{:.3f} to {:.3f}".format(*np.mean(losses, axis=0)) if losses else ""


def gains(values: Sequence[Array | None]) -> list[str]:
    """Render the mean difference of each target, and that of all, with their intervals."""
    known = [one for one in values if one is not None]
    draws = [drawn_means(one, place) for place, one in enumerate(known)]
    means = [float(one.mean()) for one in known]
    pairs = [*zip(means, draws, strict=True), (fmean(means), np.mean(draws, axis=0))]
    return ["{:+.4f} ({:+.4f} to {:+.4f})".format(mean, *bounds(drawn)) for mean, drawn in pairs]


def bounds(draws: Array) -> list[float]:
    """Give the interval of a mean by what was drawn."""
    tail = (1 - CONFIDENCE) / 2
    return [float(bound) for bound in np.quantile(draws, [tail, 1 - tail])]


def gains_drawn(record: Record) -> Record:
    """Give what the picture shows: by loss and target the dense gain of DDR over DR, and its interval."""
    shown: Record = {}
    for loss, (than, ours) in PAIRS.items():
        names = read_form("ddr", "small")["targets"]
        found = {name: differences(record, name, ours, "dense", than) for name in names}
        known = {name: values for name, values in found.items() if values is not None}
        for place, (name, values) in enumerate(known.items()):
            shown.setdefault(loss, {})[name] = [float(values.mean()), *bounds(drawn_means(values, place))]
    return shown


def draw_gains(file: Path, shown: Record, description: str) -> None:
    """Draw the gain on each target with its interval."""
    names = list(dict.fromkeys(name for found in shown.values() for name in found))
    with svg(file, (8, 0.9 + 0.42 * len(names)), {"Creator": None, "Description": description}) as axes:
        for number, (loss, found) in enumerate(shown.items()):
            places = [names.index(name) + 0.2 * number for name in found]
            middle, low, high = (np.array([one[part] for one in found.values()]) for part in range(3))
            bars = [middle - low, high - middle]
            axes.errorbar(middle, places, xerr=bars, fmt="o", markersize=4, linewidth=1, label=loss)
        axes.axvline(0.0, color="black", linewidth=0.8)
        axes.set_yticks(range(len(names)), names)
        axes.set_ylim(len(names) - 0.5, -0.5)
        axes.set_xlabel(f"DDR less DR, {LEAD}, dense, with the 95 % interval over seeds and queries")
        axes.legend(loc="best", fontsize="small")


def trainings_table(record: Record) -> str:
    """Render how long the trainings took, and what masked-LM learnt of unseen documents."""
    trained = {name: one for each in record.values() for name, one in each["training"].items()}
    header = ["training", "steps", "seconds", "loss, first and last tenth", "loss on unseen documents"]
    rows = [
        [
            name.rpartition("-")[0],
            f"{one['steps']:,}",
            f"{one['seconds']:,.0f}",
            f"{one['loss_start']:.3f} to {one['loss_end']:.3f}",
            "{:.3f} to {:.3f}".format(*one["unseen_loss"]) if one.get("unseen_loss") else "",
        ]
        for name, one in sorted(trained.items())
    ]
    if not rows:
        return ""
    peak = max(each["peak_mib"] for each in record.values())
    return f"{table(header, rows)}\n\nPeak memory of the process: {peak:,} MiB."
