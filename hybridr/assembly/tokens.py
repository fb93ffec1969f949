"""Texts, pairs or token ids in; rows of token ids out, cut to a limit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from ..encoder import TextTokenizer, checked_texts, padded
from ..errors import DataError, ModelError

Texts: TypeAlias = Sequence[str] | Sequence[Sequence[int]]
Pairs: TypeAlias = Sequence[tuple[str, str]] | Sequence[Sequence[int]]
Ids: TypeAlias = NDArray[np.int64]


class Tokens:
    """The tokenizer of a DAM; without one, only token ids can be given."""

    def __init__(self, definition: str | None, padding: int, separator: int | None, vocabulary: int) -> None:
        """Take the tokenizer as JSON, and the ids of padding and of the token that ends a text."""
        self.definition = definition
        self.padding = padding
        self.separator = separator
        self.vocabulary = vocabulary
        self._texts = None if definition is None else TextTokenizer(definition)

    def rows(self, inputs: Texts, limit: int) -> list[list[int]]:
        """Give each input's ids with special tokens, at most `limit`. Raises DataError, ModelError."""
        if holds_ids(inputs):
            return [self.checked(row, limit) for row in inputs]
        return list(self._tokenizer().ids(checked_texts(inputs), limit))  # type: ignore[arg-type]

    def pair_rows(self, pairs: Pairs, limit: int) -> tuple[list[list[int]], list[list[int]]]:
        """Give the ids of each pair, and for each id whether it is in the second text (1) or not (0).

        The longer text of a pair is cut first. Token ids are given as one row, both texts in it.
        Raises DataError, ModelError.
        """
        if holds_ids(pairs):
            rows = [self.checked(row, limit) for row in pairs]
            return rows, [self.segments(row) for row in rows]
        for position, pair in enumerate(pairs):
            if isinstance(pair, str) or len(pair) != 2:
                raise DataError(f"pair {position} is not a pair of a query and a document")
            checked_texts(list(pair))  # type: ignore[arg-type]
        self._tokenizer()
        tokenizer = Tokenizer.from_str(str(self.definition))
        tokenizer.no_padding()
        tokenizer.enable_truncation(limit, strategy="longest_first")
        encodings = tokenizer.encode_batch([tuple(pair) for pair in pairs])
        return [encoding.ids for encoding in encodings], [encoding.type_ids for encoding in encodings]

    def checked(self, row: Any, limit: int) -> list[int]:
        """Give one row of ids without padding at its end, cut to `limit` but for its last id."""
        ids = [int(value) for value in row]
        if not ids or min(ids) < 0 or max(ids) >= self.vocabulary:
            raise DataError(f"token ids from 0 to {self.vocabulary - 1} were needed, {ids[:8]} was given")
        while len(ids) > 1 and ids[-1] == self.padding:
            ids.pop()
        return ids if len(ids) <= limit else [*ids[: limit - 1], ids[-1]]

    def segments(self, row: list[int]) -> list[int]:
        """Number the two texts of a pair's row: 1 after the first separator. Raises ModelError."""
        if self.separator is None:
            self._tokenizer()
        first = row.index(self.separator) + 1 if self.separator in row else len(row)
        return [0] * first + [1] * (len(row) - first)

    def batch(self, rows: Sequence[Sequence[int]]) -> tuple[Ids, Ids]:
        """Give ids and mask, both int64 `(rows, longest)`, filled up with the model's own padding."""
        ids, mask = padded(rows)
        return np.where(mask == 1, ids, self.padding), mask

    def _tokenizer(self) -> TextTokenizer:
        if self._texts is None:
            raise ModelError(
                "the DAM has no tokenizer, so texts cannot be read",
                hint="put its tokenizer.json or vocab.txt into the folder, or give token ids",
            )
        return self._texts


def holds_ids(inputs: Any) -> bool:
    """Tell whether the inputs are rows of token ids (of lists, tuples or an array) and not texts."""
    if isinstance(inputs, str) or len(inputs) == 0:
        return False
    first = inputs[0]
    listed = not isinstance(first, str) and hasattr(first, "__len__")
    return listed and len(first) > 0 and not isinstance(first[0], str)
