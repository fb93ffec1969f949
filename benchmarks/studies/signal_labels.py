"""What do a few judged queries add on top of the signals: weights alone, and which signals to take?

    python benchmarks/run.py signal-labels FOLDER [--sets cranfield,npl] [--json FILE]

FOLDER holds collections in BEIR layout; each must be reindexed under its own name, with `--token-bits` where
these are to be tried. Every collection is asked once per leg and signal, at most 1,000 of its queries; all
that `tune` tries is scored here. What is measured stays in the file: the same command goes on.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np

from conditions import the_twelve
from hybridr.cluster.record import Record as IndexRecord
from hybridr.tuning.evidence import ask
from hybridr.tuning.judgement import (
    PULL,
    Landscape,
    Variant,
    chosen_among,
    landscape,
    measured,
    other_signals,
    score_all,
    variants,
)
from studies.fusion import DRAWS, LABELS, LEAST_REST, SEED, Values, chosen_by, judged_sample, opened
from study import LEAD, Record, Section, add_asked, machine_of, measure_sets, table

WEIGHTS, SIGNALS = "technique and weight", "and signals"
BITS = "token_bits"
ABOUT = """\
Choosing by n random judged queries, as `hybridr tune` does, with the pull toward the default: gain over the
default with its signals on the other queries, mean over the sets and the worst of them, {draws} random
choices a set. Among technique and weight alone; and among these with other signals too: none, all but one,
and token bits besides or in place of one (the index has them). Bits chosen, default kept: in what share of
the choices among signals."""


def options(parser: argparse.ArgumentParser) -> None:
    """Take the collections, the cluster, and where the result goes."""
    add_asked(parser, the_twelve(), "signal-labels")


def measure(given: argparse.Namespace) -> None:
    """Measure what is not in the file yet."""
    settings = {"labels": LABELS, "draws": DRAWS, "pull": PULL, "seed": SEED}
    measure_sets(given, lambda name: measure_set(given.folder / name, given.url), settings)


def measure_set(folder: Path, url: str | None) -> Record:
    """Ask one collection, and choose by few labels."""
    queries, qrels = judged_sample(folder)
    search = opened(folder.name, url, ("all",))
    signals = search.signals
    tried = variants(
        search.cluster.version,
        IndexRecord(similarity="cosine"),
        signals=other_signals(signals.usual, signals.others),
    )
    values = measured(
        ask(search, queries), qrels, LEAD, partial(score_all, tried, dense_scale=search.dense_scale)
    )
    return {"queries": len(queries), "signals": list(signals.members), **summary(tried, values)}


def summary(tried: Sequence[Variant], values: Values) -> Record:
    """Choose by few labels among weights, and among signals too; give what fixed signals are worth."""
    plain = [number for number, one in enumerate(tried) if "signals" not in one.settings]
    default = landscape(tried).default
    means, weight = values.mean(axis=0), tried[default].settings["dense_weight"]
    fixed = {
        one.kind: float(means[number] - means[default])
        for number, one in enumerate(tried)
        if "signals" in one.settings and one.settings["dense_weight"] == weight
    }
    labels = {
        WEIGHTS: gains([tried[one] for one in plain], values[:, plain]),
        SIGNALS: gains(tried, values),
    }
    return {"default": float(means[default]), "fixed": fixed, "labels": labels}


def gains(tried: Sequence[Variant], values: Values) -> Record:
    """Give for each number of judged queries what choosing by them gains on the others."""
    lying, counts = landscape(tried), [count for count in LABELS if len(values) >= count + LEAST_REST]
    return {str(count): drawn(tried, values, lying, count) for count in counts}


def drawn(tried: Sequence[Variant], values: Values, lying: Landscape, count: int) -> dict[str, Any]:
    """Choose by `count` random queries, many times."""
    rng, found, shown, chosen = np.random.default_rng(SEED), [], [], Counter[int]()
    for _ in range(DRAWS):
        order = rng.permutation(len(values))
        seen, unseen = values[order[:count]], values[order[count:]]
        best = chosen_by(seen, lying)
        chosen[best] += 1
        found.append(float((unseen[:, best] - unseen[:, lying.default]).mean()))
        shown.append(chosen_among(tried, lying, seen, LEAD).applied)
    with_bits = sum(times for one, times in chosen.items() if BITS in tried[one].settings.get("signals", ()))
    return {
        "mean": float(np.mean(found)),
        "p5": float(np.quantile(found, 0.05)),
        "shown": mean(shown),
        "mean shown": mean(gain * told for gain, told in zip(found, shown, strict=True)),
        "bits": with_bits / DRAWS,
        "default": chosen[lying.default] / DRAWS,
    }


def render(record: Record) -> str:
    """Render a row for each number of judged queries."""
    sets, settings = record["sets"], record["settings"]
    said = f"{len(sets)} collections, nDCG@10. {machine_of(record['machine'])}."
    header = ["n", "sets", WEIGHTS, "worst", SIGNALS, "worst", "bits chosen", "default kept"]
    rows = []
    for count in map(str, settings["labels"]):
        ran = [found["labels"] for found in sets.values() if count in found["labels"][WEIGHTS]]
        if not ran:
            continue
        cells = [count, str(len(ran))]
        for way in (WEIGHTS, SIGNALS):
            means = [found[way][count]["mean"] for found in ran]
            cells += [f"{mean(means):+.4f}", f"{min(means):+.4f}"]
        shares = [mean(found[SIGNALS][count][name] for found in ran) for name in ("bits", "default")]
        rows.append([*cells, *(f"{share:.0%}" for share in shares)])
    return "\n\n".join([said, ABOUT.format(draws=settings["draws"]), table(header, rows)])


SECTIONS = [
    Section(
        21,
        "A few judged queries on top of signals",
        "signal-labels",
        "python benchmarks/run.py signal-labels FOLDER",
        render,
    )
]
