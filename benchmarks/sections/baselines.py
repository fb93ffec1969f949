"""Our baselines against peers."""

from __future__ import annotations

from collections.abc import Iterator

from .markdown import LEAD, Record, machine_of, table

TITLE = "Baselines against peers"
RESULT = "baselines"
COMMAND = "python benchmarks/baselines.py FOLDER --peers PYTHON"
BARS = {"pyserini bm25": ("BM25", 0.002), "pyserini rm3": ("RM3", 0.004)}
TABLES = {
    "The same terms, k1 and b": {"bm25": ["pyserini bm25", "bm25s", "rank-bm25"], "rm3": ["pyserini rm3"]},
    "Peers as they come": {
        "bm25": ["pyserini bm25 .9/.4", "bm25s own terms", "rank-bm25 own terms"],
        "rm3": ["pyserini rm3 .9/.4"],
    },
    "Dense and fusion, the same two runs": {
        "dense": ["sentence-transformers"],
        "min_max": ["ranx min_max"],
        "rrf": ["ranx rrf"],
    },
}
"""title -> our run -> the peers' runs beside it."""

NOTES = """- **Terms.** OpenSearch's analyser `english` and Pyserini's default are one chain: standard
  tokeniser, possessive ending, lower case, Lucene's English stop words, Porter. The peers that take terms
  are given those of our index.
- **Length norms.** Lucene keeps the length of a document in one byte. `formula` is BM25 written down in
  `formula.py` with lengths read back from that byte; with exact lengths it is what bm25s computes.
- **Ties.** Pyserini rounds scores to four decimals and orders equal ones by ascending id; trec_eval, and
  therefore hybridr, by descending id. Ties are queries whose top ten differ only so.
- **RM3.** Of documents with equal scores at the edge of the ten that lend their terms, Pyserini takes the
  lowest id, OpenSearch the one that was indexed first.
- **rank-bm25** has another idf (no 1 in the logarithm; terms in more than half of the documents get a quarter
  of the mean) and exact lengths; split at blanks, it keeps case, stop words and endings.
- **bm25s with terms of its own** has the same stop words, drops words of one letter, and has Snowball's
  English stemmer in place of Porter's.
- **Pyserini as it comes** has k1 .9 and b .4.
- **ranx** gives the last document of a list 0 where OpenSearch gives .001, and so do we."""


def render(record: Record) -> str:
    """Render the tables of values, and what the differences come from."""
    sets = {name: found for name, found in record["sets"].items() if found["peers"]}
    parts = [said_of(record, sets)]
    for title, columns in TABLES.items():
        if rows := [row_of(name, found, columns) for name, found in sets.items() if has(found, columns)]:
            peers = [name for ours, theirs in columns.items() for name in (f"hybridr {ours}", *theirs)]
            rest = [name for name, found in sets.items() if not has(found, columns)]
            said = f" (not run: {', '.join(rest)})" if rest else ""
            parts.append(f"{title}{said}\n\n{table(['collection', *peers], rows)}")
    return "\n\n".join([*parts, explained(sets), NOTES])


def runs_of(found: Record) -> Record:
    """Give the peers' runs of one collection."""
    return {name: row for peer in found["peers"].values() for name, row in peer["runs"].items()}


def has(found: Record, columns: dict[str, list[str]]) -> bool:
    """Tell whether any of the runs was made."""
    return any(name in runs_of(found) for theirs in columns.values() for name in theirs)


def row_of(name: str, found: Record, columns: dict[str, list[str]]) -> list[str]:
    """Render ours, and beside it each peer's value with the distance of ours to it."""
    runs, cells = runs_of(found), [name]
    for ours, theirs in columns.items():
        cells.append(f"{found['ours'][ours][LEAD]:.4f}" if ours in found["ours"] else "not run")
        cells += [
            f"{runs[one][LEAD]:.4f} ({runs[one]['difference']:+.4f})" if one in runs else "not run"
            for one in theirs
        ]
    return cells


def said_of(record: Record, sets: Record) -> str:
    """Say what was measured, and whether the bars are held."""
    settings, versions = record["settings"], record["versions"]
    cut = [name for name, found in sets.items() if found["of_queries"] > found["queries"]]
    said = (
        f"{LEAD}; in brackets hybridr less the peer. k1 {settings['k1']}, b {settings['b']}, RM3 with "
        f"{settings['rm3'][0]} documents, {settings['rm3'][1]} terms and weight {settings['rm3'][2]} for the "
        f"query. OpenSearch {record['opensearch']}; "
        + ", ".join(f"{name} {version}" for name, version in sorted(versions.items()))
        + f". {machine_of(record['machine'])}."
    )
    drawn = f" Of {', '.join(cut)} a random {settings['queries']:,} queries (seed {settings['seed']})."
    return said + (drawn if cut else "") + "".join(f" {line}" for line in held(sets))


def held(sets: Record) -> Iterator[str]:
    """Say how far ours are from Pyserini's at most."""
    for run, (name, bar) in BARS.items():
        rows = [
            (abs(runs_of(found)[run]["difference"]), one)
            for one, found in sets.items()
            if run in runs_of(found)
        ]
        if rows:
            most, where = max(rows)
            word = "within" if most <= bar else "NOT within"
            most_of = f"{most:.4f} at most ({where})"
            yield f"{name} is {word} {bar} of Pyserini on {len(rows)} collections: {most_of}."


def explained(sets: Record) -> str:
    """Render what the lexical runs differ in."""
    header = [
        "collection",
        "documents",
        "queries",
        "other terms than Pyserini's",
        "formula",
        "Pyserini BM25",
        "Pyserini RM3",
        "bm25s",
        "bm25s, exact lengths",
    ]
    rows = []
    for name, found in sets.items():
        runs, terms = runs_of(found), found["peers"].get("pyserini", {}).get("terms")
        rows.append(
            [
                name,
                f"{found['documents']:,}",
                f"{found['queries']:,}",
                f"{terms['documents']} documents, {terms['queries']} queries" if terms else "not run",
                *(
                    told(runs.get(run, {}).get("explained"))
                    for run in ("formula", "pyserini bm25", "pyserini rm3", "bm25s")
                ),
                told(runs.get("bm25s", {}).get("with_exact_lengths")),
            ]
        )
    return (
        "What they differ in: median relative distance of scores / queries with another top ten / of them "
        f"ties\n\n{table(header, rows)}"
    )


def told(found: Record | None) -> str:
    """Render what two runs differ in."""
    return f"{found['typical']:.1g} / {found['changed']} / {found['ties']}" if found else "not run"
