"""What fusion is worth, by `benchmarks/fusion.py`."""

from __future__ import annotations

from statistics import mean

from .markdown import Record, machine_of, table

TITLE = "Fusion: neighbours of the default, and a few judged queries"
RESULT = "fusion"
COMMAND = "python benchmarks/fusion.py FOLDER"
LARGE = 150


def render(record: Record) -> str:
    """Render both tables."""
    sets = record["sets"]
    most, drawn = record["settings"]["queries"], labels(sets, record["settings"]["draws"])
    said = (
        f"{len(sets)} collections, at most {most:,} queries each, nDCG@10, scored here from one retrieval "
        f"a leg. {machine_of(record['machine'])}."
    )
    return "\n\n".join([said, NEIGHBOURS, neighbours(sets), LABELS, drawn])


NEIGHBOURS = """The default is (1 - w) BM25 / (4 I^p) + w (1 + cosine) with p = .5 and w = .5, I the sum of
the idf of the query's terms; other powers are scaled to agree where I is 25. Change against plain hybrid
(min_max, .5/.5). The default was chosen by looking at these sets: the figures are no estimate for others."""
LABELS = """Choosing technique and weight by n random judged queries, as `hybridr tune` does: gain over the
default on the other queries. 5 %: what one in twenty choices does not reach, on the worst set."""


def neighbours(sets: Record) -> str:
    """Render a row for each power and weight."""
    rows = []
    for name in next(iter(sets.values()))["neighbours"]:
        power, weight = name.split()
        changes = [found["neighbours"][name] - found["stock"] for found in sets.values()]
        up = sum(change > 0 for change in changes)
        rows.append([power, weight, f"{mean(changes):+.4f}", f"{up}/{len(changes)}", f"{min(changes):+.4f}"])
    return table(["p", "w", "mean change", "sets up", "worst"], rows)


def labels(sets: Record, draws: int) -> str:
    """Render a row for each number of judged queries."""
    counts = dict.fromkeys(count for found in sets.values() for count in found["labels"])
    header = ["n", "sets", "mean gain", f"of them with {LARGE} queries or more", "mean gain there",
              "worst mean", "5 %"]  # fmt: skip
    rows = []
    for count in counts:
        ran = {name: found for name, found in sets.items() if count in found["labels"]}
        gains = {name: found["labels"][count]["mean"] for name, found in ran.items()}
        large = [gain for name, gain in gains.items() if ran[name]["queries"] >= LARGE]
        low = min(found["labels"][count]["p5"] for found in ran.values())
        rows.append([
            count, str(len(ran)), f"{mean(gains.values()):+.4f}", str(len(large)), f"{mean(large):+.4f}",
            f"{min(gains.values()):+.4f}", f"{low:+.4f}",
        ])  # fmt: skip
    return f"{draws} random choices a set.\n\n{table(header, rows)}"
