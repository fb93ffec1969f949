"""Splits long documents into passages: overlapping windows of tokens, each of which gets a vector.

Windows are counted in tokens of the encoder and stored as characters of the document's joined text. So a
search shows the text that was encoded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeAlias

from ..errors import ModelError
from ..records import Windows
from .contract import Encoder, Token, TokenSource, offers_of

Span: TypeAlias = tuple[int, int]
"""Start and end of a passage, in characters of the joined text."""
ENCODED_AT_ONCE = 1_000  # passages; a whole page of long documents would show no progress for minutes
SENTENCE_ENDS, BREAKLESS_ENDS = frozenset(".!?…"), frozenset("。！？｡")  # the latter need no blank after them
SENTENCE_REACH, WORD_REACH = 4, 2  # a window loses at most a fourth to end a sentence, half to end a word


class Split(NamedTuple):
    """The passages of one text; `whole` is False if the allowed passages end before the text."""

    spans: tuple[Span, ...]
    whole: bool = True


def require_tokens(encoder: Encoder) -> TokenSource:
    """Return the encoder's source of token places. Raises ModelError for an encoder without one."""
    if (spans := offers_of(encoder).spans) is None:
        raise ModelError(
            f"{type(encoder).__name__} does not tell where its tokens are: it cannot split documents",
            hint="use an encoder folder, or leave out --passages",
        )
    return spans


def split(text: str, encoder: Encoder, windows: Windows | None) -> Split:
    """Return the passages of a text: one if it fits or there are no `windows`, none for an empty text.

    Every token is in some passage unless there would be more than `windows.most`. Raises ModelError.
    """
    if not text:
        return Split(())
    if windows is None:
        return Split(((0, len(text)),))
    source = require_tokens(encoder)
    room = source.room("document", windows.tokens)
    tokens = source.token_spans(text, windows.most * room + 1)
    if len(tokens) <= room:
        return Split(((0, len(text)),))
    spans: list[Span] = []
    last = 0
    while last < len(tokens) and len(spans) < windows.most:
        first = 0
        if spans:  # back by the overlap, then forward to the start of a word
            back = last - windows.overlap
            first = next((start for start in range(back, last + 1) if begins_word(tokens, start)), back)
        last = min(first + room, len(tokens))
        if last < len(tokens):  # a window ends after a sentence, else after a word, else where it is full
            words = (end for end in range(last, last - room // WORD_REACH, -1) if begins_word(tokens, end))
            for end in range(last, last - room // SENTENCE_REACH, -1):
                place = tokens[end - 1][1]
                mark, next_character = text[place - 1 : place], text[place : place + 1]
                if mark in BREAKLESS_ENDS or (mark in SENTENCE_ENDS and not next_character.strip()):
                    last = end
                    break
            else:
                last = next(words, last)
        span = (tokens[first][0], tokens[last - 1][1])
        # A character of several tokens may be split; the previous passage then contains all of it.
        if not spans or span[1] > spans[-1][1]:
            spans.append(span)
    return Split(tuple(spans), last == len(tokens))


def slices_by_passages(splits: Sequence[Split], limit: int = ENCODED_AT_ONCE) -> Iterator[slice]:
    """Yield slices of documents with at most `limit` passages together, or a single longer document."""
    start = passages = 0
    for end, (spans, _) in enumerate(splits):
        if end > start and passages + len(spans) > limit:
            yield slice(start, end)
            start, passages = end, 0
        passages += len(spans)
    yield slice(start, len(splits))


def begins_word(tokens: Sequence[Token], position: int) -> bool:
    """Return whether a token is the first of its word; a part of a word is tokenized differently."""
    word = tokens[position][2]
    return word is None or word != tokens[position - 1][2]
