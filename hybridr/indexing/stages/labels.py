"""Labels: what a part says of itself in its Parquet metadata, and a folder of parts in its manifest."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ...cluster.reading import Position, Share
from ...encoders.contract import offers_of
from ...errors import DataError, FingerprintMismatch
from ...records import Windows
from ..recipe import TextRecipe

FINGERPRINT_FORM = r"^[0-9a-f]{64}$"


class Label(BaseModel):
    """What all labels share: values never change, unknown names are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    def to_json(self) -> dict[str, Any]:
        """Give the values as JSON."""
        return self.model_dump(mode="json")


class Origin(Label):
    """Where texts are from: an index and its uuid, and the fields they were joined of.

    `settled` is how far each shard was read, behind which everything was written later; None where the
    cluster does not tell.
    """

    index: str
    uuid: str
    fields: tuple[str, ...]
    settled: dict[int, int] | None = None

    @property
    def position(self) -> Position | None:
        """Give `settled` as a position to read on from."""
        return None if self.settled is None else Position(dict(self.settled))


class Making(Label):
    """What vectors were made with: an encoder by its fingerprint, its arithmetic, what it read of a text."""

    encoder: str = Field(pattern=FINGERPRINT_FORM)
    dim: int = Field(ge=1, le=65_536)
    similarity: Literal["cosine", "ip"]
    precision: Literal["fp32", "bf16", "int8"]
    backend: Literal["onnx", "openvino", "torch"]
    max_tokens: int | None = None
    windows: Windows | None = None

    @classmethod
    def of(cls, recipe: TextRecipe) -> Making:
        """Say what a recipe makes vectors with."""
        encoder = recipe.encoder
        return cls.model_validate(
            {
                "encoder": encoder.fingerprint,
                "dim": encoder.dim,
                "similarity": encoder.similarity,
                "max_tokens": recipe.settings.max_tokens,
                "windows": recipe.windows,
                **offers_of(encoder).arithmetic,
            }
        )


class TextsLabel(Label):
    """What a part of texts says of itself: the documents of one shard with `since` < `_seq_no` <= `until`."""

    hybridr: str
    origin: Origin
    shard: int = Field(ge=0)
    since: int = Field(ge=-1)
    until: int = Field(ge=0)

    @property
    def share(self) -> Share:
        """Give the part of the index that these documents are, whatever happened to them since."""
        return Share(since=Position({self.shard: self.since}), until=Position({self.shard: self.until}))


class VectorsLabel(TextsLabel):
    """What a part of vectors says of itself: the same, their making, and the sha256 of the part of texts."""

    making: Making
    texts: str = Field(pattern=FINGERPRINT_FORM)


def check_making(stored: Making, expected: Making, place: str, again: str) -> None:
    """Raise FingerprintMismatch, or DataError, when vectors at a place were made otherwise than wanted."""
    if stored.encoder != expected.encoder:
        raise FingerprintMismatch(
            f"{place} was made by encoder {stored.encoder[:12]}, the encoder here is {expected.encoder[:12]}",
            hint=f"--encoder FOLDER of {stored.encoder[:12]}, or {again}",
        )
    differing = [name for name in Making.model_fields if getattr(stored, name) != getattr(expected, name)]
    if differing:
        name = differing[0]
        raise DataError(
            f"{place} was made with {name} {getattr(stored, name)}, {getattr(expected, name)} is wanted",
            hint=f"give the options that it was made with, or {again}",
        )


def wrong_value(error: ValidationError) -> str:
    """Say in a line what a label holds that it should not."""
    first = error.errors()[0]
    return f"its label has a wrong '{'.'.join(map(str, first['loc']))}': {first['msg'].lower()}"
