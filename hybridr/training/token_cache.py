"""The token cache: a corpus as token ids on disk, and the masked windows of it that training reads."""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeAlias

import numpy as np
import orjson
from numpy.random import Generator
from numpy.typing import NDArray
from tokenizers import Tokenizer

from ..errors import DataError
from ..files.local import (
    child_path,
    fingerprint,
    max_model_bytes,
    read_manifest,
    read_within,
    replacing,
    storing,
    write_json,
)
from ..files.remembered import remember_text
from ..records import Document
from ..relevance.corpus import clipped, text_hash
from ..relevance.gate import CORPUS_CAP

BLOCK = 512  # documents in one call of the tokenizer
BLOCK_CHARACTERS = 1_000_000  # a block of long documents holds fewer
FILES = {"ids": np.uint32, "ends": np.int64, "hashes": np.uint64, "order": np.int64}
MAPPED = ("ids", "ends", "order")
MANIFEST = "manifest.json"
GOLDEN_RATIO, FIRST, SECOND = (
    np.uint64(0x9E3779B97F4A7C15),
    np.uint64(0xBF58476D1CE4E5B9),
    np.uint64(0x94D049BB133111EB),
)
"""Constants of splitmix64 (Steele, Lea and Flood 2014)."""
SPECIAL_TOKENS = 2  # special tokens: one before a text, one after
MASKED = 0.15
REPLACED, RANDOM = 0.8, 0.1  # shares of masked tokens that become [MASK] or any token; the rest stays
ROUNDS = 4  # of the Feistel network, as many as Luby and Rackoff 1988 require
VISITS, WINDOWS, FIXED = 0, 1, 2  # streams of random numbers under one seed
TokenIds = NDArray[np.int64]
Choose: TypeAlias = "Callable[[TokenIds, TokenIds, Frame, Generator], TokenIds]"


@dataclass(frozen=True)
class TokenCache:
    """The tokenised documents to train on, in a random order that depends on the seed."""

    folder: Path
    ids: NDArray[np.uint32]
    """Token ids of all documents read, one after the other, without special tokens."""
    ends: NDArray[np.int64]
    """End of each document in `ids`."""
    order: NDArray[np.int64]
    """The documents to train on, as positions in `ends`: no empty ones, each text once."""
    read: int
    """Documents read, repeated and empty ones too."""
    tokens: int
    """Token ids of all documents read."""
    unknown: int
    """Number of ids that stand for words unknown to the tokenizer."""
    fingerprint: str
    """Fingerprint of the distinct texts, whatever their order; 64 hex digits."""

    def __len__(self) -> int:
        return len(self.order)

    def spans(self, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the starts in `ids` of the documents `rows`, and their lengths; both `(n,)`."""
        documents = np.asarray(self.order[rows])
        ends = np.asarray(self.ends[documents])
        starts = np.where(documents > 0, self.ends[documents - 1], 0)
        return starts, ends - starts


def build_cache(
    documents: Iterable[Document], tokenizer: str, folder: Path, *, seed: int, key: str = ""
) -> TokenCache:
    """Tokenise documents into files in `folder`, readable by their owner only, and return the cache.

    `tokenizer` is the JSON of the `tokenizers` package. Memory does not grow with the corpus except for 40
    bytes a document while the order is made. Raises DataError if no text is left, DownloadError if the disk
    is full.
    """
    with storing(folder):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        remember_text(folder, "token cache", parts=[*(f"{name}.bin" for name in FILES), MANIFEST])
        (folder / MANIFEST).unlink(missing_ok=True)
        counts = write_tokens(documents, Tokenizer.from_str(tokenizer), folder)
        ends, hashes = map_file(folder, "ends"), map_file(folder, "hashes")
        filled = np.flatnonzero(np.diff(ends, prepend=0))
        distinct, first_positions = np.unique(hashes[filled], return_index=True)
        order = filled[first_positions][np.argsort(scramble(distinct, seed))]
        with private_file(folder / "order.bin") as file:
            order.astype(np.int64).tofile(file)
        digest, usable = hashlib.sha256(np.ascontiguousarray(distinct).data).hexdigest(), len(order)
    if not usable:
        raise DataError(
            f"{counts['read']:,} documents hold no usable text",
            hint="name the fields that hold it with --fields, or check the file",
        )
    with storing(folder):
        record = {
            "key": key,
            "tokenizer": fingerprint(tokenizer),
            "seed": seed,
            **counts,
            "usable": usable,
            "fingerprint": digest,
        }
        write_json(folder / MANIFEST, record, private=True)
    built = open_cache(folder, key)
    assert built is not None  # it was written just now
    return built


def open_cache(folder: Path, key: str = "") -> TokenCache | None:
    """Open a finished cache that was built for `key`; None if there is none, or it is damaged."""
    try:
        record = read_manifest(folder)
    except DataError:
        return None
    if record is None or record.get("key") != key:
        return None
    try:
        ids, ends, order = (map_file(folder, name) for name in MAPPED)
        if [len(ids), len(ends), len(order)] != [record[name] for name in ("tokens", "read", "usable")]:
            return None
        counts = [record[name] for name in ("read", "tokens", "unknown", "fingerprint")]
    except (KeyError, OSError, ValueError):  # damaged
        return None
    return TokenCache(folder, ids, ends, order, *counts)


def map_file(folder: Path, name: str) -> NDArray[Any]:
    """Return one file of the cache as a memory-mapped array; an empty array for an empty file."""
    file = child_path(folder, f"{name}.bin")
    if not file.is_file() or not file.stat().st_size:
        return np.zeros(0, dtype=FILES[name])
    return np.memmap(file, dtype=FILES[name], mode="r")


def write_tokens(documents: Iterable[Document], tokenizer: Tokenizer, folder: Path) -> dict[str, int]:
    """Write ids, ends and hashes of documents; return the counts of documents, tokens, unknown tokens."""
    tokenizer.no_padding()
    tokenizer.no_truncation()
    name = getattr(tokenizer.model, "unk_token", None)
    unknown_id = tokenizer.token_to_id(name) if name else None
    read = tokens = unknown = 0
    with (
        private_file(folder / "ids.bin") as ids,
        private_file(folder / "ends.bin") as ends,
        private_file(folder / "hashes.bin") as hashes,
    ):
        for texts in blocks(documents):
            encoded = tokenizer.encode_batch_fast(texts, add_special_tokens=False)
            rows = [np.asarray(encoding.ids, dtype=np.uint32) for encoding in encoded]
            flat = np.concatenate(rows)
            flat.tofile(ids)
            (tokens + np.cumsum([len(row) for row in rows], dtype=np.int64)).tofile(ends)
            np.asarray([text_hash(text) for text in texts], dtype=np.uint64).tofile(hashes)
            read, tokens = read + len(texts), tokens + len(flat)
            unknown += int(np.count_nonzero(flat == unknown_id)) if unknown_id is not None else 0
    return {"read": read, "tokens": tokens, "unknown": unknown}


def blocks(documents: Iterable[Document]) -> Iterator[list[str]]:
    """Yield the texts of documents in blocks of limited size."""
    texts: list[str] = []
    characters = 0
    for document in documents:
        texts.append(tokenizable(document.contents))
        characters += len(texts[-1])
        if len(texts) == BLOCK or characters >= BLOCK_CHARACTERS:
            yield texts
            texts, characters = [], 0
    if texts:
        yield texts


def tokenizable(text: str) -> str:
    """Return the text with lone surrogates replaced, which UTF-8 cannot hold."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


def private_file(path: Path) -> BinaryIO:
    """Open a new file for writing that only its owner can read."""
    path.unlink(missing_ok=True)
    path.touch(mode=0o600)
    return path.open("wb")


def scramble(values: NDArray[np.uint64], seed: int) -> NDArray[np.uint64]:
    """Map 64-bit numbers `(n,)` one to one onto pseudo-random ones that depend on the seed.

    By splitmix64's finaliser (Steele, Lea and Flood 2014).
    """
    salt = np.uint64(int(np.random.SeedSequence(seed).generate_state(1, np.uint64)[0]))
    with np.errstate(over="ignore"):  # arithmetic modulo 2^64
        mixed = (values ^ salt) + GOLDEN_RATIO
        mixed = (mixed ^ (mixed >> np.uint64(30))) * FIRST
        mixed = (mixed ^ (mixed >> np.uint64(27))) * SECOND
        return mixed ^ (mixed >> np.uint64(31))


@dataclass(frozen=True)
class Frame:
    """A tokenizer's special ids: around a text, the mask, ends of sentences, and parts of words."""

    before: int
    after: int
    mask: int
    special: tuple[int, ...]
    """Ids that are never masked, also where a text spells them out."""
    vocabulary: int
    """Number of ids, which start at 0."""
    stops: tuple[int, ...] = ()
    """Ids that end a sentence."""
    rests: tuple[int, ...] = ()
    """Ids that continue the preceding word."""


class TokenWindows(NamedTuple):
    """The inputs of one optimiser step: concatenated masked windows of documents with special tokens."""

    ids: TokenIds
    """Token ids that the model reads, `(tokens,)`."""
    lengths: TokenIds
    """Tokens of each document, `(documents,)`."""
    masked: TokenIds
    """Positions in `ids` that the model has to restore, ascending; at least one."""
    targets: TokenIds
    """The original ids at these positions, `(masked,)`."""


def visited_documents(count: int, start: int, size: int, seed: int) -> TokenIds:
    """Return the documents `(size,)` of `size` visits from number `start`: each of `count` once per epoch."""
    numbers = np.arange(start, start + size, dtype=np.int64)
    epochs, places = np.divmod(numbers, count)
    orders = [permute(places[epochs == epoch], count, seed, int(epoch)) for epoch in np.unique(epochs)]
    return np.concatenate(orders)


def permute(places: TokenIds, count: int, seed: int, epoch: int) -> TokenIds:
    """Map places in 0..count-1 one to one onto the same range, at random by seed and epoch.

    A Feistel network over the next even power of 2 is repeated until the result is in the range (Black and
    Rogaway 2002). So no permutation of the corpus has to be in memory.
    """
    half = max(1, ((count - 1).bit_length() + 1) // 2)
    keys = [int(key) for key in np.random.SeedSequence([seed, VISITS, epoch]).generate_state(ROUNDS)]
    order, low = places.copy(), (1 << half) - 1
    out_of_range = np.arange(len(places))
    while len(out_of_range):
        high_bits, low_bits = order[out_of_range] >> half, order[out_of_range] & low
        for key in keys:
            noise = scramble(low_bits.astype(np.uint64), key).astype(np.int64) & low
            high_bits, low_bits = low_bits, high_bits ^ noise
        order[out_of_range] = (high_bits << half) | low_bits
        out_of_range = out_of_range[order[out_of_range] >= count]
    return order


def masked_windows(
    cache: TokenCache,
    frame: Frame,
    spans: tuple[TokenIds, TokenIds],
    longest: int,
    random: Generator,
    choose: Choose | None = None,
) -> TokenWindows:
    """Return a random window of each span (start, length), with the tokens chosen by `choose` masked.

    A window has at most `longest` tokens, special ones included.
    """
    starts, sizes = spans
    inner = np.minimum(sizes, longest - SPECIAL_TOKENS)
    starts = starts + random.integers(0, sizes - inner + 1)
    lengths = inner + SPECIAL_TOKENS  # windows and special tokens, one after the other
    begins = np.cumsum(lengths) - lengths
    ids = np.zeros(int(lengths.sum()), dtype=np.int64)
    offsets = np.arange(int(inner.sum())) - np.repeat(np.cumsum(inner) - inner, inner)
    text = np.repeat(begins + 1, inner) + offsets
    ids[text] = cache.ids[np.repeat(starts, inner) + offsets]
    ids[begins], ids[begins + 1 + inner] = frame.before, frame.after
    positions = (choose or choose_masked)(ids, text, frame, random)
    targets = ids[positions]
    chance = random.random(len(targets))  # 80 % [MASK], 10 % any token of the vocabulary, 10 % the token
    random_ids = random.integers(0, frame.vocabulary, len(targets))
    replacements = np.where(chance < REPLACED + RANDOM, random_ids, targets)
    ids[positions] = np.where(chance < REPLACED, frame.mask, replacements)
    return TokenWindows(ids, lengths, positions, targets)


def choose_masked(ids: TokenIds, text: TokenIds, frame: Frame, random: Generator) -> TokenIds:
    """Return 15 % of the text's positions, each chosen independently; at least one."""
    usable = text[~np.isin(ids[text], frame.special)]
    positions = usable[random.random(len(usable)) < MASKED]
    if len(positions):
        return positions
    pool = usable if len(usable) else text
    return pool[random.integers(0, len(pool), 1)]


def choose_words(ids: TokenIds, text: TokenIds, frame: Frame, random: Generator) -> TokenIds:
    """Return the positions of 15 % of the words, each with all its tokens; at least one token."""
    begins = ~np.isin(ids[text], frame.rests) | (np.diff(text, prepend=-2) > 1)
    word = np.cumsum(begins) - 1
    positions = text[(random.random(len(text)) < MASKED)[word] & ~np.isin(ids[text], frame.special)]
    return positions if len(positions) else choose_masked(ids, text, frame, random)


def cut_by_length(lengths: TokenIds, budget: int, overhead: int) -> Iterator[TokenIds]:
    """Yield groups of documents as micro-batches of at most `budget` tokens with padding, longest first.

    A document above the budget is a micro-batch by itself. A micro-batch costs its tokens plus `overhead`.
    The documents are sorted by length and cut where the total cost is least.
    """
    order = np.argsort(-lengths, kind="stable")
    ordered = lengths[order]
    cost = np.zeros(len(order) + 1)
    begin = np.zeros(len(order) + 1, dtype=np.int64)
    for end in range(1, len(order) + 1):
        starts = np.arange(end)
        tokens = (end - starts) * ordered[starts]
        allowed = (tokens <= budget) | (starts == end - 1)
        total_cost = np.where(allowed, cost[starts] + tokens + overhead, np.inf)
        begin[end] = int(np.argmin(total_cost))
        cost[end] = total_cost[begin[end]]
    ends = [len(order)]
    while ends[-1]:
        ends.append(int(begin[ends[-1]]))
    for end, start in zip(ends[-2::-1], ends[:0:-1], strict=True):
        yield order[start:end]


@dataclass
class GateDocuments:
    """The documents for the gate: the first ones in the order of the token cache, so that held-out ones come
    first.

    A file that only its owner can read stores them, so that a resumed run need not reread the source.
    """

    file: Path
    seed: int

    def passing(self, documents: Iterable[Document]) -> Iterator[Document]:
        """Yield all documents unchanged, and write those for the gate to the file at the end."""
        by_place: dict[int, Document] = {}
        heap: list[int] = []
        for document in documents:
            yield document
            text = np.asarray([text_hash(tokenizable(document.contents))], dtype=np.uint64)
            place = int(scramble(text, self.seed)[0])  # in the order of the cache
            if not document.contents.strip() or place in by_place:
                continue
            heapq.heappush(heap, -place)
            by_place[place] = clipped(document)
            if len(by_place) > CORPUS_CAP:
                del by_place[-heapq.heappop(heap)]
        with storing(self.file), replacing(self.file, private=True) as temporary:
            rows = (list(by_place[place]) for place in sorted(by_place))
            temporary.write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))
            remember_text(self.file, "documents held out for the gate", temporary=temporary)

    def read(self) -> list[Document]:
        """Return the documents for the gate; none if the file is missing or damaged."""
        try:
            lines = read_within(self.file, max_model_bytes()).splitlines()
            return [Document(*orjson.loads(line)) for line in lines]
        except (OSError, TypeError, ValueError):
            return []
