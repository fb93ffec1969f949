"""The page that tells the API: FastAPI's own loads scripts from the internet, which few clusters see."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

STYLE = "body{font:16px/1.5 sans-serif;max-width:50em;margin:2em auto;padding:0 1em}td{padding:0 1em 0 0}"


def api_page(schema: Mapping[str, Any]) -> str:
    """Show an OpenAPI schema as plain HTML: each route, and the fields of its body."""
    title = escape(schema["info"]["title"])
    parts = "".join(part for path, ways in schema["paths"].items() for part in described(path, ways, schema))
    raw = '<p>The same for machines: <a href="openapi.json">openapi.json</a></p>'
    head = f"<!doctype html><html lang=en><meta charset=utf-8><title>{title}</title><style>{STYLE}</style>"
    return f"{head}<h1>{title}</h1>{raw}{parts}</html>"


def described(path: str, ways: Mapping[str, Any], schema: Mapping[str, Any]) -> Iterator[str]:
    """Yield the parts of one route."""
    for method, way in ways.items():
        yield f"<h2><code>{method.upper()} {escape(path)}</code></h2><p>{escape(way.get('summary', ''))}</p>"
        if "requestBody" in way:
            name = way["requestBody"]["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
            yield f"<table>{''.join(rows(schema['components']['schemas'][name]))}</table>"


def rows(body: Mapping[str, Any]) -> Iterator[str]:
    """Yield a table row per field: name, default, what it is."""
    for name, field in body["properties"].items():
        needed = "needed" if name in body.get("required", ()) else f"default {field.get('default')}"
        told = escape(field.get("description", ""))
        yield f"<tr><td><code>{escape(name)}</code><td>{escape(needed)}<td>{told}</tr>"
