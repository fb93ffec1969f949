"""The verb `hybridr search`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from html import unescape
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..arguments import EncoderFolder, Searched
from ..session import Session
from ..verbs import app, verb

if TYPE_CHECKING:
    from hybridr.records import Hit, Hits
    from hybridr.search.settings import SearchSettings

SHOWN = 500  # characters


def refuse_size(text: str | None) -> None:
    """Raise BadParameter for `--size`, `--top-k` and `--limit`, with -k as the option to use."""
    if text is not None:
        raise typer.BadParameter(f"the number of hits is -k here: -k {text}")


@dataclass(frozen=True)
class Page:
    """The options for which hits are returned: number, offset and filter."""

    k: Annotated[int, typer.Option("--k", "-k", min=1, max=10_000, help="Number of hits.")] = 10
    size: Annotated[
        str | None,
        typer.Option("--size", "--top-k", "--limit", hidden=True, callback=refuse_size),
    ] = None
    offset: Annotated[int, typer.Option("--from", min=0, help="Number of hits to skip, for pages.")] = 0
    filter: Annotated[str | None, typer.Option(help="Query in JSON that every hit must match.")] = None


@dataclass(frozen=True)
class Ranked:
    """The options for how hits are ranked: mode and encoder."""

    mode: Annotated[str, typer.Option(help="Which retrievers rank: hybrid, or one by its name.")] = "hybrid"
    encoder: EncoderFolder = None


@verb(app, "search", cluster=True)
def search(
    session: Session,
    name: Searched,
    text: Annotated[str, typer.Argument(help="The query.")],
    page: Page,
    ranking: Ranked,
    settings: SearchSettings,
    request: Annotated[
        bool, typer.Option("--request", help="Print the request body for plain REST instead of searching.")
    ] = False,
    explain: Annotated[
        bool, typer.Option("--explain", help="Show what each part adds to the score, instead of the texts.")
    ] = False,
) -> None:
    """Search in one of three modes, with highlighted text and the raw score of each retriever."""
    searcher = session.index(name).open_search(ranking.mode, encoder=ranking.encoder, settings=settings)
    condition = read_filter(page.filter)
    if request:
        for remark in searcher.remarks_on(text):
            session.output.note(remark)
        body = searcher.request(text, page.k, offset=page.offset, filter=condition)
        session.output.result(body)
        return session.output.line(json.dumps(body))
    searcher = searcher.requiring(settings.at_least)
    explanation = searcher.explain(text, page.k, offset=page.offset, filter=condition, parts=explain)
    for remark in explanation.remarks:
        session.output.note(remark)
    session.output.result(explanation.to_json())
    if not explain:
        return show_found(session, explanation.hits)
    show_parts(session, explanation.hits)
    for line in explanation.lines():
        session.output.line(line)


def read_filter(text: str | None) -> dict[str, Any] | None:
    """Return the filter given as JSON; None without one. Raises SettingsError for what is no JSON object."""
    from hybridr.errors import SettingsError

    try:
        value = json.loads(text) if text else None
    except ValueError:
        value = text
    if value is not None and not isinstance(value, dict):
        raise SettingsError("the filter is no JSON object", hint='--filter \'{"term": {"year": 2020}}\'')
    return value


def show(session: Session, hits: list[Hit]) -> None:
    """Print hits as a table, with their confidence if it is known."""
    if not hits:
        return session.output.line("nothing found")
    columns: dict[str, list[Any]] = {
        "rank": [hit.rank for hit in hits],
        "document": [hit.doc_id for hit in hits],
        "score": [f"{hit.score:.4f}" for hit in hits],
    }
    if hits[0].confidence is not None:
        columns["confidence"] = [raw(hit.confidence) for hit in hits]
    for name in dict.fromkeys(name for hit in hits for name in hit.scores):  # a pinned hit has fewer
        columns[name] = [raw(hit.scores.get(name)) for hit in hits]
    columns["text"] = [marked(hit.text) for hit in hits]
    session.output.table(list(columns), list(zip(*columns.values(), strict=True)))


def show_found(session: Session, hits: Hits) -> None:
    """Print hits as a table, or that nothing fits and which document is nearest."""
    if (hit := hits.nearest) is None:
        return show(session, hits)
    sure = f"confidence {raw(hit.confidence)}"
    session.output.line(f"nothing fits; the nearest is {hit.doc_id} ({sure}): {marked(hit.text)}")


def show_parts(session: Session, hits: list[Hit]) -> None:
    """Print a table of what each part adds to the hits' scores; without parts the raw scores."""
    names = dict.fromkeys(name for hit in hits for name in hit.parts or ())
    if not names:
        return show(session, hits)
    rows = [
        (
            hit.rank,
            hit.doc_id,
            f"{hit.score:.4f}",
            *(f"{(hit.parts or {}).get(name, 0.0):.4f}" for name in names),
        )
        for hit in hits
    ]
    session.output.table(("rank", "document", "score", *names), rows)


def raw(score: float | None) -> str:
    """Return a score as text; "-" if the retriever did not find the document."""
    return "-" if score is None else f"{score:.3f}"


def marked(text: str) -> str:
    """Return a highlighted text on one line with matching words between stars, cut if it is long."""
    from hybridr.languages import without_tags

    line = without_tags(unescape(text.replace("<em>", "*").replace("</em>", "*")))
    return line if len(line) <= SHOWN else line[:SHOWN] + " …"
