"""Options that several verbs share and that no setting is behind."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

Reindexed = Annotated[str, typer.Argument(help="The index that was reindexed.")]
Searched = Annotated[str, typer.Argument(help="Index, alias, or the index that was reindexed.")]
EncoderFolder = Annotated[
    Path | None, typer.Option(help="Encoder folder.", show_default="the one that wrote the vectors")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show the requests, send none.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


@dataclass(frozen=True)
class JudgedQueries:
    """Queries and judgements; without a folder there are none."""

    beir: Annotated[Path | None, typer.Option(help="BEIR folder with queries.jsonl and qrels/.")] = None
    split: Annotated[str, typer.Option(help="Split of the folder's qrels.")] = "test"
    qrels: Annotated[Path | None, typer.Option(help="Qrels of TREC or BEIR instead of the split's.")] = None
