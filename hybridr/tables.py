"""Tables as Markdown, LaTeX or HTML; numbers with four decimals, everything else escaped."""

from __future__ import annotations

import html
from collections.abc import Callable, Sequence
from typing import Any

LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{",
    "}": r"\}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
}  # fmt: skip
Rows = Sequence[Sequence[Any]]


def shown(cell: Any) -> str:
    """Write a cell: floats with four decimals."""
    return f"{cell:.4f}" if isinstance(cell, float) else str(cell)


def is_number(cell: Any) -> bool:
    """Tell whether a cell belongs to the right."""
    return isinstance(cell, (int, float))


def markdown(columns: Sequence[str], rows: Rows) -> str:
    """Write a table of GitHub's Markdown."""
    lines = [
        _piped(columns),
        _piped(["---:" if one else "---" for one in _right(columns, rows)], escape=str),
        *map(_piped, rows),
    ]
    return "\n".join(lines) + "\n"


def _piped(cells: Sequence[Any], escape: Callable[[str], str] | None = None) -> str:
    escape = escape or (lambda text: html.escape(" ".join(text.split()), quote=False).replace("|", "\\|"))
    return "| " + " | ".join(escape(shown(cell)) for cell in cells) + " |"


def latex(columns: Sequence[str], rows: Rows) -> str:
    """Write a `tabular` with the rules of the package booktabs."""
    align = "".join("r" if one else "l" for one in _right(columns, rows))
    body = [_ampersands(columns), r"\midrule", *map(_ampersands, rows)]
    lines = [rf"\begin{{tabular}}{{{align}}}", r"\toprule", *body, r"\bottomrule", r"\end{tabular}"]
    return "\n".join(lines) + "\n"


def _ampersands(cells: Sequence[Any]) -> str:
    escaped = ("".join(LATEX.get(letter, letter) for letter in shown(cell)) for cell in cells)
    return " & ".join(escaped) + r" \\"


def html_table(columns: Sequence[str], rows: Rows) -> str:
    """Write an HTML table."""
    head = "".join(f"<th>{html.escape(name)}</th>" for name in columns)
    lines = [f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows]
    return "\n".join(["<table>", f"<tr>{head}</tr>", *lines, "</table>"]) + "\n"


def _cell(cell: Any) -> str:
    kind = ' class="number"' if is_number(cell) else ""
    return f"<td{kind}>{html.escape(shown(cell))}</td>"


def _right(columns: Sequence[str], rows: Rows) -> list[bool]:
    return [bool(rows) and all(is_number(row[i]) for row in rows) for i in range(len(columns))]
