"""The verb `hybridr tune`."""

from __future__ import annotations

from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from ..options import EncoderFolder, JudgedOptions, Only, SearchedName
from ..session import Session
from ..verbs import app, verb

if TYPE_CHECKING:
    from hybridr.relevance.judgement import Choice
    from hybridr.relevance.settings import TuneSettings
    from hybridr.relevance.tuning import TuneResult
    from hybridr.search.settings import SearchSettings


@verb(app, "tune", cluster=True)
def tune(
    session: Session,
    name: SearchedName,
    judgements: JudgedOptions,
    settings: TuneSettings,
    search: Annotated[SearchSettings, Only("query_template", "rerank")],
    encoder: EncoderFolder = None,
    reset: Annotated[bool, typer.Option("--reset", help="Undo all tuning.")] = False,
) -> None:
    """Choose the fusion and its weights by judged queries; by a query log alone, the weight of vectors.

    Only a proven gain is written; searches use it from then on. --reset undoes it.
    """
    if reset:
        session.refuse_options("does not go with --reset", *vars(judgements), "query_log", "query_template")
        session.refuse_options("does not go with --reset", "rerank", "encoder")
    index, dry_run = session.index(name), settings.dry_run
    if reset:
        undo, out = index.reset_tuning(dry_run=dry_run), session.output
        out.result(undo.to_json())
        if undo.tuned is None:
            return out.line(f"{undo.index}: nothing was tuned, searches rank by the defaults")
        names = [setting for setting, value in undo.tuned if value]
        out.line(f"{undo.index}: {', '.join(names)}: {'would be taken back' if dry_run else 'taken back'}")
        if undo.tuned.pipeline:
            out.line(f"the deployed pipeline keeps its weights until: hybridr deploy {quote(name)}")
        return
    queries, progress = judgements.queries_for(index), session.output.progress
    result = index.tune(queries, encoder=encoder, settings=settings, search=search, progress=progress)
    session.output.result(result.to_json())
    show_tuning(session, result)
    in_use = ", ".join(result.in_use)
    if dry_run:
        effect = f"would be in use: {in_use}" if in_use else "nothing would change"
        session.output.line(f"dry run: {effect}")
    elif in_use:
        session.output.line(f"in use from now on: {in_use}; undo: hybridr tune {quote(name)} --reset")
    else:
        session.output.line("in use from now on: the defaults; nothing was shown to be better")
    for problem in index.deployment_problems():
        session.output.note(f"deployed, but {problem}")


def show_choice(session: Session, name: str, choice: Choice) -> None:
    """Print which settings the judged queries chose, and the gain."""
    bounds = f"[{choice.low:+.4f}, {choice.high:+.4f}]"
    settings = f", not {choice.chosen}" if choice.chosen.distance else ""
    decision = str(choice.chosen) if choice.applied else f"{choice.best} is kept{settings}"
    session.output.line(f"{name}: {decision}; gain on unseen queries {choice.gain:+.4f} {bounds}")


def show_tuning(session: Session, result: TuneResult) -> None:
    """Print the result of tuning."""
    out, choice = session.output, result.choice
    if result.by_log is not None:
        out.line(f"{result.by_log.queries} queries of the log: dense weight {result.by_log.dense_weight:g}")
    elif choice is None:
        out.line("fusion: nothing is changed; judged queries or a query log are needed to choose another")
    else:
        out.line(f"{choice.queries} judged queries, {choice.measure} {choice.default:.4f} by default")
        if result.without_relevant:
            out.line(f"  {result.without_relevant:,} of them have no relevant document, and count as 0")
        show_choice(session, "search", choice)
    if result.chain is not None:
        show_choice(session, "re-ranking", result.chain)
    if result.pipeline is not None:
        show_choice(session, "deployed pipeline", result.pipeline)
    if result.term_table is not None:
        out.line(f"term table: {result.term_table.described}")
    if result.answers is not None:
        out.line(f"confidence: {result.answers.described}")
        for cost in result.answers.costs:
            out.line(
                f"  at least {cost.at_least}: {cost.kept:.0%} of answers kept, "
                f"{cost.false_answers:.0%} of queries without any answered"
            )
