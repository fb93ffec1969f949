"""Published rankings beside what was found here with the same models."""

from __future__ import annotations

from published import OWN, Row, Table, read_published, result_name

from .markdown import Record, table

TITLE = "Published rankings"
RESULT = "published"
COMMAND = "python benchmarks/run.py --published SET --collections FOLDER"
HOW = (
    "In brackets what was published, before it what was found here. `published.toml` says where the values "
    "are from, which model each column is and where its data lie; a column without a model only shows what "
    "others measured."
)


def render(record: Record) -> str:
    """Render every table, then the models that are in none."""
    return "\n\n".join(
        [HOW, *(render_table(one, record) for one in read_published()[1].values()), *own(record)]
    )


def render_table(published: Table, record: Record) -> str:
    """Render one table: rows by collections."""
    header = [", ".join(published.measures), *published.rows]
    rows = [
        [name, *(cell(published, row, name, values, record) for row in published.rows.values())]
        for name, values in published.expected.items()
    ]
    return f"{published.title}; values from {published.source}:\n\n{table(header, rows)}"


def cell(published: Table, row: Row, name: str, values: dict[str, list[float]], record: Record) -> str:
    """Render what was found and what was published; `off` where they differ by more than the tolerance."""
    expected = values.get(row.name)
    found = record.get(result_name(name, row))
    told = f"({' '.join(short(value) for value in expected)})" if expected else ""
    if found is None:
        return f"not run {told}".rstrip()
    reached = [next(iter(found["systems"].values()))[measure] for measure in published.measures]
    pairs = zip(reached, expected or (), strict=False)
    off = " off" if any(abs(one - other) > row.tolerance for one, other in pairs) else ""
    return f"{' '.join(short(round(value, 4)) for value in reached)}{off} {told}".rstrip()


def short(value: float) -> str:
    """Write a value without its leading zero."""
    return f"{value:.5g}".removeprefix("0")


def own(record: Record) -> list[str]:
    """Render the models that are in no table."""
    rows = []
    for name, found in record.items():
        collection, _, model = name.partition(f"--{OWN}-")
        means = next(iter(found["systems"].values()))
        values = ", ".join(f"{measure} {value:.4f}" for measure, value in means.items())
        rows += [[collection, model, values]] if model else []
    return [f"Other models:\n\n{table(['collection', 'model', 'found'], rows)}"] if rows else []


MISSING = render({})
"""Every value that is expected stands there before anything was run."""
