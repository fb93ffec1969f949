"""The verb `hybridr search`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from html import unescape
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..options import EncoderFolder, SearchedName
from ..session import Session
from ..verbs import app, verb

if TYPE_CHECKING:
    from hybridr.records import Hit, Hits
    from hybridr.search.settings import SearchSettings

SHOWN = 500  # characters


def refuse_size(text: str | None) -> None:
    """Raise BadParameter, which names -k as the option to use, if `--size`, `--top-k` or `--limit` is set."""
    if text is not None:
        raise typer.BadParameter(f"the option for the number of hits is -k: -k {text}")


@dataclass(frozen=True)
class HitOptions:
    """The options for which hits are returned (number, offset, filter), and how they are ranked."""

    k: Annotated[int, typer.Option("--k", "-k", min=1, max=10_000, help="Number of hits.")] = 10
    size: Annotated[
        str | None, typer.Option("--size", "--top-k", "--limit", hidden=True, callback=refuse_size)
    ] = None
    offset: Annotated[int, typer.Option("--from", min=0, help="Number of hits to skip, for pages.")] = 0
    filter: Annotated[str | None, typer.Option(help="Query in JSON that every hit must match.")] = None
    mode: Annotated[str, typer.Option(help="hybrid, or the name of one retriever.")] = "hybrid"
    encoder: EncoderFolder = None


@verb(app, "search", cluster=True)
def search(
    session: Session,
    name: SearchedName,
    text: Annotated[str, typer.Argument(help="The query.")],
    options: HitOptions,
    settings: SearchSettings,
    request: Annotated[
        bool, typer.Option("--request", help="Print the request body for plain REST instead of searching.")
    ] = False,
    explain: Annotated[
        bool, typer.Option("--explain", help="Show what each part adds to the score, instead of the texts.")
    ] = False,
) -> None:
    """Search by words, by vectors or both; shows highlighted text and each retriever's raw score."""
    if request:
        session.refuse_options("does not go with --request", "explain", "at_least")
    searcher = session.index(name).open_search(options.mode, encoder=options.encoder, settings=settings)
    condition = read_filter(options.filter)
    if request:
        for remark in searcher.remarks_on(text):
            session.output.note(remark)
        body = searcher.request(text, options.k, offset=options.offset, filter=condition)
        session.output.result(body)
        return session.output.line(json.dumps(body))
    searcher = searcher.requiring(settings.at_least)
    explanation = searcher.explain(text, options.k, offset=options.offset, filter=condition, parts=explain)
    for remark in explanation.remarks:
        session.output.note(remark)
    session.output.result(explanation.to_json())
    if not explain:
        return show_answers(session, explanation.hits)
    show_parts(session, explanation.hits)
    for line in explanation.lines():
        session.output.line(line)


def read_filter(text: str | None) -> dict[str, Any] | None:
    """Return a filter written as JSON; None without one. Raises SettingsError if it is not a JSON object."""
    from hybridr.errors import SettingsError

    try:
        value = json.loads(text) if text else None
    except ValueError:
        value = text
    if value is not None and not isinstance(value, dict):
        raise SettingsError("the filter is not a JSON object", hint='--filter \'{"term": {"year": 2020}}\'')
    return value


def show_hits(session: Session, hits: list[Hit]) -> None:
    """Print hits as a table, with their confidence if it is known."""
    if not hits:
        return session.output.line("nothing found")
    columns: dict[str, list[Any]] = {
        "rank": [hit.rank for hit in hits],
        "document": [hit.doc_id for hit in hits],
        "score": [f"{hit.score:.4f}" for hit in hits],
    }
    if hits[0].confidence is not None:
        columns["confidence"] = [score_text(hit.confidence) for hit in hits]
    for name in dict.fromkeys(name for hit in hits for name in hit.scores):  # a pinned hit has fewer
        columns[name] = [score_text(hit.scores.get(name)) for hit in hits]
    columns["text"] = [starred(hit.text) for hit in hits]
    session.output.table(list(columns), list(zip(*columns.values(), strict=True)))


def show_answers(session: Session, hits: Hits) -> None:
    """Print hits as a table; if none is confident enough, print that and the nearest document."""
    if (hit := hits.nearest) is None:
        return show_hits(session, hits)
    confidence = f"confidence {score_text(hit.confidence)}"
    session.output.line(f"nothing fits; the nearest is {hit.doc_id} ({confidence}): {starred(hit.text)}")


def show_parts(session: Session, hits: list[Hit]) -> None:
    """Print a table of what each part adds to the hits' scores; without parts the raw scores."""
    names = dict.fromkeys(name for hit in hits for name in hit.parts or ())
    if not names:
        return show_hits(session, hits)
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


def score_text(score: float | None) -> str:
    """Return a score as text; "-" if the retriever did not find the document."""
    return "-" if score is None else f"{score:.3f}"


def starred(text: str) -> str:
    """Return a highlighted text on one line: matching words between stars, cut after 500 characters."""
    from hybridr.languages import without_tags

    line = without_tags(unescape(text.replace("<em>", "*").replace("</em>", "*")))
    return line if len(line) <= SHOWN else line[:SHOWN] + " …"
