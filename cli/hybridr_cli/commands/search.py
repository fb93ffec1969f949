"""`hybridr search`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ..session import Session, verb

if TYPE_CHECKING:
    from hybridr.records import Hit

SHOWN = 500  # characters


def register(app: typer.Typer) -> None:
    """Add the verb to the app."""

    @verb(app, "search", cluster=True)
    def search(
        session: Session,
        name: Annotated[str, typer.Argument(help="Index, alias, or the index that was reindexed.")],
        text: Annotated[str, typer.Argument(help="The query.")],
        mode: Annotated[
            Literal["hybrid", "lexical", "dense"], typer.Option(help="Which legs rank.")
        ] = "hybrid",
        k: Annotated[int, typer.Option(min=1, max=10_000, help="Number of hits.")] = 10,
        encoder: Annotated[
            Path | None, typer.Option(help="Encoder folder (default: the one that wrote the vectors).")
        ] = None,
        offset: Annotated[int, typer.Option("--from", min=0, help="Hits to skip: pages.")] = 0,
        filter: Annotated[
            str | None, typer.Option(help="A query in JSON that every hit has to match.")
        ] = None,
        fusion: Annotated[
            str | None, typer.Option(help="auto, absolute (true scores of both legs) or pipeline.")
        ] = None,
        tuned: Annotated[bool, typer.Option(help="What `hybridr tune` found, where not given here.")] = True,
        query_map: Annotated[str | None, typer.Option(help="auto, none, or the folder of one.")] = None,
        normalization: Annotated[str | None, typer.Option(help="min_max, l2, z_score or rrf.")] = None,
        combination: Annotated[
            str | None, typer.Option(help="arithmetic_mean, geometric_mean or harmonic_mean.")
        ] = None,
        dense_weight: Annotated[
            float | None, typer.Option(help="Weight of the dense leg, 0 to 1 (0.5).")
        ] = None,
        feedback: Annotated[
            Literal["none", "rm3", "rocchio"] | None,
            typer.Option(help="Words (rm3) or vectors (rocchio) of the best documents change the query."),
        ] = None,
        complete: Annotated[
            bool, typer.Option("--complete", help="Hybrid: true scores of both legs for every candidate.")
        ] = False,
        depth: Annotated[int | None, typer.Option(help="Candidates of each leg (100).")] = None,
        request: Annotated[
            bool, typer.Option("--request", help="Print the body for plain REST, do not search.")
        ] = False,
    ) -> None:
        """Search in one of three modes, with highlighted text and the raw score of each leg."""
        from hybridr.search.settings import SearchSettings
        from hybridr.search.systems import open_search

        settings = session.settings(
            SearchSettings,
            fusion=fusion,
            normalization=normalization,
            combination=combination,
            dense_weight=dense_weight,
            depth=depth,
            query_map=query_map,
            feedback=feedback,
            tuned=None if tuned else False,
        )
        searcher = open_search(
            session.connect(),
            name,
            mode,
            encoder,
            settings,
            feedback=None if feedback == "none" else feedback,
            complete=complete,
        )
        wanted = read_filter(filter)
        if request:
            body = searcher.request(text, k, offset=offset, filter=wanted)
            session.output.result(body)
            return session.output.line(json.dumps(body))
        hits = searcher(text, k, offset=offset, filter=wanted)
        session.output.result({"mode": mode, "hits": [hit._asdict() for hit in hits]})
        show(session, hits)


def read_filter(text: str | None) -> dict[str, Any] | None:
    """Read a filter. Raises SettingsError for what is no JSON object."""
    from hybridr.errors import SettingsError

    try:
        found = json.loads(text) if text else None
    except ValueError:
        found = text
    if found is not None and not isinstance(found, dict):
        raise SettingsError("the filter is no JSON object", hint='--filter \'{"term": {"year": 2020}}\'')
    return found


def show(session: Session, hits: list[Hit]) -> None:
    """Print the hits as a table."""
    if not hits:
        return session.output.line("nothing found")
    rows = [
        (
            hit.rank,
            hit.doc_id,
            f"{hit.score:.4f}",
            raw(hit.lexical_score),
            raw(hit.dense_score),
            marked(hit.text),
        )
        for hit in hits
    ]
    session.output.table(("rank", "document", "score", "BM25", "dense", "text"), rows)


def raw(score: float | None) -> str:
    """Render the raw score of a leg; a dash where the leg did not find the document."""
    return "-" if score is None else f"{score:.3f}"


def marked(text: str) -> str:
    """Show the highlighted words between stars, on one line; a long passage by its beginning."""
    line = " ".join(text.replace("<em>", "*").replace("</em>", "*").split())
    return line if len(line) <= SHOWN else line[:SHOWN] + " …"
