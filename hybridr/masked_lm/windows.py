"""Windows and masks of masked-LM training (methods.md A.8), all of one optimiser step at once.

Everything is a pure function of seed and step, so a killed run goes on with the same data. Zhan et al. 2022,
"Disentangled Modeling of Domain and Relevance for Adaptable Dense Retrieval", and its released code.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.random import Generator, default_rng
from numpy.typing import NDArray

from .tokens import TokenCache, scattered

MASKED = 0.15
REPLACED, RANDOM = 0.8, 0.1  # of the masked ones: by [MASK], by any token; the rest stays
ROUNDS = 4  # of the Feistel network; Luby and Rackoff 1988 need as many
VISITS, WINDOWS, FIXED = 0, 1, 2  # streams of random numbers under one seed

Ids = NDArray[np.int64]


@dataclass(frozen=True)
class Frame:
    """What the tokenizer puts around a text, and what it means by it."""

    before: tuple[int, ...]
    after: tuple[int, ...]
    mask: int
    special: tuple[int, ...]
    """Ids that are never masked, also where a text spells them out."""
    vocabulary: int
    """Ids run from 0 to one less."""

    @property
    def size(self) -> int:
        """How many tokens it adds."""
        return len(self.before) + len(self.after)


class Windows(NamedTuple):
    """The inputs of one optimiser step: documents one after the other, special tokens included."""

    ids: Ids
    """What the model reads, `(tokens,)`."""
    lengths: Ids
    """Tokens of each document, `(documents,)`."""
    masked: Ids
    """Positions in `ids` that the model has to restore, ascending; at least one."""
    targets: Ids
    """The ids that stood there, `(masked,)`."""


def windows_of_step(
    cache: TokenCache, frame: Frame, *, first: int, size: int, max_tokens: int, seed: int, step: int
) -> Windows:
    """Draw the `size` documents of a step (numbered from 1), a window of each, and the masks.

    Each epoch visits every document once, in its own order. The documents of the cache before `first` are
    not trained on. A window has at most `max_tokens` tokens, special ones included.
    """
    rows = first + visits(len(cache) - first, (step - 1) * size, size, seed)
    return masked_windows(cache, frame, rows, max_tokens, default_rng([seed, WINDOWS, step]))


def fixed_windows(cache: TokenCache, frame: Frame, rows: Ids, *, max_tokens: int, seed: int) -> Windows:
    """Give windows and masks of the documents `rows` that are always the same, to compare losses."""
    return masked_windows(cache, frame, rows, max_tokens, default_rng([seed, FIXED]))


def visits(count: int, start: int, size: int, seed: int) -> Ids:
    """Give the documents `(size,)` of the visits from number `start`: each of `count` once per epoch."""
    numbers = np.arange(start, start + size, dtype=np.int64)
    epochs, places = np.divmod(numbers, count)
    found = [permuted(places[epochs == epoch], count, seed, int(epoch)) for epoch in np.unique(epochs)]
    return np.concatenate(found)


def permuted(places: Ids, count: int, seed: int, epoch: int) -> Ids:
    """Map places in 0..count-1 one to one onto the same range, at random by seed and epoch.

    A Feistel network over the next even power of 2, walked until it ends in the range (Black and Rogaway
    2002): no permutation of the whole corpus has to be kept in memory.
    """
    half = max(1, ((count - 1).bit_length() + 1) // 2)
    keys = [int(key) for key in np.random.SeedSequence([seed, VISITS, epoch]).generate_state(ROUNDS)]
    found = places.copy()
    outside = np.arange(len(places))
    while len(outside):
        found[outside] = scrambled(found[outside], half, keys)
        outside = outside[found[outside] >= count]
    return found


def scrambled(values: Ids, half: int, keys: list[int]) -> Ids:
    """Run values of 2 * `half` bits through the network once."""
    low = (1 << half) - 1
    left, right = values >> half, values & low
    for key in keys:
        left, right = right, left ^ (scattered(right.astype(np.uint64), key).astype(np.int64) & low)
    return (left << half) | right


def masked_windows(cache: TokenCache, frame: Frame, rows: Ids, longest: int, random: Generator) -> Windows:
    """Cut a window out of each document and mask it."""
    starts, sizes = cache.spans(rows)
    inner = np.minimum(sizes, longest - frame.size)
    starts = starts + random.integers(0, sizes - inner + 1)
    ids, text = framed(cache, frame, starts, inner)
    chosen = choose_masked(ids, text, frame, random)
    targets = ids[chosen]
    ids[chosen] = corrupted(targets, frame, random)
    return Windows(ids, inner + frame.size, chosen, targets)


def framed(cache: TokenCache, frame: Frame, starts: Ids, inner: Ids) -> tuple[Ids, Ids]:
    """Lay windows and special tokens one after the other; also give the positions `(text,)` of the text."""
    lengths = inner + frame.size
    begins = np.cumsum(lengths) - lengths
    ids = np.zeros(int(lengths.sum()), dtype=np.int64)
    offsets = np.arange(int(inner.sum())) - np.repeat(np.cumsum(inner) - inner, inner)
    text = np.repeat(begins + len(frame.before), inner) + offsets
    ids[text] = cache.ids[np.repeat(starts, inner) + offsets]
    for place, token in enumerate(frame.before):
        ids[begins + place] = token
    for place, token in enumerate(frame.after):
        ids[begins + len(frame.before) + inner + place] = token
    return ids, text


def choose_masked(ids: Ids, text: Ids, frame: Frame, random: Generator) -> Ids:
    """Choose 15 % of the text's positions, each by itself; one when chance chooses none."""
    usable = text[~np.isin(ids[text], frame.special)]
    chosen = usable[random.random(len(usable)) < MASKED]
    if len(chosen):
        return chosen
    pool = usable if len(usable) else text
    return pool[random.integers(0, len(pool), 1)]


def corrupted(targets: Ids, frame: Frame, random: Generator) -> Ids:
    """Give what the model sees instead: 80 % [MASK], 10 % any token of the vocabulary, 10 % the token."""
    chance = random.random(len(targets))
    others = random.integers(0, frame.vocabulary, len(targets))
    seen = np.where(chance < REPLACED + RANDOM, others, targets)
    return np.where(chance < REPLACED, frame.mask, seen)


def cut(lengths: Ids, budget: int, overhead: int) -> Iterator[Ids]:
    """Group documents into micro-batches of at most `budget` tokens with padding, longest first.

    A longer document is a micro-batch of its own. Each micro-batch costs its tokens and `overhead` more;
    of all ways to cut the documents sorted by length, the cheapest is taken.
    """
    order = np.argsort(-lengths, kind="stable")
    ordered = lengths[order]
    cost = np.zeros(len(order) + 1)
    begin = np.zeros(len(order) + 1, dtype=np.int64)
    for end in range(1, len(order) + 1):
        starts = np.arange(end)
        tokens = (end - starts) * ordered[starts]
        allowed = (tokens <= budget) | (starts == end - 1)
        whole = np.where(allowed, cost[starts] + tokens + overhead, np.inf)
        begin[end] = int(np.argmin(whole))
        cost[end] = whole[begin[end]]
    ends = [len(order)]
    while ends[-1]:
        ends.append(int(begin[ends[-1]]))
    for end, start in zip(ends[-2::-1], ends[:0:-1], strict=True):
        yield order[start:end]
