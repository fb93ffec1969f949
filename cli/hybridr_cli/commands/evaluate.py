"""The verb `hybridr evaluate`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hybridr.errors import quantity

from ..options import EncoderFolder, JudgedOptions, split_names
from ..session import Session
from ..verbs import app, verb

if TYPE_CHECKING:
    from hybridr.evaluation.evaluation import Evaluation


@dataclass(frozen=True)
class EvaluationOptions:
    """The options for what is measured (systems, run files, measures, baseline, qrels), and the files to
    write.
    """

    qrels: Annotated[Path | None, typer.Option(help="TREC or BEIR qrels instead of those of the split.")] = (
        None
    )
    systems: Annotated[
        str, typer.Option(help="bm25, template, rm3, dense, hybrid, hybrid-stock, hybrid+cross, …")
    ] = "bm25,dense,hybrid"
    query_template: Annotated[
        list[str] | None,
        typer.Option(
            help="[NAME=]FILE, your own query with {{query}} in it; may be repeated. Each is a system; the "
            "first also is the lexical retriever."
        ),
    ] = None
    run: Annotated[list[str] | None, typer.Option(help="NAME=FILE, a TREC run; may be repeated.")] = None
    measures: Annotated[
        str, typer.Option(help="As in ir-measures: nDCG@10, R@1000, RR@10, AP, Judged@10, …")
    ] = "nDCG@10,R@100"
    baseline: Annotated[
        str | None, typer.Option(help="System that the others are tested against.", show_default="the first")
    ] = None
    runs: Annotated[Path | None, typer.Option(help="Folder to write TREC run files to.")] = None
    report: Annotated[
        Path | None, typer.Option(help="Report to write: .md, or .html with the top ten hits.")
    ] = None


@dataclass(frozen=True)
class BaselineOptions:
    """The options for comparing with an earlier evaluation, so that CI fails if a measure falls."""

    write: Annotated[
        Path | None, typer.Option(help="File to write the values of each query to, a baseline for --against.")
    ] = None
    against: Annotated[
        Path | None,
        typer.Option(help="File of an earlier --write; exit code 4 if a measure of a system fell."),
    ] = None
    allow: Annotated[
        float, typer.Option(help="Largest fall that is tolerated; a larger one fails if p < .05.")
    ] = 0.005
    at_most: Annotated[
        float | None, typer.Option(help="A fall beyond this fails without a test.", show_default=False)
    ] = None


@verb(app, "evaluate", cluster=True)
def evaluate(
    session: Session,
    queries: JudgedOptions,
    options: EvaluationOptions,
    gate: BaselineOptions,
    name: Annotated[
        str | None, typer.Argument(help="Index with the collection; none: only the files of --run.")
    ] = None,
    encoder: EncoderFolder = None,
) -> None:
    """Measure rankings of an index, and TREC runs, on judged queries, with intervals and paired tests."""
    from hybridr import Compared
    from hybridr.errors import SettingsError
    from hybridr.search.settings import SearchSettings
    from hybridr.search.systems import evaluate_systems

    if name is not None and queries.beir is None and not queries.judgements:
        raise SettingsError("no queries to search with", hint="--beir FOLDER, or --judgements")
    if gate.against is None:
        session.refuse_options("needs --against", "allow", "at_most")
    comparison = Compared(
        split_names(options.systems),
        files_by_name("--run", options.run or ()),
        split_names(options.measures),
        options.baseline,
        templates=files_by_name("--query-template", options.query_template or ()),
        **vars(gate),
    )
    output: dict[str, Any] = {"report": options.report, "progress": session.output.progress}
    if name is None:
        session.refuse_options("needs an INDEX", "judgements", "query_template", "encoder", "systems")
        judged_queries = queries.in_folder()._replace(qrels=options.qrels)
        evaluation = evaluate_systems(judged_queries, comparison, **output)
    else:
        index = session.index(name)
        judged_queries = queries.queries_for(index)._replace(qrels=options.qrels)
        settings = session.settings(SearchSettings)
        evaluation = index.evaluate(judged_queries, comparison, encoder=encoder, settings=settings, **output)
    run_files = evaluation.write_runs(options.runs) if options.runs else {}
    title = f"{name or 'runs'}: {quantity(evaluation.queries, 'query')}"
    show_evaluation(session, evaluation, title, options.report, run_files)
    if gate.write and not evaluation.falls:
        session.output.note(f"baseline written: {gate.write}")
    if evaluation.falls:
        raise typer.Exit(4)


def files_by_name(option: str, values: Sequence[str]) -> dict[str, Path]:
    """Return name -> file of `NAME=FILE` values; a value without NAME is named after the file.

    Raises SettingsError for an empty or repeated name.
    """
    from hybridr.errors import SettingsError

    files: dict[str, Path] = {}
    for pair in values:
        name, equals, file = pair.partition("=")
        path = Path(file if equals else name)
        name = name if equals else path.stem
        if not name or name in files:
            raise SettingsError(f"{option} {pair}: NAME=FILE with a new name is needed")
        files[name] = path
    return files


def show_evaluation(
    session: Session, evaluation: Evaluation, title: str, report: Path | None, run_files: dict[str, str]
) -> None:
    """Print the tables of an evaluation, its remarks, and which files were written."""
    out = session.output
    out.result(evaluation.to_json() | {"runs": run_files, "report": report and str(report)})
    out.table(*evaluation.table(), title=title)
    if evaluation.comparisons:
        out.line()
        out.table(*evaluation.comparison_table(), title=f"against {evaluation.baseline}, p after Holm")
    if evaluation.changes:
        out.line()
        for change in evaluation.falls:
            out.line(change.line())
        if not evaluation.falls:
            out.line("no measure of a system fell further below the baseline than is allowed")
    for remark in evaluation.remarks:
        out.note(remark)
    for file in run_files.values():
        out.note(f"run written: {file}")
    if run_files and (left_out := evaluation.unwritable()):
        out.note(f"left out of the runs: {quantity(len(left_out), 'document')} with blanks in the id (TREC)")
    if report:
        out.note(f"report written: {report}")
