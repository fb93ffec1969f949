"""`hybridr evaluate`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..session import Session, verb

if TYPE_CHECKING:
    from hybridr.cluster.connection import Cluster
    from hybridr.evaluation.evaluation import Evaluation


def register(app: typer.Typer) -> None:
    """Add the verb to the app."""

    @verb(app, "evaluate", cluster=True)
    def evaluate(
        session: Session,
        name: Annotated[
            str | None, typer.Argument(help="Index that holds the collection; none: only the files of --run.")
        ] = None,
        beir: Annotated[Path | None, typer.Option(help="BEIR folder with queries.jsonl and qrels/.")] = None,
        split: Annotated[str, typer.Option(help="Split of the qrels.")] = "test",
        qrels: Annotated[
            Path | None, typer.Option(help="Qrels of TREC or BEIR instead of the split's.")
        ] = None,
        systems: Annotated[
            str,
            typer.Option(help="bm25, rm3, dense, hybrid, hybrid-stock, hybrid-completed, …"),
        ] = "bm25,dense,hybrid",
        run: Annotated[list[str] | None, typer.Option(help="NAME=FILE, a TREC run; may be repeated.")] = None,
        measures: Annotated[
            str, typer.Option(help="As in ir-measures: nDCG@10, R@1000, RR@10, AP, Judged@10, …")
        ] = "nDCG@10,R@100",
        baseline: Annotated[
            str | None, typer.Option(help="What the others are tested against (default: the first).")
        ] = None,
        runs: Annotated[Path | None, typer.Option(help="Folder for TREC run files.")] = None,
        kind: Annotated[
            str | None, typer.Option("--format", help="markdown, latex, json or html instead of the tables.")
        ] = None,
        report: Annotated[
            Path | None, typer.Option(help="File for it: .md, .tex, .json, .html (with the top tens).")
        ] = None,
        interval: Annotated[str | None, typer.Option(help="bootstrap or t.")] = None,
        resamples: Annotated[
            int | None, typer.Option(help="Of randomisation and bootstrap (10,000).")
        ] = None,
        seed: Annotated[int | None, typer.Option(help="Of randomisation and bootstrap.")] = None,
        depth: Annotated[int | None, typer.Option(help="Results per query (as the measures need).")] = None,
        encoder: Annotated[Path | None, typer.Option(help="Encoder folder.")] = None,
    ) -> None:
        """Measure systems of an index, and run files, on judged queries: intervals and paired tests."""
        from hybridr.errors import SettingsError
        from hybridr.evaluation.report import checked_format
        from hybridr.evaluation.settings import EvaluateSettings
        from hybridr.search.settings import SearchSettings
        from hybridr.search.systems import Compared, JudgedQueries, evaluate_index, evaluate_runs
        from hybridr.search.systems import report as write_report

        if kind or report:
            checked_format(kind, report)
        statistics = session.settings(
            EvaluateSettings, interval=interval, resamples=resamples, seed=seed, depth=depth
        )
        files = run_files(run or ())
        compared = Compared(names(systems), files, names(measures), baseline, statistics)
        judged = JudgedQueries(beir, split, qrels)
        cluster: Cluster | None = None
        if name is not None:
            if beir is None:
                raise SettingsError("no queries to search with", hint="--beir FOLDER")
            cluster = session.connect()
            found = evaluate_index(
                cluster,
                name,
                judged,
                compared,
                encoder=encoder,
                settings=session.settings(SearchSettings),
                progress=session.output.progress,
            )
        else:
            found = evaluate_runs(judged, compared, progress=session.output.progress)
        written = found.write_runs(runs) if runs else {}
        title = f"{name or 'runs'}: {found.queries} queries"
        if report:
            index = (cluster, name) if cluster is not None and name is not None else None
            write_report(found, report, title, kind=kind, index=index, beir=beir)
        session.output.result(found.to_json() | {"runs": written, "report": report and str(report)})
        render(session, found, title, None if report else kind)
        for file in [*written.values()]:
            session.output.note(f"run written: {file}")
        if report:
            session.output.note(f"report written: {report}")


def names(given: str) -> list[str]:
    """Split `a,b,c`."""
    return [name.strip() for name in given.split(",") if name.strip()]


def run_files(given: Sequence[str]) -> dict[str, Path]:
    """Read `NAME=FILE` pairs; a file without a name gets its own. Raises SettingsError for one name twice."""
    from hybridr.errors import SettingsError

    files: dict[str, Path] = {}
    for pair in given:
        name, equals, file = pair.partition("=")
        path = Path(file if equals else name)
        name = name if equals else path.stem
        if not name or name in files:
            raise SettingsError(f"--run {pair}: needed NAME=FILE with a name of its own")
        files[name] = path
    return files


def render(session: Session, found: Evaluation, title: str, kind: str | None) -> None:
    """Print the tables for people, or the document that was asked for."""
    from hybridr.evaluation.report import checked_format, rendered

    if kind:
        session.output.line(rendered(found, checked_format(kind), title).rstrip("\n"))
        return
    session.output.table(*found.table(), title=title)
    if found.comparisons:
        session.output.line()
        session.output.table(*found.comparison_table(), title=f"against {found.baseline}, p after Holm")
