"""Typer options and arguments that several verbs share and that are not settings."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from hybridr.evaluation.evaluation import JudgedQueries
    from hybridr.index import Index

ReindexedName = Annotated[str, typer.Argument(help="The index that was reindexed.")]
SearchedName = Annotated[str, typer.Argument(help="Index, alias, or the index that was reindexed.")]
EncoderFolder = Annotated[
    Path | None, typer.Option(help="Encoder folder or name.", show_default="the encoder of the index")
]
FieldNames = Annotated[
    str | None, typer.Option(help="Text fields, comma-separated.", show_default="chosen, with reasons")
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Show what would be done, without changing anything.")
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]


@dataclass(frozen=True)
class JudgedOptions:
    """The options that name judged queries; without a folder there are none."""

    beir: Annotated[Path | None, typer.Option(help="BEIR folder with queries.jsonl and qrels/.")] = None
    split: Annotated[str, typer.Option(help="Split of the folder's qrels.")] = "test"
    judgements: Annotated[
        bool, typer.Option("--judgements", help="Use the judgements made in the page of `hybridr serve`.")
    ] = False

    def in_folder(self) -> JudgedQueries:
        """Return the judged queries of the folder and split that the options name.

        Raises SettingsError for a split without a folder.
        """
        from hybridr import JudgedQueries
        from hybridr.errors import SettingsError

        if self.beir is None and self.split != "test":
            raise SettingsError("--split needs --beir or --judgements")
        return JudgedQueries(self.beir, self.split)

    def queries_for(self, index: Index) -> JudgedQueries:
        """Return the judged queries of the folder, or with --judgements those made on the index's page.

        Raises SettingsError if both --judgements and --beir were given.
        """
        from hybridr.errors import SettingsError

        if not self.judgements:
            return self.in_folder()
        if self.beir is not None:
            raise SettingsError("--judgements and --beir exclude each other")
        return index.judgements(self.split)


def split_names(text: str | None) -> list[str]:
    """Return the names in a comma-separated text; an empty list for None."""
    return [name.strip() for name in (text or "").split(",") if name.strip()]
