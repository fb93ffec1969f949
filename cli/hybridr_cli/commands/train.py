"""The verbs `hybridr dam train` (a domain module) and `hybridr rem train` (a relevance module)."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hybridr.errors import quantity

from ..output import Output
from ..session import Session
from ..verbs import group, verb

if TYPE_CHECKING:
    from hybridr.relevance.corpus import Source, TargetDomain
    from hybridr.training.adaptation import AdaptResult
    from hybridr.training.dam import DamFit
    from hybridr.training.rem import RemTraining
    from hybridr.training.settings import DamSettings, RemSettings

dam = group("dam", "Train a domain module (DAM) on documents without labels.")


@verb(dam, "train", cluster=True)
def train_domain(
    session: Session,
    index: Annotated[str | None, typer.Option(help="Index to read documents from.")] = None,
    beir: Annotated[Path | None, typer.Option(help="BEIR folder instead of --index.")] = None,
    file: Annotated[
        Path | None,
        typer.Option(help="NAME.jsonl, or lines docid<TAB>text, plain or gzip; instead of --index."),
    ] = None,
    *,
    settings: DamSettings,
) -> None:
    """Train a DAM without labels, from a source DAM; the same command resumes."""
    from hybridr.errors import SettingsError
    from hybridr.relevance.corpus import CorpusFile
    from hybridr.training.dam import fit_dam

    if [index, beir, file].count(None) != 2:
        raise SettingsError(
            "one source of documents is needed", hint="--index NAME, --beir FOLDER or --file FILE"
        )
    path = beir or file
    source: Source = CorpusFile(path, settings.fields) if path else (session.connect(), str(index))
    fit = fit_dam(source, settings, progress=session.output.progress)
    output = session.output
    show_training(output, f"{fit.steps:,} steps on {fit.documents:,} documents in {fit.precision}", fit)
    show_unseen(output, fit, "text")
    if fit.fresh_head:
        output.line("head       the base had none; a new one, tied to its embeddings, was trained with it")
    output.line(f"dam        {fit.folder}, losses in losses.jsonl")
    dam_folder = str(fit.folder)
    output.line(
        f"next       hybridr rem train --dam {quote(dam_folder)} ..., "
        f"or hybridr adapt --base {quote(dam_folder)} ..."
    )
    output.result({**asdict(fit), "folder": str(fit.folder)})


rem = group("rem", "Train a relevance module (REM) on labelled queries.")


@dataclass(frozen=True)
class LabelOptions:
    """The options for labelled queries (a BEIR folder or three files), and the index for negatives."""

    beir: Annotated[Path | None, typer.Option(help="BEIR folder with labelled queries.")] = None
    split: Annotated[str, typer.Option(help="Split of its qrels.")] = "train"
    qrels: Annotated[Path | None, typer.Option(help="TREC qrels instead of --beir.")] = None
    queries: Annotated[Path | None, typer.Option(help="With --qrels: queries, id<TAB>text.")] = None
    corpus: Annotated[Path | None, typer.Option(help="With --qrels: documents, id<TAB>text.")] = None
    index: Annotated[
        str | None, typer.Option(help="Index of the same corpus, to mine negatives by BM25.")
    ] = None


@verb(rem, "train", cluster=True)
def train_relevance(
    session: Session,
    labels: LabelOptions,
    invariant_to: Annotated[
        str | None, typer.Option(help="Index, BEIR folder or JSONL of the domain to be invariant to.")
    ] = None,
    target_queries: Annotated[
        Path | None,
        typer.Option(
            help="With --invariant-to: queries of that domain, one per line.",
            show_default="made from its documents",
        ),
    ] = None,
    *,
    settings: RemSettings,
) -> None:
    """Train a REM in a frozen DAM (or all weights, --full) and write it as `assemble` reads it."""
    from hybridr.training.judged import read_labels
    from hybridr.training.rem import train_rem
    from hybridr.training.settings import require_method

    require_method(settings, invariant=invariant_to is not None)
    output = session.output
    judgements = read_labels(labels.beir, labels.split, labels.qrels, labels.queries, labels.corpus)
    target = read_domain(session, invariant_to, target_queries, settings.seed)
    ranking: dict[str, Any] = {"rank": None, "source": "bm25"}  # in this process
    if labels.index:
        search = session.index(labels.index).open_search("lexical")
        ranking = {"rank": search.run, "source": f"index {labels.index}"}
    training = train_rem(judgements, settings, **ranking, target=target, progress=output.progress)
    show_training(output, f"{training.steps} steps on {training.queries:,} queries", training)
    part = "all weights" if training.kind == "whole" else "the REM"
    output.line(f"weights    {training.parameters:,} in {part}, {training.share:.1%} of the backbone")
    if training.method:
        output.line(
            f"method     {training.method['source']}; values of each step in losses.jsonl and manifest.json"
        )
    if training.dropped:
        dropped = quantity(training.dropped, "query")
        output.line(f"left out   {dropped} of which the teacher scored too few documents")
    output.line(f"folder     {training.folder}")
    output.line(f"next       {next_step(settings.dam, training)}")
    output.result(asdict(training) | {"folder": str(training.folder)})


def read_domain(session: Session, name: str | None, queries: Path | None, seed: int) -> TargetDomain | None:
    """Return the target domain, whose vectors should be indistinguishable from the labels' (MoDIR); None
    without a name. Raise SettingsError, DataError.
    """
    from hybridr.errors import SettingsError
    from hybridr.files.formats import read_query_log
    from hybridr.relevance.corpus import CorpusFile, read_target

    if name is None:
        if queries is not None:
            raise SettingsError("--target-queries needs --invariant-to, whose queries they are")
        return None
    path = Path(name)
    source: Source = CorpusFile(path) if path.exists() else (session.connect(), name)
    progress = session.output.progress
    return read_target(path.name, source, read_query_log(queries), seed=seed, progress=progress)


def next_step(dam: str, training: RemTraining) -> str:
    """Return the command or code that uses the trained folder."""
    from hybridr.files.local import read_manifest

    if training.kind == "whole":
        return f'assemble("{training.folder}") of hybridr.training.rankers opens it in Python'
    manifest = (read_manifest(Path(dam)) if Path(dam).is_dir() else None) or {}
    objective = manifest.get("dam", {}).get("objective", "mlm")  # the one the source DAM was trained with
    modules = f"--base {quote(dam)} --rem {quote(str(training.folder))}"
    return f"hybridr adapt --index NAME --objective {quote(str(objective))} {modules}"


def show_training(output: Output, work: str, fit: AdaptResult | DamFit | RemTraining) -> None:
    """Print what was trained, the loss before and after, and the time."""
    output.line(
        f"trained    {work}, loss {fit.loss_start:.3f} -> {fit.loss_end:.3f}, {fit.seconds:.0f} s"
        + (" (from an earlier run)" if fit.reused else "")
    )


def show_unseen(output: Output, fit: AdaptResult | DamFit, texts: str) -> None:
    """Print the loss on held-out texts before and after training, if there were any."""
    if fit.unseen_loss_start is not None and fit.unseen_loss_end is not None:
        start, end = fit.unseen_loss_start, fit.unseen_loss_end
        output.line(f"unseen     loss {start:.3f} -> {end:.3f} on held-out {texts}")
