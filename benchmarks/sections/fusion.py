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
    most, draws = record["settings"]["queries"], record["settings"]["draws"]
    said = (
        f"{len(sets)} collections, at most {most:,} queries each, nDCG@10, scored here from one retrieval "
        f"a leg. {machine_of(record['machine'])}."
    )
    drawn = f"{draws} random choices a set."
    parts = [said, NEIGHBOURS, neighbours(sets), LABELS, drawn, labels(sets), MORE, more(sets), ALONE]
    return "\n\n".join([*parts, alone(sets)])


NEIGHBOURS = """The default is (1 - w) BM25 / (4 I^p) + w (1 + cosine) with p = .5 and w = .5, I the sum of
the idf of the query's terms; other powers are scaled to agree where I is 25. Change against plain hybrid
(min_max, .5/.5). The default was chosen by looking at these sets: the figures are no estimate for others."""
LABELS = """Choosing technique and weight by n random judged queries, as `hybridr tune` does: gain over the
default on the other queries. 5 %: what one in twenty choices does not reach, on the worst set."""
MORE = """What `tune` can try besides (`--also`), in the same draws: mean gain over the default on the other
queries, and in brackets the set where it is lowest. The last column leaves technique and weight alone and
chooses k1 and b for the default."""
ALONE = """Each addition with no choice at all, at weight .5: change of nDCG@10 in the default fusion and in
OpenSearch's min_max."""


def neighbours(sets: Record) -> str:
    """Render a row for each power and weight."""
    rows = []
    for name in next(iter(sets.values()))["neighbours"]:
        power, weight = name.split()
        changes = [found["neighbours"][name] - found["stock"] for found in sets.values()]
        up = sum(change > 0 for change in changes)
        rows.append([power, weight, f"{mean(changes):+.4f}", f"{up}/{len(changes)}", f"{min(changes):+.4f}"])
    return table(["p", "w", "mean change", "sets up", "worst"], rows)


def labels(sets: Record) -> str:
    """Render a row for each number of judged queries."""
    counts = dict.fromkeys(count for found in sets.values() for count in found["labels"])
    header = [
        "n",
        "sets",
        "mean gain",
        f"of them with {LARGE} queries or more",
        "mean gain there",
        "worst mean",
        "5 %",
    ]
    rows = []
    for count in counts:
        ran = {name: found for name, found in sets.items() if count in found["labels"]}
        gains = {name: found["labels"][count]["mean"] for name, found in ran.items()}
        large = [gain for name, gain in gains.items() if ran[name]["queries"] >= LARGE]
        low = min(found["labels"][count]["p5"] for found in ran.values())
        rows.append(
            [
                count,
                str(len(ran)),
                f"{mean(gains.values()):+.4f}",
                str(len(large)),
                f"{mean(large):+.4f}",
                f"{min(gains.values()):+.4f}",
                f"{low:+.4f}",
            ]
        )
    return table(header, rows)


def more(sets: Record) -> str:
    """Render a row for each number of judged queries, a column for each thing tried besides."""
    found = list(sets.values())
    ways = {
        "technique and weight": [one["labels"] for one in found],
        **{f"and {name}": [one["also"][name] for one in found] for name in found[0]["also"]},
        "k1, b alone": [one["bm25"] for one in found],
    }
    rows = []
    for count in dict.fromkeys(count for one in found for count in one["labels"]):
        gains = [[one[count]["mean"] for one in way if count in one] for way in ways.values()]
        rows.append([count, *(f"{mean(one):+.4f} ({min(one):+.4f})" for one in gains)])
    return table(["n", *ways], rows)


def alone(sets: Record) -> str:
    """Render a row for each addition."""
    rows = []
    for kind in next(iter(sets.values()))["alone"]:
        changes = [found["alone"][kind] for found in sets.values()]
        up = sum(change > 0 for change in changes)
        rows.append([kind, f"{mean(changes):+.4f}", f"{up}/{len(changes)}", f"{min(changes):+.4f}"])
    return table(["addition", "mean change", "sets up", "worst"], rows)
