"""`hybridr pipeline show|put|delete`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..session import Session, verb

if TYPE_CHECKING:
    from hybridr.search.fusions.pipeline import Technique
    from hybridr.serving.pipelines import Change

Normalization = Annotated[str | None, typer.Option(help="min_max (default), l2, z_score or rrf.")]
Combination = Annotated[
    str | None, typer.Option(help="arithmetic_mean (default), geometric_mean or harmonic_mean.")
]
Weights = Annotated[str | None, typer.Option(help="One per sub-query, sum 1: 0.4,0.6 (half each).")]
RankConstant = Annotated[int | None, typer.Option(help="Of rrf (60).")]
LowerBounds = Annotated[
    str | None,
    typer.Option(help="Of min_max, one per sub-query: apply, clip or ignore, and a score: apply:0,clip:0.5."),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show the requests, send none.")]


def register(app: typer.Typer) -> None:
    """Add the group to the app."""
    group = typer.Typer(
        name="pipeline", help="Search pipelines that fuse hybrid queries.", no_args_is_help=True
    )
    app.add_typer(group)
    register_show(group)
    register_put(group)
    register_delete(group)


def register_show(app: typer.Typer) -> None:
    """Add `hybridr pipeline show`."""

    @verb(app, "show", cluster=True)
    def show(
        session: Session,
        name: Annotated[
            str | None, typer.Argument(help="A stored one; without it no cluster is asked.")
        ] = None,
        normalization: Normalization = None,
        combination: Combination = None,
        weights: Weights = None,
        rank_constant: RankConstant = None,
        lower_bounds: LowerBounds = None,
    ) -> None:
        """Print the body of a technique, or of a stored pipeline; curl can PUT it as it stands."""
        import json

        from hybridr.cluster.default_pipeline import stored_pipeline
        from hybridr.serving.pipelines import build_pipeline

        if name is not None:
            body = stored_pipeline(session.connect(), name)
        else:
            body = build_pipeline(
                technique(session, normalization, combination, weights, rank_constant, lower_bounds)
            )
        session.output.result(body)
        session.output.line(json.dumps(body, indent=2, ensure_ascii=False))


def register_put(app: typer.Typer) -> None:
    """Add `hybridr pipeline put`."""

    @verb(app, "put", cluster=True)
    def put(
        session: Session,
        name: Annotated[str, typer.Argument(help="What the cluster calls it.")],
        normalization: Normalization = None,
        combination: Combination = None,
        weights: Weights = None,
        rank_constant: RankConstant = None,
        lower_bounds: LowerBounds = None,
        replace: Annotated[
            bool, typer.Option("--replace", help="Also one that hybridr did not make.")
        ] = False,
        dry_run: DryRun = False,
    ) -> None:
        """Store a pipeline, to be named by searches or by an index as its default."""
        from hybridr.serving.pipelines import put_pipeline

        wanted = technique(session, normalization, combination, weights, rank_constant, lower_bounds)
        report(
            session, put_pipeline(session.connect(), name, wanted, replace=replace, dry_run=dry_run), dry_run
        )


def register_delete(app: typer.Typer) -> None:
    """Add `hybridr pipeline delete`."""

    @verb(app, "delete", cluster=True)
    def delete(
        session: Session,
        name: Annotated[str, typer.Argument(help="A pipeline that hybridr made.")],
        dry_run: DryRun = False,
    ) -> None:
        """Delete a stored pipeline; not one that an index has as its default."""
        from hybridr.serving.pipelines import delete_pipeline

        report(session, delete_pipeline(session.connect(), name, dry_run=dry_run), dry_run)


def technique(
    session: Session,
    normalization: str | None,
    combination: str | None,
    weights: str | None,
    rank_constant: int | None,
    lower_bounds: str | None,
) -> Technique:
    """Read the technique from the options; what they leave out is that of [search]."""
    from hybridr.search.settings import SearchSettings
    from hybridr.serving.pipelines import technique_of

    settings = session.settings(
        SearchSettings, normalization=normalization, combination=combination, rank_constant=rank_constant
    )
    return technique_of(settings, weights, lower_bounds)


def report(session: Session, done: Change, dry_run: bool) -> None:
    """Print what was or would be sent."""
    import json

    session.output.result({**done._asdict(), "dry_run": dry_run})
    shown: list[dict[str, Any]] = done.requests
    for request in shown:
        session.output.line(f"{request['method']} {request['path']}")
        if "body" in request:
            session.output.line(json.dumps(request["body"], indent=2))
    if dry_run:
        session.output.line("nothing was sent")
    elif not done.changed:
        session.output.line("it was so already")
