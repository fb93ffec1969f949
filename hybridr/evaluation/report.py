"""Evaluations as Markdown and HTML."""

from __future__ import annotations

import html
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from ..errors import SettingsError
from ..files.atomic import replacing
from ..languages import without_tags
from .evaluation import Difference, Evaluation, Placed
from .significance import CONFIDENCE

Format = Literal["markdown", "html"]
SUFFIXES: dict[str, Format] = {".md": "markdown", ".html": "html"}
SNIPPET = 400
"""A tag of HTML as documents hold it."""
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


def format_of(file: Path) -> Format:
    """Take the format that the suffix of a report's file tells. Raises SettingsError."""
    if file.suffix.lower() not in SUFFIXES:
        raise SettingsError(f"'{file}' is no report", hint=f"a file that ends with {', '.join(SUFFIXES)}")
    return SUFFIXES[file.suffix.lower()]


def rendered(result: Evaluation, kind: Format, title: str, texts: TextById | None = None) -> str:
    """Write the evaluation in one of the formats; `texts` (document id -> text) are shown in HTML only."""
    return page(result, title, texts or {}) if kind == "html" else _tables(result, markdown, "\n")


def write_report(
    result: Evaluation, file: Path, kind: Format, title: str, texts: TextById | None = None
) -> None:
    """Write it to a file, whole or not at all; only the owner can read one with texts of documents."""
    with replacing(file, private=bool(texts)) as temporary:
        temporary.write_text(rendered(result, kind, title, texts), encoding="utf-8")


def shown_documents(result: Evaluation) -> list[str]:
    """List the documents whose text the HTML page shows."""
    placed = [document for difference in result.differences() for top in difference.tops for document in top]
    return list(dict.fromkeys(document.doc_id for document in placed))


def page(result: Evaluation, title: str, texts: TextById) -> str:
    """Write one self-contained page: tables, then the top tens side by side; it loads nothing."""
    head = f"<meta charset=utf-8><title>{html.escape(title)}</title><style>{STYLE}</style>"
    said = (
        f"<p>{result.queries} queries; {CONFIDENCE:.0%} intervals by bootstrap; "
        "p-values are two-sided and corrected by Holm's method over the systems "
        "of one measure.</p>"
    )
    parts = [
        f"<h1>{html.escape(title)}</h1>",
        said,
        _tables(result, html_table, ""),
        _where_they_differ(result, texts),
    ]
    return (
        f"<!doctype html>\n<html lang=en><head>{head}</head>\n<body>\n"
        + "\n".join(parts)
        + "\n</body></html>\n"
    )


def _tables(result: Evaluation, write: Callable[..., str], between: str) -> str:
    means = write(*result.table(bounds=True))
    return means + between + write(*result.comparison_table()) if result.comparisons else means


def _where_they_differ(result: Evaluation, texts: TextById) -> str:
    baseline, compared = result.pair
    differences = result.differences()
    if not differences:
        return ""
    heading = f"<h2>{html.escape(baseline)} and {html.escape(compared)}: where they differ most</h2>"
    sections = [_section(query, (baseline, compared), result.measures[0], texts) for query in differences]
    return heading + "\n".join(sections)


def _section(difference: Difference, names: tuple[str, str], measure: str, texts: TextById) -> str:
    lists = "".join(
        f"<div><b>{html.escape(name)}</b> <small>{html.escape(measure)} {value:.4f}</small>"
        f"{_top(top, texts)}</div>"
        for name, value, top in zip(names, difference.values, difference.tops, strict=True)
    )
    label = html.escape(difference.query.text or difference.query.query_id)
    return (
        f"<section><h3>{label} <small>{html.escape(difference.query.query_id)}</small></h3>"
        f'<div class="pair">{lists}</div></section>'
    )


def _top(top: list[Placed], texts: TextById) -> str:
    return f"<ol>{''.join(_item(document, texts) for document in top)}</ol>" if top else "<p>no results</p>"


def _item(document: Placed, texts: TextById) -> str:
    kind = "" if document.grade is None else ' class="relevant"' if document.grade > 0 else ' class="judged"'
    grade = "not judged" if document.grade is None else f"grade {document.grade}"
    text = html.unescape(without_tags(texts.get(document.doc_id, "")))
    cut = f"{text[:SNIPPET]} …" if len(text) > SNIPPET else text
    snippet = f'<p class="snippet">{html.escape(cut)}</p>' if cut else ""
    name = html.escape(document.doc_id)
    return f"<li{kind}><b>{name}</b> <small>{document.score:.4f}, {grade}</small>{snippet}</li>"


def cell_text(cell: Any) -> str:
    """Write a cell: floats with four decimals."""
    return f"{cell:.4f}" if isinstance(cell, float) else str(cell)


def is_numeric(cell: Any) -> bool:
    """Tell whether a cell belongs to the right."""
    return isinstance(cell, (int, float))


def markdown(columns: Sequence[str], rows: TableRows) -> str:
    """Write a table of GitHub's Markdown."""
    lines = [
        _piped(columns),
        _piped(["---:" if is_right else "---" for is_right in _right(columns, rows)], escape=str),
        *map(_piped, rows),
    ]
    return "\n".join(lines) + "\n"


def _piped(cells: Sequence[Any], escape: Callable[[str], str] | None = None) -> str:
    escape = escape or (lambda text: html.escape(" ".join(text.split()), quote=False).replace("|", "\\|"))
    return "| " + " | ".join(escape(cell_text(cell)) for cell in cells) + " |"


def html_table(columns: Sequence[str], rows: TableRows) -> str:
    """Write an HTML table."""
    head = "".join(f"<th>{html.escape(name)}</th>" for name in columns)
    lines = [f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows]
    return "\n".join(["<table>", f"<tr>{head}</tr>", *lines, "</table>"]) + "\n"


def _cell(cell: Any) -> str:
    kind = ' class="number"' if is_numeric(cell) else ""
    return f"<td{kind}>{html.escape(cell_text(cell))}</td>"


def _right(columns: Sequence[str], rows: TableRows) -> list[bool]:
    return [bool(rows) and all(is_numeric(row[i]) for row in rows) for i in range(len(columns))]
