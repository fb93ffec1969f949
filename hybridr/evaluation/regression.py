"""Compares an evaluation with an earlier one stored in a JSON file, so that CI fails if a ranking gets worse.

The file holds values and ids of queries, no texts.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from ..errors import DataError, SettingsError, quantity
from ..files.local import fingerprint, parsed_json, read_within, write_json
from ..records import Qrels
from .significance import ALPHA, TIE, holm, paired_t

KIND = "hybridr evaluation"
ALLOWED = 0.005  # nDCG and the like, 0 to 1
WRITE_HINT = "hybridr evaluate … --write FILE   writes the baseline anew"
SystemValues: TypeAlias = Mapping[str, Mapping[str, Mapping[str, float]]]
"""system -> measure -> query id -> value."""


def check_limits(against: Path | None, allow: float, at_most: float | None) -> None:
    """Raise SettingsError for a limit below 0, or for a limit without a stored evaluation `against`."""
    for option, drop in (("--allow", allow), ("--at-most", at_most)):
        if drop is not None and not (math.isfinite(drop) and drop >= 0):
            raise SettingsError(f"{option} {drop}: needed a number of at least 0, such as 0.005")
    if against is None and (allow, at_most) != (ALLOWED, None):
        raise SettingsError("--allow or --at-most without a baseline", hint="--against FILE")


@dataclass(frozen=True)
class MeanChange:
    """The mean of one system and measure before and now; `p_holm` is of the paired t-test over the queries.

    `failure` says which limit was exceeded; it is empty if none was.
    """

    system: str
    measure: str
    before: float
    now: float
    difference: float
    p_holm: float
    failure: str

    def line(self) -> str:
        """Return a line for people about this fall."""
        return (
            f"{self.system} {self.measure} fell by {-self.difference:.4f}, from {self.before:.4f} to "
            f"{self.now:.4f} (p {self.p_holm:.2g}): {self.failure}"
        )


def write_baseline(file: Path, per_query: SystemValues, qrels: Qrels) -> None:
    """Write the means, the values per query and the fingerprint of the judgements to a file."""
    means = {
        system: {measure: float(np.mean(list(values.values()))) for measure, values in measures.items()}
        for system, measures in per_query.items()
    }
    value = {
        "kind": KIND,
        "hybridr": metadata.version("hybridr"),
        "judgements": fingerprint(qrels),
        "measures": list(next(iter(per_query.values()))),
        "systems": means,
        "per_query": per_query,
    }
    write_json(file, value)


def read_baseline(file: Path, systems: Collection[str], measures: Collection[str], qrels: Qrels) -> Any:
    """Return system -> measure -> query id -> value of the stored evaluation.

    Raises DataError for a file that is no baseline, or has other systems, measures or judgements.
    """
    try:
        content = parsed_json(read_within(file))
    except (OSError, ValueError) as error:
        raise DataError(f"the baseline '{file}' cannot be read: {error}", hint=WRITE_HINT) from error
    if not isinstance(content, dict) or content.get("kind") != KIND or not has_values(content):
        raise DataError(f"'{file}' is not a baseline that hybridr evaluate wrote", hint=WRITE_HINT)
    per_query = content["per_query"]
    for kind, earlier, current in (
        ("systems", per_query, systems),
        ("measures", next(iter(per_query.values())), measures),
    ):
        if set(earlier) != set(current):
            raise DataError(
                f"the baseline '{file}' has the {kind} {', '.join(earlier)}; this run {', '.join(current)}",
                hint=f"evaluate the same {kind}, or {WRITE_HINT}",
            )
    if content.get("judgements") != fingerprint(qrels):
        raise DataError(
            f"the baseline '{file}' was measured with other judgements",
            hint=f"use the same --beir, --split or --qrels, or {WRITE_HINT}",
        )
    return per_query


def has_values(content: Mapping[str, Any]) -> bool:
    """Return whether every system has the same measures, each with a number for the same queries."""
    try:
        lists = [values for measures in content["per_query"].values() for values in measures.values()]
        measures = [set(measures) for measures in content["per_query"].values()]
        queries = [set(values) for values in lists]
        numbers = [number for values in lists for number in values.values()]
    except (KeyError, AttributeError):
        return False
    is_aligned = all(names == measures[0] for names in measures) and all(ids == queries[0] for ids in queries)
    return bool(numbers) and is_aligned and all(type(number) in (int, float) for number in numbers)


def compare_with_baseline(
    earlier: SystemValues, current: SystemValues, allow: float = ALLOWED, at_most: float | None = None
) -> list[MeanChange]:
    """Compare every system and measure with the stored evaluation, paired by query.

    The fall of a mean fails if it is larger than `allow` and significant, or larger than `at_most`.
    Two-sided p-values are corrected by Holm's method over all comparisons. Raises DataError if the queries
    differ.
    """
    pairs = [(system, measure) for system, measures in current.items() for measure in measures]
    columns = []
    for system, measure in pairs:
        old_values, new_values = earlier[system][measure], current[system][measure]
        if missing := sorted(old_values.keys() ^ new_values.keys()):
            raise DataError(
                f"only one of baseline and run has {quantity(len(missing), 'query')}, such as '{missing[0]}'",
                hint=f"evaluate the same queries, or {WRITE_HINT}",
            )
        columns.append([value - old_values[query_id] for query_id, value in new_values.items()])
    differences = np.array(columns, dtype=np.float64).T
    differences[np.abs(differences) < TIE] = 0.0
    changes = []
    for (system, measure), difference, p_value in zip(
        pairs, differences.mean(axis=0), holm(paired_t(differences)), strict=True
    ):
        mean, change = float(np.mean(list(current[system][measure].values()))), float(difference)
        fall, failure = -change - TIE, ""
        if at_most is not None and fall > at_most:
            failure = f"more than --at-most {at_most:g}"
        elif fall > allow and p_value < ALPHA:
            failure = f"more than --allow {allow:g}, and significant"
        changes.append(MeanChange(system, measure, mean - change, mean, change, float(p_value), failure))
    return changes
