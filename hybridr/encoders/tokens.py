"""Texts to token ids, and token ids to batches that pad little."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from ..errors import ModelError
from .contract import (
    Forward,
    Offers,
    Reading,
    StatesForward,
    Usage,
    Vectors,
    base_of,
    checked_limit,
    longest_input,
    prefixed,
)
from .foreign_tokenizers import checked_tokenizer

# Small batches stay in the processor's cache, and pad less: 2,048 tokens take a tenth more time, 256 no less.
BATCH_TOKENS = 512
GPU_BATCH_TOKENS = 16_384
TOKENIZER_FILE = "tokenizer.json"
LEAST_BATCH_TOKENS = 128  # a batch is not split among threads below this
TOKENIZED_AT_ONCE = 512  # texts; the tokenizer's own records are a hundred times larger than the ids
CHARACTERS_A_TOKEN = 32  # at most, in the mean of a text; of the rest of a long one nothing would be used


class TokenizedText(NamedTuple):
    """The token ids of a text, special ones too, and those among them that stand for characters of it.

    `places` are positions in `ids`, `spans` the characters `[start, end)` of each place. Characters are
    Python's: OpenSearch's offsets count a character beyond U+FFFF twice, as UTF-16 does.
    """

    ids: list[int]
    places: list[int]
    spans: tuple[tuple[int, int], ...]


@contextmanager
def failing_by_name() -> Iterator[None]:
    """Raise ModelError for whatever a tokenizer ends with; a panic of its Rust is no Exception."""
    try:
        yield
    except TypeError:
        raise  # what it was given is no text
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise ModelError(
            f"the tokenizer fails: {str(error)[:200]}", hint="its tokenizer.json is not sound"
        ) from error


class TextTokenizer:
    """Turn texts into token ids, cut to a limit; safe to use from several threads."""

    def __init__(self, definition: str) -> None:
        self._definition = definition
        self._limited: dict[int | None, Tokenizer] = {}

    def ids(self, texts: Sequence[str], limit: int | None) -> Iterator[list[int]]:
        """Yield each text's ids with special tokens, at most `limit`; None does not cut."""
        return (encoding.ids for encoding in self._encoded(texts, limit, offsets=False))

    def read(self, texts: Sequence[str], limit: int, skipped: int) -> Iterator[TokenizedText]:
        """Yield each text's ids, at most `limit`, and spans counted from character `skipped`, the prefix's
        end."""
        for encoding in self._encoded(texts, limit):
            spans = [(max(start - skipped, 0), end - skipped) for start, end in encoding.offsets]
            places = [place for place, (start, end) in enumerate(spans) if start < end]
            yield TokenizedText(encoding.ids, places, tuple(spans[place] for place in places))

    def pairs(self, pairs: Sequence[tuple[str, str]], limit: int) -> Iterator[tuple[list[int], list[int]]]:
        """Yield the ids of each pair, at most `limit`, the longer text cut first, and for each id whether it
        is in the second text (1) or not (0)."""
        return ((encoding.ids, encoding.type_ids) for encoding in self._encoded(pairs, limit))

    def _encoded(
        self, texts: Sequence[str] | Sequence[tuple[str, str]], limit: int | None, *, offsets: bool = True
    ) -> Iterator[Any]:
        tokenizer = self._tokenizer(limit)
        encode = tokenizer.encode_batch if offsets else tokenizer.encode_batch_fast
        for start in range(0, len(texts), TOKENIZED_AT_ONCE):
            part = [within_reach(text, limit) for text in texts[start : start + TOKENIZED_AT_ONCE]]
            with failing_by_name():
                encodings = encode(part)
            yield from encodings

    def spans(self, text: str, limit: int) -> list[tuple[int, int, int | None]]:
        """Give start and end of the first `limit` tokens in characters, and the number of each one's word."""
        tokenizer = self._tokenizer(limit)
        with failing_by_name():
            encoding = tokenizer.encode(within_reach(text, limit), add_special_tokens=False)
        words = zip(encoding.offsets, encoding.word_ids, strict=True)
        return [(start, end, word) for (start, end), word in words]

    def _tokenizer(self, limit: int | None) -> Tokenizer:
        if limit not in self._limited:
            with failing_by_name():
                tokenizer = Tokenizer.from_str(self._definition)
            tokenizer.no_padding()
            if limit is None:
                tokenizer.no_truncation()
            else:
                tokenizer.enable_truncation(limit)
            self._limited[limit] = tokenizer
        return self._limited[limit]


class UsedModel:
    """A model and how it is used: its limits, and how its vectors are compared."""

    usage: Usage

    @property
    def config(self) -> Any:
        """The configuration of the backbone."""
        raise NotImplementedError

    @property
    def similarity(self) -> str:
        """How two vectors are compared: "cosine" or "ip"."""
        return self.usage.similarity

    @property
    def max_tokens(self) -> int:
        """Input limit with [CLS] and [SEP]."""
        return self.usage.max_tokens

    @property
    def max_positions(self) -> int:
        """The longest input that the backbone has positions for."""
        return longest_input(self.config)

    @property
    def input_names(self) -> list[str]:
        """What the backbone reads; kinds of tokens only where it has more than one, as BERT has."""
        kinds = ["token_type_ids"] if getattr(self.config, "type_vocab_size", 0) > 1 else []
        return ["input_ids", "attention_mask", *kinds]

    def limit(self, max_tokens: int | None) -> int:
        """Give the token limit to use. Raises DataError when it cannot be."""
        return checked_limit(max_tokens, self.max_tokens, self.max_positions)


class Compute(NamedTuple):
    """What computes vectors, and the states of tokens, of one side's texts, and how their batches are cut."""

    run: Forward
    read: StatesForward
    cut: dict[str, int]


class TextModel(UsedModel):
    """What encodes and reads texts, for one that has a tokenizer and runs batches."""

    folder: Path | None
    tokenizer: TextTokenizer
    run: Forward
    read: StatesForward

    @property
    def dim(self) -> int:
        """Size of a vector."""
        raise NotImplementedError

    @property
    def width(self) -> int:
        """Size of a token's state: vectors are pooled from them."""
        return self.dim

    @property
    def batch_tokens(self) -> int:
        """How many tokens a batch should have, its padding included."""
        return BATCH_TOKENS

    def way(self, side: str) -> Compute:
        """Say how the texts of a side, "query" or "document", are computed."""
        return Compute(self.run, self.read, {"budget": self.batch_tokens})

    @property
    def offers(self) -> Offers:
        """What it offers beside vectors."""
        return Offers(folder=self.folder, width=self.width)

    @property
    def base(self) -> str:
        """The name of the model that this one was made from, without its path."""
        return base_of(self.folder)

    def encode_queries(self, texts: Sequence[str], *, max_tokens: int | None = None) -> Vectors:
        """Encode queries to float32 `(n, dim)`, in the order of `texts`. Raises DataError."""
        return self._encode("query", texts, max_tokens)

    def encode_documents(self, texts: Sequence[str], *, max_tokens: int | None = None) -> Vectors:
        """Encode documents to float32 `(n, dim)`, in the order of `texts`. Raises DataError."""
        return self._encode("document", texts, max_tokens)

    def read_queries(self, texts: Sequence[str]) -> list[Reading]:
        """Read queries, in the order of `texts`: vectors, and the states of tokens. Raises DataError,
        ModelError where no states are shown."""
        return self._read("query", texts, None)

    def read_documents(self, texts: Sequence[str], *, max_tokens: int | None = None) -> list[Reading]:
        """Read documents, in the order of `texts`: vectors, and the states of tokens. Raises DataError,
        ModelError where no states are shown."""
        return self._read("document", texts, max_tokens)

    def _encode(self, side: str, texts: Sequence[str], max_tokens: int | None) -> Vectors:
        way, limit = self.way(side), self.limit(max_tokens)
        rows = list(self.tokenizer.ids(prefixed(texts, self.usage.prefixes[side]), limit))
        return encode_ids(rows, self.dim, way.run, **way.cut)

    def _read(self, side: str, texts: Sequence[str], max_tokens: int | None) -> list[Reading]:
        way, limit, prefix = self.way(side), self.limit(max_tokens), self.usage.prefixes[side]
        tokenized = list(self.tokenizer.read(prefixed(texts, prefix), limit, len(prefix)))
        return read_tokens(tokenized, (self.dim, self.width), way.read, **way.cut)


def within_reach(texts: Any, limit: int | None) -> Any:
    """Cut a text, or each of a pair, to what `limit` tokens can be made of.

    A tokenizer reads all that it is given, megabytes too, and cuts then.
    """
    if limit is None:
        return texts
    characters = limit * CHARACTERS_A_TOKEN
    return tuple(text[:characters] for text in texts) if isinstance(texts, tuple) else texts[:characters]


def batches(
    lengths: Sequence[int], budget: int = BATCH_TOKENS, *, sort: bool = True
) -> Iterator[NDArray[np.int64]]:
    """Group positions by length so that no batch exceeds `budget` tokens with its padding.

    Every position comes once; a text longer than the budget is a batch of its own. Without `sort` they stay
    in their order.
    """
    order = np.argsort(np.asarray(lengths), kind="stable") if sort else np.arange(len(lengths))
    start = longest = 0
    for end in range(1, len(order) + 1):
        longest = max(longest, lengths[order[end - 1]])
        if end == len(order) or (end + 1 - start) * max(longest, lengths[order[end]]) > budget:
            yield order[start:end]
            start, longest = end, 0


def encode_ids(
    ids: Sequence[Sequence[int]],
    dim: int,
    run: Forward,
    *,
    budget: int = BATCH_TOKENS,
    threads: int = 1,
    at_once: int | None = None,
) -> Vectors:
    """Run token ids through `run(ids, mask)` in batches for `threads`; `(n, dim)` in the order given.

    `at_once` of them run at once, as many as `threads` if None: the batches, on which the last bits of
    vectors depend, stay the same.
    """
    vectors = np.zeros((len(ids), dim), dtype=np.float32)

    def fill(batch: NDArray[np.int64]) -> None:
        encoded = run(*padded([ids[position] for position in batch]))
        vectors[batch] = of_shape(encoded, (len(batch), dim))

    fill_all(fill, [len(row) for row in ids], budget, threads, at_once or threads)
    return vectors


def read_tokens(
    texts: Sequence[TokenizedText],
    sizes: tuple[int, int],
    read: StatesForward,
    *,
    budget: int = BATCH_TOKENS,
    threads: int = 1,
    at_once: int | None = None,
) -> list[Reading]:
    """Run texts through `read(ids, mask)` in the batches of `encode_ids`, so that vectors are the same.

    `sizes` are those of a vector and of a token's state.
    """
    dim, width = sizes
    vectors = np.zeros((len(texts), dim), dtype=np.float32)
    states: list[Vectors] = [np.zeros((len(text.places), width), dtype=np.float32) for text in texts]

    def fill(batch: NDArray[np.int64]) -> None:
        rows, mask = padded([texts[position].ids for position in batch])
        token_states, pooled = read(rows, mask)
        vectors[batch] = of_shape(pooled, (len(batch), dim))
        for position, rows in zip(batch, of_shape(token_states, (*mask.shape, width)), strict=True):
            states[position][:] = rows[texts[position].places]

    fill_all(fill, [len(text.ids) for text in texts], budget, threads, at_once or threads)
    spans = [text.spans for text in texts]
    return list(map(Reading, vectors, states, spans))


def of_shape(vectors: Vectors, shape: tuple[int, ...]) -> Vectors:
    """Give what a graph answered. Raises ModelError for another shape, which numpy would stretch, and NaN."""
    if np.shape(vectors) != shape or np.asarray(vectors).dtype.kind != "f":
        raise ModelError(
            f"the encoder's graph gives vectors {np.shape(vectors)} of {np.asarray(vectors).dtype}, its "
            f"manifest promises {shape} of float32",
            hint="make it again with `hybridr adapt` or `hybridr export`",
        )
    if not np.isfinite(vectors).all():
        raise ModelError(
            "the encoder gives no numbers (NaN or infinity)",
            hint="it is damaged, or overflows in this precision: export it again, or --precision fp32",
        )
    return vectors


def fill_all(
    fill: Callable[[NDArray[np.int64]], None], lengths: Sequence[int], budget: int, threads: int, at_once: int
) -> None:
    """Call `fill` with the positions of every batch, cut for `threads`, `at_once` batches at once."""
    work_off(fill, list(batches(lengths, batch_share(lengths, budget, threads))), at_once)


def batch_share(lengths: Sequence[int], budget: int, threads: int) -> int:
    """Give how many tokens a batch may have, so that few texts do not wait for one thread."""
    return min(budget, max(LEAST_BATCH_TOKENS, -(-sum(lengths) // threads)))


def work_off(
    fill: Callable[[NDArray[np.int64]], None], work: Sequence[NDArray[np.int64]], at_once: int
) -> None:
    """Call `fill` with batches, which begin in their order, `at_once` at once."""
    if at_once == 1 or len(work) < 2:
        for batch in work:
            fill(batch)
    else:
        with ThreadPoolExecutor(min(at_once, len(work))) as pool:
            for _ in pool.map(fill, work):
                pass


def padded(rows: Sequence[Sequence[int]]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Give ids and mask, both int64 `(rows, longest)`; padding is 0 in both (the mask hides its id)."""
    longest = max(len(row) for row in rows)
    ids = np.zeros((len(rows), longest), dtype=np.int64)
    mask = np.zeros_like(ids)
    for position, row in enumerate(rows):
        ids[position, : len(row)] = row
        mask[position, : len(row)] = 1
    return ids, mask


def canonical_tokenizer(definition: str) -> str:
    """Drop the limits and padding that a tokenizer file may carry: they belong to the caller."""
    record = checked_tokenizer(definition)
    return json.dumps(record | {"truncation": None, "padding": None}, ensure_ascii=False)
