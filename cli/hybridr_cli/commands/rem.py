"""`hybridr rem`: train a relevance module on labelled queries."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..session import Session, verb

if TYPE_CHECKING:
    from hybridr.adaptation.judged import Judged
    from hybridr.adaptation.rem import RemTraining

Text = str | None
Count = int | None
Number = float | None
File = Path | None

Beir = Annotated[File, typer.Option(help="BEIR folder with labelled queries.")]
Split = Annotated[str, typer.Option(help="Split of its qrels.")]
Qrels = Annotated[File, typer.Option(help="Instead of --beir: TREC qrels.")]
Queries = Annotated[File, typer.Option(help="With --qrels: queries, id<TAB>text.")]
Corpus = Annotated[File, typer.Option(help="With --qrels: documents, id<TAB>text.")]
Index = Annotated[Text, typer.Option(help="Index of the same corpus whose BM25 finds negatives.")]
Mined = Annotated[Count, typer.Option(help="Negatives mined per query.")]
MaxQueries = Annotated[Count, typer.Option(help="Random sample of more queries.")]
Seed = Annotated[Count, typer.Option(help="Seed of sample, weights, batches and dropout.")]


def register(app: typer.Typer) -> None:
    """Add the verbs to the app."""
    rem = typer.Typer(
        name="rem", no_args_is_help=True, help="Train a relevance module (REM) on labelled queries."
    )
    app.add_typer(rem)
    register_train(rem)
    register_negatives(rem)


def register_train(rem: typer.Typer) -> None:
    """Add `hybridr rem train`."""

    @verb(rem, "train", cluster=True)
    def train(
        session: Session,
        dam: Annotated[Text, typer.Option(help="Published name or folder of the domain module.")] = None,
        beir: Beir = None,
        split: Split = "train",
        qrels: Qrels = None,
        queries: Queries = None,
        corpus: Corpus = None,
        out: Annotated[File, typer.Option(help="Folder of the REM.")] = None,
        ranker: Annotated[Text, typer.Option(help="dense, unicoil, splade, colbert or rerank.")] = None,
        rem: Annotated[Text, typer.Option(help="Go on training this REM (few-shot).")] = None,
        full: Annotated[bool | None, typer.Option("--full", help="Train all weights, no REM.")] = None,
        loss: Annotated[Text, typer.Option(help="contrast, or distil from --teacher.")] = None,
        teacher: Annotated[File, typer.Option(help="Teacher scores, JSONL or TSV.")] = None,
        design: Annotated[Text, typer.Option(help="lora, parallel, or both (as published).")] = None,
        rank: Annotated[Count, typer.Option(help="LoRA rank.")] = None,
        negatives: Annotated[File, typer.Option(help="File of `rem negatives`.")] = None,
        index: Index = None,
        mined: Mined = None,
        negatives_per_query: Annotated[Count, typer.Option(help="Hard negatives drawn per query.")] = None,
        batch_size: Annotated[Count, typer.Option(help="Queries per step and process.")] = None,
        epochs: Annotated[Count, typer.Option(help="Visits of every query.")] = None,
        steps: Annotated[Count, typer.Option(help="Optimiser steps, instead of --epochs.")] = None,
        learning_rate: Annotated[Number, typer.Option(help="Constant learning rate.")] = None,
        inv_temperature: Annotated[Number, typer.Option(help="What scores are multiplied by.")] = None,
        pooling: Annotated[Text, typer.Option(help="mean or cls.")] = None,
        similarity: Annotated[Text, typer.Option(help="ip or cosine.")] = None,
        max_query_tokens: Annotated[Count, typer.Option(help="Longest query.")] = None,
        max_document_tokens: Annotated[Count, typer.Option(help="Longest document.")] = None,
        max_queries: MaxQueries = None,
        dropout: Annotated[bool | None, typer.Option(help="The frozen backbone's dropout.")] = None,
        precision: Annotated[Text, typer.Option(help="auto, fp32 or bf16.")] = None,
        device: Annotated[Text, typer.Option(help="auto, cpu or cuda.")] = None,
        seed: Seed = None,
    ) -> None:
        """Train a REM in a frozen DAM (or all weights, --full) and write it as `assemble` reads it."""
        from hybridr.adaptation.rem import train_rem
        from hybridr.adaptation.settings import RemSettings

        settings = session.settings(
            RemSettings,
            dam=dam,
            out=out,
            ranker=ranker,
            rem=rem,
            full=full,
            loss=loss,
            teacher=teacher,
            design=design,
            rank=rank,
            negatives=negatives,
            mined=mined,
            negatives_per_query=negatives_per_query,
            batch_size=batch_size,
            epochs=epochs,
            steps=steps,
            learning_rate=learning_rate,
            inv_temperature=inv_temperature,
            pooling=pooling,
            similarity=similarity,
            max_query_tokens=max_query_tokens,
            max_document_tokens=max_document_tokens,
            max_queries=max_queries,
            dropout=dropout,
            precision=precision,
            device=device,
            seed=seed,
        )
        judged = read_judged(beir, split, qrels, queries, corpus)
        trained = train_rem(
            judged,
            settings,
            rank=ranking(session, index),
            source=source_of(index),
            progress=session.output.progress,
        )
        render(session, settings.dam, trained)


def register_negatives(rem: typer.Typer) -> None:
    """Add `hybridr rem negatives`."""

    @verb(rem, "negatives", cluster=True)
    def negatives(
        session: Session,
        out: Annotated[Path, typer.Option(help="Folder of the file.")],
        beir: Beir = None,
        split: Split = "train",
        qrels: Qrels = None,
        queries: Queries = None,
        corpus: Corpus = None,
        index: Index = None,
        mined: Mined = 50,
        max_queries: MaxQueries = None,
        seed: Seed = 2022,
    ) -> None:
        """Mine hard negatives by BM25, in this process or on the cluster, and write them as one file."""
        from hybridr.adaptation.judged import mine

        judged = read_judged(beir, split, qrels, queries, corpus).sample(max_queries, seed or 0)
        found = mine(
            judged,
            out,
            mined or 0,
            rank=ranking(session, index),
            source=source_of(index),
            progress=session.output.progress,
        )
        output = session.output
        output.line(
            f"mined      {found.documents:,} negatives of {found.queries:,} queries"
            + (" (done before)" if found.reused else "")
        )
        output.line(f"file       {found.file}")
        output.line(f"next       hybridr rem train --dam DIR {option(beir)}--negatives {found.file}")
        output.result(
            {
                "file": str(found.file),
                "queries": found.queries,
                "documents": found.documents,
                "shortest": found.shortest,
                "reused": found.reused,
            }
        )


def read_judged(beir: File, split: str, qrels: File, queries: File, corpus: File) -> Judged:
    """Read the labels from a BEIR folder or from three files. Raises SettingsError for a mixture."""
    from hybridr.adaptation.judged import read_judged_beir, read_judged_files
    from hybridr.errors import SettingsError

    if beir is not None and not (qrels or queries or corpus):
        return read_judged_beir(beir, split)
    if beir is None and qrels is not None and queries is not None and corpus is not None:
        return read_judged_files(qrels, queries, corpus)
    raise SettingsError(
        "labelled queries are needed from one place", hint="--beir FOLDER, or --qrels, --queries and --corpus"
    )


def ranking(session: Session, index: Text) -> Any:
    """Open BM25 on the cluster; None without an index."""
    from hybridr.search.systems import open_search

    return open_search(session.connect(), index, "lexical").run if index else None


def source_of(index: Text) -> str:
    """Name where negatives come from."""
    return f"index {index}" if index else "bm25"


def option(beir: File) -> str:
    """Repeat the folder of labels for the next command."""
    return f"--beir {beir} " if beir else ""


def render(session: Session, dam: str, trained: RemTraining) -> None:
    """Show what was trained, and what to run next."""
    from dataclasses import asdict

    output = session.output
    output.line(
        f"trained    {trained.steps} steps on {trained.queries:,} queries, "
        f"loss {trained.loss_start:.3f} -> {trained.loss_end:.3f}, {trained.seconds:.0f} s"
        + (" (done before)" if trained.reused else "")
    )
    what = "all weights" if trained.kind == "whole" else "the REM"
    output.line(f"weights    {trained.parameters:,} in {what}, {trained.share:.1%} of the backbone")
    if trained.dropped:
        output.line(f"left out   {trained.dropped:,} queries of which the teacher scored too few documents")
    output.line(f"folder     {trained.folder}")
    output.line(f"next       {following(dam, trained)}")
    output.result(asdict(trained) | {"folder": str(trained.folder)})


def following(dam: str, trained: RemTraining) -> str:
    """Say what the folder is good for: a REM is put into the DAM of another corpus."""
    if trained.kind == "whole":
        return f'hybridr.assemble("{trained.folder}") in Python opens it as an encoder'
    return f"hybridr adapt --index NAME --objective mlm --base {dam} --rem {trained.folder}"
