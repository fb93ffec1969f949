"""The verb `hybridr demo`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from ..options import Only
from ..session import Session
from ..verbs import app, verb
from .adapt import describe_fit

if TYPE_CHECKING:
    from hybridr.cluster.settings import NodeSettings
    from hybridr.demo.demo import Demonstration
    from hybridr.training.adaptation import AdaptResult


@verb(app, "demo")
def demo(session: Session, node: Annotated[NodeSettings, Only("product")]) -> None:
    """Try everything: start a node, load the Python documentation, adapt, reindex, search, evaluate."""
    from hybridr.cluster.embedded.configuration import licence_of
    from hybridr.demo.demo import demonstrate
    from hybridr.training.settings import AdaptSettings

    if licence := licence_of(node):
        session.output.note(licence)
    session.output.note("Every step on the Python documentation; a second run skips finished steps.")
    training, progress = session.settings(AdaptSettings), session.output.progress
    done = demonstrate(node_settings=node, adapt_settings=training, progress=progress)
    session.output.close()
    session.output.result(
        {
            "url": done.node.url,
            "documents": done.loading.documents,
            "promoted": done.adaptation.promoted,
            "reindex": done.reindexing.to_json(),
            "hits": [hit.to_json() for hit in done.hits],
            "nearest": done.foreign.nearest.to_json() if done.foreign.nearest else None,
            "evaluation": done.evaluation.to_json(),
            "seconds": done.seconds,
        }
    )
    show_demo(session, done)


def show_demo(session: Session, demo: Demonstration) -> None:
    """Print what the demo did, its results, and what to try next."""
    from hybridr.demo.demo import AT_LEAST, INDEX, QUESTION, UNANSWERED

    from .search import show_answers, show_hits

    out = session.output
    seconds = {step: f"{seconds:.0f} s" for step, seconds in demo.seconds.items()}
    out.line()
    out.line(f"node      {demo.node.title} at {demo.node.url} ({seconds['node']})")
    out.line(f"load      {demo.loading.documents:,} documents into '{INDEX}', BM25 ready ({seconds['load']})")
    out.line(f"adapt     {verdict(demo.adaptation)} ({seconds['adapt']})")
    out.line(
        f"reindex   alias '{demo.reindexing.alias}' -> '{demo.reindexing.destination}' ({seconds['reindex']})"
    )
    out.line()
    out.line(f'search    "{QUESTION}"')
    show_hits(session, demo.hits)
    out.line(f'search    "{UNANSWERED}", at least {AT_LEAST}')
    show_answers(session, demo.foreign)
    out.line()
    columns, rows = demo.evaluation.table()
    out.table(columns, rows, title=f"{demo.evaluation.queries} known-item queries, labels never used above")
    out.line()
    out.line("Try next:")
    out.line(f'  hybridr search {INDEX} "read a file line by line"      --mode lexical|dense|hybrid')
    out.line("  hybridr load FOLDER --index mine && hybridr inspect mine   your own documents")
    out.line("  hybridr reindex mine && hybridr serve --index mine         vectors, and searches by HTTP")
    out.line(f"  hybridr rollback {INDEX}                                undo the switch of the alias")
    out.line("  hybridr node stop                                      the node keeps running until then")


def verdict(adaptation: AdaptResult) -> str:
    """Return a text that says what was trained or fitted, and which encoder is used."""
    decision = "the adapted encoder is used" if adaptation.promoted else "the packaged encoder stays"
    work = f"{adaptation.steps} steps" if adaptation.steps else f"fitted {describe_fit(adaptation)}"
    return f"{work}; {decision}"
