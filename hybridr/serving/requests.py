"""What clients send: the bodies of the routes, and what is refused in them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import AfterValidator, BaseModel, Field

from ..errors import DataError
from ..languages import says_something
from ..settings import ServeSettings
from .answers import Refused

Side: TypeAlias = Literal["query", "passage"]
Mode: TypeAlias = Literal["lexical", "dense", "hybrid"]

SIDES: tuple[Side, ...] = ("query", "passage")
MOST_HITS = 1000


def whole(text: str) -> str:
    """Refuse half a surrogate pair, which JSON can hold and no tokenizer can read."""
    if not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text):
        raise ValueError("not valid unicode")
    return text


Text = Annotated[str, AfterValidator(whole)]


class EmbeddingRequest(BaseModel):
    """The body of `/v1/embeddings`."""

    input: Text | Annotated[list[Text], Field(min_length=1)] = Field(description="a text, or a list of them")
    model: str = Field(description="a name that ends in -query or -passage: hybridr-query, hybridr-passage")
    encoding_format: Literal["float", "base64"] = Field(
        "float", description="float, or base64 of little-endian float32"
    )
    dimensions: int | None = Field(None, description="the encoder's own number, or nothing")

    @property
    def texts(self) -> list[str]:
        """Give the input as a list."""
        return [self.input] if isinstance(self.input, str) else self.input


class SearchRequest(BaseModel):
    """The body of `/search`."""

    query: Text = Field(min_length=1, description="what a user types")
    k: int = Field(10, ge=1, le=MOST_HITS, description=f"how many hits, 1 to {MOST_HITS}")
    mode: Mode = Field("hybrid", description="lexical, dense or hybrid")
    offset: int = Field(0, ge=0, le=MOST_HITS, description="how many of the best to skip: pages")
    filter: dict[str, Any] | None = Field(None, description="a query that every hit has to match")


def side_of(model: str) -> Side:
    """Read the side off a model's name. Raises Refused."""
    name = model.rpartition("-")[2].lower()
    for side in SIDES:
        if name == side:
            return side
    hint = "use hybridr-query for queries, hybridr-passage for documents"
    raise Refused(404, f"the model '{model[:100]}' names no side", hint)


def check_embedding(request: EmbeddingRequest, settings: ServeSettings, dim: int) -> None:
    """Raise DataError for what would give a meaningless vector, Refused for what is over the limits."""
    if len(request.texts) > settings.max_inputs:
        message = f"{len(request.texts)} inputs were sent, a request takes at most {settings.max_inputs}"
        raise Refused(422, message, "send them in several requests")
    check_lengths("input {}", request.texts, settings.max_characters)
    for position, text in enumerate(request.texts):
        if not says_something(text):
            raise DataError(f"input {position} is empty", hint="leave texts without words out")
    if request.dimensions not in (None, dim):
        raise DataError(f"this encoder gives {dim} dimensions, {request.dimensions} were asked for")


def check_query(text: str, settings: ServeSettings) -> None:
    """Raise DataError for a query without words, Refused for one that is too long."""
    check_lengths("the query", [text], settings.max_characters)
    if not says_something(text):
        raise DataError("the query is empty", hint="a query needs at least one visible character")


def check_lengths(name: str, texts: Sequence[str], most: int) -> None:
    """Raise Refused for the first text of more than `most` characters."""
    for position, text in enumerate(texts):
        if len(text) > most:
            found = f"{name.format(position)} has {len(text)} characters"
            raise Refused(422, f"{found}, at most {most} are taken", "[serve] max_characters sets the limit")
