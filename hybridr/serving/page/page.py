"""The files of the page, and the headers that keep a browser from running anything else."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from fastapi import FastAPI, Response

FOLDER = Path(__file__).parent / "static"
CONTENT_TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css"}
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


def add_page(app: FastAPI) -> None:
    """Add `/` and its script and style, which hold no data and ask for no token."""
    paths = {"/": "index.html"} | {f"/page/{file.name}": file.name for file in sorted(FOLDER.glob("page.*"))}
    for path, name in paths.items():
        app.add_api_route(path, partial(page_file, name), include_in_schema=False)


def page_file(name: str) -> Response:
    """Give one file."""
    file = FOLDER / name
    return Response(
        file.read_bytes(), media_type=f"{CONTENT_TYPES[file.suffix]}; charset=utf-8", headers=HEADERS
    )
