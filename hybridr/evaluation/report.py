"""Writes evaluations as Markdown or HTML reports."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from ..errors import SettingsError
from ..languages import without_tags
from .evaluation import Evaluation, RankedDocument
from .significance import CONFIDENCE

Format = Literal["markdown", "html"]
SUFFIXES: dict[str, Format] = {".md": "markdown", ".html": "html"}
SNIPPET = 400  # characters
STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; margin: 2em auto; max-width: 75em; padding: 0 1em; color: #222 }
table { border-collapse: collapse; margin: 1em 0 }
th, td { text-align: left; vertical-align: top; padding: .25em .7em; border-bottom: 1px solid #ddd }
td.number { text-align: right; font-variant-numeric: tabular-nums }
section { margin: 2.5em 0 } .pair { display: grid; grid-template-columns: 1fr 1fr; gap: 1.5em }
ol { padding-left: 1.8em; margin: .4em 0 }
li { margin: .35em 0; padding: .2em .5em; border-left: 4px solid #ddd }
li.relevant { border-color: #2a8a3e; background: #eef8f0 }
li.judged { border-color: #c24; background: #fbf0f1 }
small { color: #666 } p.snippet { margin: 0 }
"""
TextById = Mapping[str, str]
TableRows = Sequence[Sequence[Any]]


def report_format(file: Path) -> Format:
    """Return the format of a report by its file's suffix. Raises SettingsError for another suffix."""
    if file.suffix.lower() not in SUFFIXES:
        raise SettingsError(
            f"'{file}' has an unsupported report suffix", hint=f"end its name in {' or '.join(SUFFIXES)}"
        )
    return SUFFIXES[file.suffix.lower()]


def rendered(result: Evaluation, kind: Format, title: str, texts: TextById | None = None) -> str:
    """Return the report of an evaluation; `texts` (document id -> text) are shown in HTML only.

    The HTML page loads nothing from elsewhere: it has the tables, then the top tens side by side.
    """
    write, between = (html_table, "") if kind == "html" else (markdown, "\n")
    tables = write(*result.table(bounds=True))
    if result.comparisons:
        tables += between + write(*result.comparison_table())
    if kind == "markdown":
        return tables
    parts = [
        f"<h1>{html.escape(title)}</h1>",
        f"<p>{result.queries} queries; {CONFIDENCE:.0%} intervals by bootstrap; p-values are two-sided and "
        "corrected by Holm's method over the systems of one measure.</p>",
        tables,
    ]
    differences, (baseline, compared) = result.differences(), result.pair
    if differences:
        parts.append(f"<h2>{html.escape(baseline)} and {html.escape(compared)}: where they differ most</h2>")
    for query, values, tops in differences:
        label = html.escape(query.text or query.query_id)
        parts.append(f"<section><h3>{label} <small>{html.escape(query.query_id)}</small></h3>")
        parts.append('<div class="pair">')
        for name, value, top in zip(result.pair, values, tops, strict=True):
            measure = f"{html.escape(result.measures[0])} {value:.4f}"
            documents = "".join(list_item(document, texts or {}) for document in top)
            ranking = f"<ol>{documents}</ol>" if top else "<p>no results</p>"
            parts.append(f"<div><b>{html.escape(name)}</b> <small>{measure}</small>{ranking}</div>")
        parts.append("</div></section>")
    return html_page(title, parts)


def list_item(document: RankedDocument, texts: TextById) -> str:
    """Return the HTML list item of a document in a top list, with grade and beginning of its text."""
    kind = "" if document.grade is None else ' class="relevant"' if document.grade > 0 else ' class="judged"'
    grade = "not judged" if document.grade is None else f"grade {document.grade}"
    text = html.unescape(without_tags(texts.get(document.doc_id, "")))
    cut = f"{text[:SNIPPET]} …" if len(text) > SNIPPET else text
    snippet = f'<p class="snippet">{html.escape(cut)}</p>' if cut else ""
    name = html.escape(document.doc_id)
    return f"<li{kind}><b>{name}</b> <small>{document.score:.4f}, {grade}</small>{snippet}</li>"


def shown_documents(result: Evaluation) -> list[str]:
    """Return the ids of the documents whose texts the HTML report shows."""
    placed = [document for difference in result.differences() for top in difference.tops for document in top]
    return list(dict.fromkeys(document.doc_id for document in placed))


def is_numeric(cell: Any) -> bool:
    """Return whether a table cell is a number, which is right-aligned."""
    return isinstance(cell, (int, float))


def cell_text(cell: Any) -> str:
    """Return a table cell as text, floats with four decimals."""
    return f"{cell:.4f}" if isinstance(cell, float) else str(cell)


def markdown(columns: Sequence[str], rows: TableRows) -> str:
    """Return a table in GitHub's Markdown."""

    def line(cells: Sequence[Any]) -> str:
        """Return one row of the table."""
        texts = (" ".join(cell_text(cell).split()) for cell in cells)
        return "| " + " | ".join(html.escape(text, quote=False).replace("|", "\\|") for text in texts) + " |"

    right = [bool(rows) and all(is_numeric(row[place]) for row in rows) for place in range(len(columns))]
    borders = "| " + " | ".join("---:" if is_right else "---" for is_right in right) + " |"
    return "\n".join([line(columns), borders, *map(line, rows)]) + "\n"


def html_page(title: str, parts: Sequence[str]) -> str:
    """Return a page with these parts, which loads nothing from elsewhere."""
    head = f"<meta charset=utf-8><title>{html.escape(title)}</title><style>{STYLE}</style>"
    body = "\n".join(parts)
    return f"<!doctype html>\n<html lang=en><head>{head}</head>\n<body>\n{body}\n</body></html>\n"


def html_table(columns: Sequence[str], rows: TableRows) -> str:
    """Return a table in HTML."""
    lines = ["<table>", f"<tr>{''.join(f'<th>{html.escape(name)}</th>' for name in columns)}</tr>"]
    for row in rows:
        kinds = (' class="number"' if is_numeric(cell) else "" for cell in row)
        cells = (
            f"<td{kind}>{html.escape(cell_text(cell))}</td>" for kind, cell in zip(kinds, row, strict=True)
        )
        lines.append(f"<tr>{''.join(cells)}</tr>")
    return "\n".join([*lines, "</table>"]) + "\n"
