"""The verb `hybridr compare`."""

from __future__ import annotations

from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from ..options import FieldNames, JudgedOptions, split_names
from ..session import Session
from ..verbs import app, verb

if TYPE_CHECKING:
    from hybridr.evaluation.significance import BoundedMean


@verb(app, "compare", cluster=True)
def compare(
    session: Session,
    index: Annotated[str, typer.Argument(help="Index or alias.")],
    encoders: Annotated[str, typer.Option(help="Folders, or names of `hybridr models`: A,B,…")],
    judgements: JudgedOptions,
    fields: FieldNames = None,
) -> None:
    """Compare encoders on 2,000 documents of an index, and recommend one. Changes nothing.

    Uses judged queries if there are at least 30, else queries made from documents. It can be resumed.
    """
    target, output = session.index(index), session.output
    comparison = target.compare(
        split_names(encoders),
        judgements.queries_for(target),
        fields=split_names(fields),
        progress=output.progress,
    )
    kind = "judged" if comparison.judged else "made from documents"
    output.line(
        f"{comparison.index}: {comparison.sampled:,} of {comparison.documents:,} documents, "
        f"{comparison.queries:,} queries, {kind}; nDCG@10 with 95% interval"
    )
    rows = [("BM25 alone", "", mean_text(comparison.words), "", "", "", "")]
    rows += [
        (
            result.name,
            mean_text(result.dense),
            mean_text(result.hybrid),
            f"{result.p:.3f}",
            f"{result.documents_per_second:.0f}",
            f"{result.seconds / 60:.1f}",
            f"{result.vector_bytes / 2**20:.1f}",
        )
        for result in comparison.encoders
    ]
    columns = (
        "encoder",
        "vectors alone",
        "with BM25",
        "p",
        "documents/s",
        "minutes for all",
        "MiB of vectors",
    )
    output.table(columns, rows)
    if comparison.best:
        output.line(f"best       {comparison.best}")
    elif len(comparison.encoders) > 1:
        output.line("best       no clear winner: the first is not significantly better than all others (p)")
    output.line(f"take       {comparison.choice}")
    output.line(f"next       hybridr reindex {quote(comparison.index)} --encoder {quote(comparison.choice)}")
    output.result(comparison.to_json())


def mean_text(value: BoundedMean) -> str:
    """Return a mean with the bounds of its interval as text."""
    return f"{value.mean:.4f} [{value.low:.3f}, {value.high:.3f}]"
