"""Converts texts to token ids, and token ids to batches with little padding.

A third-party tokenizer must neither expand a text before cutting it, nor take minutes for a text.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from ..errors import ModelError
from ..files.local import parsed_json
from .contract import (
    Forward,
    Offers,
    Reading,
    StatesForward,
    Usage,
    Vectors,
    checked_limit,
    hidden_size,
    with_prefix,
)

# Small batches fit into the processor's cache and pad less: 2,048 tokens are 10 % slower, 256 no faster.
BATCH_TOKENS = 512
GPU_BATCH_TOKENS = 16_384
TOKENIZER_FILE = "tokenizer.json"
MIN_BATCH_TOKENS = 128  # smaller batches are not split among threads
TOKENIZED_AT_ONCE = 512  # texts; the tokenizer's own records are a hundred times larger than the ids
CHARACTERS_A_TOKEN = 32  # at most, on average over a text; later characters of a long text are not read

MAX_GROWTH = 64  # largest factor by which a tokenizer's replacements may lengthen a text
MAX_SPECIAL_TOKENS = 64  # around a text; two or three are usual
MAX_WORD_LETTERS = 1000  # for WordPiece, whose time grows with the cube of the letters
MAX_REPEATS, MAX_REPEAT_COUNT = 4, 1000  # repetitions in all patterns of a tokenizer; count of one, {1000}
INNER = ("normalizers", "pretokenizers", "processors", "decoders")
PATTERN = re.compile(r"\\p\{[^}]*\}|\\.|\[(?:\\.|[^\]\\])*\]|[*+?][?+]?|\{(\d*)(?:,(\d*))?\}|.", re.DOTALL)
TAILS = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
ENDINGS = "'s|'t|'re|'ve|'m|'ll|'d"
USUAL_PATTERNS = frozenset(
    (
        rf"{ENDINGS}| ?\p{{L}}+| ?\p{{N}}+| ?[^\s\p{{L}}\p{{N}}]+|\s+(?!\S)|\s+",
        rf"(?i:{ENDINGS})|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{TAILS}",
        rf"(?i:{ENDINGS})|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{TAILS}",
    )
)
"""The regular expressions of GPT-2, Qwen and Llama 3, which many other models use."""


class TokenizedText(NamedTuple):
    """The token ids of a text, including special ones, and the characters of the others.

    `places` are positions in `ids`, `spans` the characters `[start, end)` of each place. Characters are
    Python's: OpenSearch's offsets count a character beyond U+FFFF twice, as UTF-16 does.
    """

    ids: list[int]
    places: list[int]
    spans: tuple[tuple[int, int], ...]


@contextmanager
def explain_failures() -> Iterator[None]:
    """Turn any failure of a tokenizer, including a panic of its Rust code, into a ModelError."""
    try:
        yield
    except TypeError:
        raise  # the caller passed something other than texts
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise ModelError(
            f"the tokenizer fails: {str(error)[:200]}", hint="its tokenizer.json is not sound"
        ) from error


class TextTokenizer:
    """Converts texts to token ids, cut to a limit; safe to use from several threads."""

    def __init__(self, definition: str) -> None:
        self._definition = definition
        self._limited: dict[int | None, Tokenizer] = {}

    def ids(self, texts: Sequence[str], limit: int | None) -> Iterator[list[int]]:
        """Yield each text's token ids, with the special tokens, cut to `limit` ids; None: not cut."""
        return (encoding.ids for encoding in self._encoded(texts, limit, offsets=False))

    def read(self, texts: Sequence[str], limit: int, skipped: int) -> Iterator[TokenizedText]:
        """Yield the tokens of each text, cut to `limit` ids.

        Texts start with a prefix of `skipped` characters; spans are counted from its end.
        """
        for encoding in self._encoded(texts, limit):
            spans = [(max(start - skipped, 0), end - skipped) for start, end in encoding.offsets]
            places = [place for place, (start, end) in enumerate(spans) if start < end]
            yield TokenizedText(encoding.ids, places, tuple(spans[place] for place in places))

    def pairs(self, pairs: Sequence[tuple[str, str]], limit: int) -> Iterator[tuple[list[int], list[int]]]:
        """Yield the ids of each pair, and for each id 0 (first text) or 1 (second text).

        A pair has at most `limit` ids; the longer text is cut first.
        """
        return ((encoding.ids, encoding.type_ids) for encoding in self._encoded(pairs, limit))

    def _encoded(
        self, texts: Sequence[str] | Sequence[tuple[str, str]], limit: int | None, *, offsets: bool = True
    ) -> Iterator[Any]:
        """Yield the tokenizer's encoding of each text or pair, cut to `limit` tokens."""
        tokenizer = self._tokenizer(limit)
        encode = tokenizer.encode_batch if offsets else tokenizer.encode_batch_fast
        for start in range(0, len(texts), TOKENIZED_AT_ONCE):
            part = [cut_characters(text, limit) for text in texts[start : start + TOKENIZED_AT_ONCE]]
            with explain_failures():
                encodings = encode(part)
            yield from encodings

    def spans(self, text: str, limit: int) -> list[tuple[int, int, int | None]]:
        """Return first character, end and word number of each of the first `limit` tokens."""
        tokenizer = self._tokenizer(limit)
        with explain_failures():
            encoding = tokenizer.encode(cut_characters(text, limit), add_special_tokens=False)
        words = zip(encoding.offsets, encoding.word_ids, strict=True)
        return [(start, end, word) for (start, end), word in words]

    def _tokenizer(self, limit: int | None) -> Tokenizer:
        """Return a tokenizer that cuts texts to `limit` tokens, cached for each limit."""
        if limit not in self._limited:
            with explain_failures():
                tokenizer = Tokenizer.from_str(self._definition)
            tokenizer.no_padding()
            if limit is None:
                tokenizer.no_truncation()
            else:
                tokenizer.enable_truncation(limit)
            self._limited[limit] = tokenizer
        return self._limited[limit]


class UsedModel:
    """A model with its usage: limits, and how its vectors are compared."""

    usage: Usage
    config: Any
    """Configuration of the backbone."""
    max_positions: int
    """Longest input that the backbone has positions for."""

    @property
    def similarity(self) -> str:
        """Return the similarity of two vectors: "cosine" or "ip"."""
        return self.usage.similarity

    @property
    def max_tokens(self) -> int:
        """Return the input limit with [CLS] and [SEP]."""
        return self.usage.max_tokens

    @property
    def input_names(self) -> list[str]:
        """Return the names of the model's inputs; token types only if it has several types, as BERT has."""
        kinds = ["token_type_ids"] if getattr(self.config, "type_vocab_size", 0) > 1 else []
        return ["input_ids", "attention_mask", *kinds]

    def limit(self, max_tokens: int | None) -> int:
        """Return the token limit to use. Raises DataError for an impossible one."""
        return checked_limit(max_tokens, self.max_tokens, self.max_positions)


class Compute(NamedTuple):
    """The functions for vectors and token states of one side's texts, and options for cutting batches."""

    run: Forward
    read: StatesForward
    cut: dict[str, Any]


class TextModel(UsedModel):
    """Base of encoders with a tokenizer and a function that runs batches."""

    folder: Path | None
    tokenizer: TextTokenizer
    run: Forward
    read: StatesForward

    @property
    def dim(self) -> int:
        """Return the dimension of a vector, which is pooled from token states."""
        return min(self.width, self.usage.truncate_dim or self.width)

    @property
    def width(self) -> int:
        """Return the dimension of a token's state."""
        return hidden_size(self.config)

    @property
    def batch_tokens(self) -> int:
        """Return how many tokens a batch should have, including padding."""
        return BATCH_TOKENS

    def compute(self, side: str) -> Compute:
        """Return the functions that encode texts of a side ("query" or "document"), and their batch size."""
        return Compute(self.run, self.read, {"budget": self.batch_tokens})

    @property
    def offers(self) -> Offers:
        """Return what the encoder offers besides vectors."""
        return Offers(folder=self.folder, width=self.width)

    def encode_queries(self, texts: Sequence[str], *, max_tokens: int | None = None) -> Vectors:
        """Return the vectors of queries, float32 `(n, dim)`, in the order of `texts`. Raises DataError."""
        return self._encode("query", texts, max_tokens)

    def encode_documents(self, texts: Sequence[str], *, max_tokens: int | None = None) -> Vectors:
        """Return the vectors of documents, float32 `(n, dim)`, in the order of `texts`. Raises DataError."""
        return self._encode("document", texts, max_tokens)

    def read_queries(self, texts: Sequence[str]) -> list[Reading]:
        """Return vectors and token states of queries. Raises DataError, and ModelError without states."""
        return self._read("query", texts, None)

    def read_documents(self, texts: Sequence[str], *, max_tokens: int | None = None) -> list[Reading]:
        """Return vectors and token states of documents. Raises DataError, and ModelError without states."""
        return self._read("document", texts, max_tokens)

    def room(self, side: str, max_tokens: int | None = None) -> int:
        """Return how many tokens of a text fit beside the special tokens and the prefix of a side.

        Raises DataError for an impossible limit, ModelError if there is no room.
        """
        limit = self.limit(max_tokens)
        (ids,) = self.tokenizer.ids([self.usage.prefixes[side]], limit)
        if len(ids) >= limit:
            raise ModelError(
                f"the encoder's prefix of a {side} fills all {limit} tokens that it reads: no text fits",
                hint=f"a larger limit of tokens ({self.max_positions} at most), or a shorter prompt '{side}' "
                "in the model's config_sentence_transformers.json",
            )
        return limit - len(ids)

    def _encode(self, side: str, texts: Sequence[str], max_tokens: int | None) -> Vectors:
        compute, limit, prefix = self.compute(side), self.limit(max_tokens), self.usage.prefixes[side]
        if prefix:
            self.room(side, max_tokens)
        rows = list(self.tokenizer.ids(with_prefix(texts, prefix), limit))
        return encode_ids(rows, self.dim, compute.run, **compute.cut)

    def _read(self, side: str, texts: Sequence[str], max_tokens: int | None) -> list[Reading]:
        """Run the same batches as `_encode`, so that vectors are equal."""
        compute, limit, prefix = self.compute(side), self.limit(max_tokens), self.usage.prefixes[side]
        if prefix:
            self.room(side, max_tokens)
        tokenized = list(self.tokenizer.read(with_prefix(texts, prefix), limit, len(prefix)))
        vectors = np.zeros((len(tokenized), self.dim), dtype=np.float32)
        states = [np.zeros((len(text.places), self.width), dtype=np.float32) for text in tokenized]

        def fill(batch: NDArray[np.int64]) -> None:
            """Read a batch: store its vectors, and the states of the wanted tokens."""
            ids, mask = pad_rows([tokenized[position].ids for position in batch])
            token_states, pooled = compute.read(ids, mask)
            vectors[batch] = require_shape(pooled, (len(batch), self.dim))
            rows = require_shape(token_states, (*mask.shape, self.width))
            for position, row in zip(batch, rows, strict=True):
                states[position][:] = row[tokenized[position].places]

        run_batches(fill, [len(text.ids) for text in tokenized], **compute.cut)
        return list(map(Reading, vectors, states, [text.spans for text in tokenized]))


def cut_characters(texts: Any, limit: int | None) -> Any:
    """Return a text, or each of a pair, cut to the characters that `limit` tokens can cover.

    A tokenizer would read a text of megabytes to its end before cutting.
    """
    if limit is None:
        return texts
    characters = limit * CHARACTERS_A_TOKEN
    return tuple(text[:characters] for text in texts) if isinstance(texts, tuple) else texts[:characters]


def batches(
    lengths: Sequence[int], budget: int = BATCH_TOKENS, *, sort: bool = True
) -> Iterator[NDArray[np.int64]]:
    """Yield batches of positions, grouped by length, of at most `budget` tokens with padding.

    A text longer than the budget is a batch by itself. Without `sort` positions stay in order.
    """
    order = np.argsort(np.asarray(lengths), kind="stable") if sort else np.arange(len(lengths))
    start = length = 0
    for end in range(1, len(order) + 1):
        length = max(length, lengths[order[end - 1]])
        if end == len(order) or (end + 1 - start) * max(length, lengths[order[end]]) > budget:
            yield order[start:end]
            start, length = end, 0


def encode_ids(
    ids: Sequence[Sequence[int]],
    dim: int,
    run: Forward,
    *,
    budget: int = BATCH_TOKENS,
    threads: int = 1,
    at_once: int | None = None,
) -> Vectors:
    """Return the vectors `(n, dim)` of rows of token ids, run through `run(ids, mask)` in batches.

    Batches are cut for `threads`, and `at_once` of them run at a time (None: as many as threads). So the
    batches, on which the last bits of vectors depend, do not depend on `at_once`.
    """
    vectors = np.zeros((len(ids), dim), dtype=np.float32)

    def fill(batch: NDArray[np.int64]) -> None:
        """Encode a batch and store its vectors."""
        encoded = run(*pad_rows([ids[position] for position in batch]))
        vectors[batch] = require_shape(encoded, (len(batch), dim))

    run_batches(fill, [len(row) for row in ids], budget=budget, threads=threads, at_once=at_once)
    return vectors


def run_batches(
    fill: Callable[[NDArray[np.int64]], None],
    lengths: Sequence[int],
    *,
    budget: int = BATCH_TOKENS,
    threads: int = 1,
    at_once: int | None = None,
    sort: bool = True,
) -> None:
    """Call `fill` with the positions of every batch, in order, `at_once` at a time.

    Batches are cut for `threads`, so that few texts do not wait for one thread.
    """
    share = min(budget, max(MIN_BATCH_TOKENS, -(-sum(lengths) // threads)))
    work, at_once = list(batches(lengths, share, sort=sort)), at_once or threads
    if at_once == 1 or len(work) < 2:
        for batch in work:
            fill(batch)
    else:
        with ThreadPoolExecutor(min(at_once, len(work))) as pool:
            for _ in pool.map(fill, work):
                pass


def require_shape(vectors: Vectors, shape: tuple[int, ...]) -> Vectors:
    """Return the vectors unchanged. Raises ModelError if they have another shape, NaN or infinity."""
    if np.shape(vectors) != shape or np.asarray(vectors).dtype.kind != "f":
        raise ModelError(
            f"the encoder's graph gives vectors {np.shape(vectors)} of {np.asarray(vectors).dtype}; its "
            f"manifest promises {shape} of float32",
            hint="make it again with `hybridr adapt` or `hybridr export`",
        )
    if not np.isfinite(vectors).all():
        raise ModelError(
            "the encoder gives NaN or infinity",
            hint="it is damaged, or overflows in this precision: export it again, or --precision fp32",
        )
    return vectors


def pad_rows(rows: Sequence[Sequence[int]]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return ids and mask, both int64 `(rows, longest)`; padding is 0 in both."""
    length = max(len(row) for row in rows)
    ids = np.zeros((len(rows), length), dtype=np.int64)
    mask = np.zeros_like(ids)
    for position, row in enumerate(rows):
        ids[position, : len(row)] = row
        mask[position, : len(row)] = 1
    return ids, mask


def canonical_tokenizer(definition: str) -> str:
    """Return a tokenizer's JSON without its limits and padding, which the caller sets."""
    record = checked_tokenizer(definition)
    return json.dumps(record | {"truncation": None, "padding": None}, ensure_ascii=False)


def checked_tokenizer(definition: str) -> dict[str, Any]:
    """Return the parsed JSON of a tokenizer.

    Raises ValueError for a tokenizer that expands texts before cutting them, or may take minutes for a text.
    """
    record = parsed_json(definition)
    kinds = ("normalizer", "pre_tokenizer", "post_processor", "decoder")
    steps = [step for kind in kinds for step in tokenizer_steps(record.get(kind))]
    growth = 1  # largest factor by which a text becomes longer
    for step in tokenizer_steps(record.get("normalizer")):
        insertion = step.get("content") if step.get("type") == "Replace" else step.get("prepend")
        if step.get("type") == "Precompiled":
            # SentencePiece's table: the size of a trie, the trie, and texts, each ended by a zero.
            table = base64.b64decode(str(step.get("precompiled_charsmap") or ""))
            texts = table[4 + int.from_bytes(table[:4], "little") :].split(b"\0")
            growth *= max(1, max(map(len, texts)) // 4)  # a character has up to 4 bytes
        elif isinstance(insertion, str):
            growth *= max(1, len(insertion))
    if growth > MAX_GROWTH:
        raise ValueError(f"the tokenizer makes texts up to {growth:,} times longer; at most {MAX_GROWTH}")
    special_count = 0
    for step in steps:
        if step.get("type") == "TemplateProcessing":
            try:
                sizes = {name: len(token["ids"]) for name, token in step["special_tokens"].items()}
                pieces = [piece["SpecialToken"]["id"] for piece in step["single"] if "SpecialToken" in piece]
            except (KeyError, TypeError, AttributeError):
                raise ValueError("the tokenizer has a broken template") from None
            special_count += sum(sizes.get(piece, 0) for piece in pieces)
    if special_count > MAX_SPECIAL_TOKENS:
        raise ValueError(
            f"the tokenizer adds {special_count:,} tokens to each text; the limit is {MAX_SPECIAL_TOKENS}"
        )
    model = record.get("model")
    letters = model.get("max_input_chars_per_word") if isinstance(model, dict) else None
    if isinstance(letters, int) and letters > MAX_WORD_LETTERS:
        raise ValueError(
            f"the tokenizer splits words of {letters:,} letters; the limit is {MAX_WORD_LETTERS}"
        )
    patterns = [pattern for step in steps if isinstance(pattern := step.get("pattern"), dict)]
    require_fast_patterns([regex for pattern in patterns if isinstance(regex := pattern.get("Regex"), str)])
    return dict(record)


def tokenizer_steps(part: Any) -> Iterator[dict[str, Any]]:
    """Yield the steps of a part of a tokenizer, including those inside sequences."""
    if isinstance(part, dict):
        yield part
        for name in INNER:
            for inner in steps if isinstance(steps := part.get(name), list) else ():
                yield from tokenizer_steps(inner)


def require_fast_patterns(patterns: Sequence[str]) -> None:
    """Raise ValueError if one of a tokenizer's regular expressions can take minutes to search a page of text.

    Known patterns are accepted. In others, each alternative has at most one repetition, none has groups, and
    the total is limited. Then the time grows with the square of the text at worst. A pattern of twelve
    characters with two repetitions took three minutes for 3,200 letters.
    """
    repeats = 0
    for pattern in patterns:
        if pattern not in USUAL_PATTERNS:
            counts = [0]  # of repetitions in each alternative
            for part in PATTERN.finditer(pattern):
                matched, numbers = part[0], [int(number) for number in part.groups() if number]
                if matched == "|":
                    counts.append(0)
                elif matched in ("(", ")", r"\g", r"\k") or max(numbers, default=0) > MAX_REPEAT_COUNT:
                    counts[-1] += 2  # a group, and a call of one
                elif numbers or matched[0] in "*+?{":
                    counts[-1] += 1
            repeats += sum(counts)
            if max(counts) > 1 or repeats > MAX_REPEATS:
                raise ValueError(
                    f"the tokenizer's pattern {pattern[:100]!r} may take minutes for a text: "
                    f"groups, or more than one repetition per alternative, or over {MAX_REPEATS} in all"
                )


def random_texts(tokenizer: str, lengths: Sequence[int]) -> list[str]:
    """Return a text of each length, in random words of a tokenizer's vocabulary."""
    entries = json.loads(tokenizer)["model"]["vocab"]  # words, or pairs of word and score
    words = (entry if isinstance(entry, str) else entry[0] for entry in entries)
    vocabulary = [word for word in words if word.isalpha()]
    random = np.random.default_rng(0)
    return [" ".join(random.choice(vocabulary, length)) for length in lengths]
