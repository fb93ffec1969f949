"""A.8's windows and masks over a cache of token ids that is read once."""

from __future__ import annotations

import json
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from hybridr.records import Document
from hybridr.training.token_cache import (
    Frame,
    GateDocuments,
    TokenCache,
    build_cache,
    choose_words,
    cut_by_length,
    open_cache,
    visited_documents,
)
from support.dam_training import VOCABULARY
from support.places import with_support
from support.tiny import WORDS, tiny_corpus, tiny_tokenizer
from support.windows import fixed_windows, step_windows

FRAME = Frame(2, 3, 4, (0, 2, 3, 4), VOCABULARY)


# --- the token cache


def test_the_cache_holds_each_text_without_special_tokens(tmp_path: Path) -> None:
    documents = tiny_corpus(40)
    found = build_cache(documents, tiny_tokenizer(), tmp_path / "c", seed=1)
    tokenizer = Tokenizer.from_str(tiny_tokenizer())
    starts = [0, *found.ends[:-1]]
    for document, start, end in zip(documents, starts, found.ends, strict=True):
        wanted = tokenizer.encode(document.contents, add_special_tokens=False).ids
        assert found.ids[start:end].tolist() == wanted
    assert found.ids.dtype == np.uint32
    assert isinstance(found.ids, np.memmap)
    assert found.tokens == len(found.ids)
    for file in (tmp_path / "c").iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o600, file
    assert stat.S_IMODE((tmp_path / "c").stat().st_mode) == 0o700


def test_repeated_and_empty_texts_are_not_trained_on(tmp_path: Path) -> None:
    documents = [
        Document("a", "balan bason"),
        Document("b", ""),
        Document("c", "balan bason"),
        Document("d", " \n"),
        Document("e", "bason", "balan"),
        Document("f", "miran"),
        Document("g", "lone \ud800 surrogate"),
    ]
    found = build_cache(documents, tiny_tokenizer(), tmp_path, seed=1)
    assert (found.read, len(found)) == (7, 3)
    assert sorted(found.order.tolist()) == [0, 5, 6]


def test_the_order_of_reading_changes_nothing_but_places(cache: TokenCache, tmp_path: Path) -> None:
    again = build_cache(tiny_corpus(300)[::-1], tiny_tokenizer(), tmp_path / "reversed", seed=5)
    assert again.fingerprint == cache.fingerprint
    drawn = [
        step_windows(one, FRAME, first=9, size=20, max_tokens=30, seed=5, step=3) for one in (cache, again)
    ]
    assert all(np.array_equal(left, right) for left, right in zip(*drawn, strict=True))
    other = build_cache(tiny_corpus(300), tiny_tokenizer(), tmp_path / "seed", seed=6)
    assert other.order.tolist() != cache.order.tolist()
    fewer = build_cache(tiny_corpus(299), tiny_tokenizer(), tmp_path / "fewer", seed=5)
    assert fewer.fingerprint != cache.fingerprint


def test_an_unfinished_or_foreign_cache_is_not_opened(tmp_path: Path) -> None:
    build_cache(tiny_corpus(10), tiny_tokenizer(), tmp_path, seed=1, key="mine")
    assert open_cache(tmp_path, "mine") is not None
    assert open_cache(tmp_path, "other") is None
    (tmp_path / "ends.bin").write_bytes((tmp_path / "ends.bin").read_bytes()[:-8])
    assert open_cache(tmp_path, "mine") is None
    (tmp_path / "manifest.json").unlink()
    assert open_cache(tmp_path, "mine") is None


@pytest.mark.parametrize("name", ["ids.bin", "ends.bin", "order.bin", "manifest.json"])
@pytest.mark.parametrize("cut", [1, 8])
def test_a_damaged_cache_is_made_anew(tmp_path: Path, name: str, cut: int) -> None:
    build_cache(tiny_corpus(10), tiny_tokenizer(), tmp_path, seed=1)
    file = tmp_path / name
    if name == "manifest.json":
        file.write_text('{"key": ""}' if cut == 1 else "{")
    else:
        file.write_bytes(file.read_bytes()[:-cut])
    assert open_cache(tmp_path) is None
    build_cache(tiny_corpus(10), tiny_tokenizer(), tmp_path, seed=1)
    assert open_cache(tmp_path) is not None


def test_damaged_documents_for_the_gate_are_none(tmp_path: Path) -> None:
    gate = GateDocuments(tmp_path / "gate.jsonl", 1)
    assert gate.read() == []
    documents = list(gate.passing(tiny_corpus(10)))
    assert sorted(gate.read()) == sorted(documents)
    for damage in (b'["a", "b", "te', b"{}\n", b"3\n", b"\xff\n", b"\0\0\n"):
        gate.file.write_bytes(damage)
        assert gate.read() == [], damage


def test_memory_does_not_grow_with_the_corpus(tmp_path: Path) -> None:
    """Anonymous pages of a small and a larger corpus."""
    program = """
import json, sys
from pathlib import Path
from hybridr.training.token_cache import build_cache
from hybridr.training.token_cache import Frame
from support.windows import step_windows
from hybridr.records import Document
count, words, tokenizer = int(sys.argv[1]), *json.loads(sys.stdin.read())
documents = (Document(str(i), f"{words[i % 100]} {words[i // 100 % 100]} {words[i // 10000]} " * 9)
             for i in range(count))
cache = build_cache(documents, tokenizer, Path(sys.argv[2]), seed=1)
frame = Frame(2, 3, 4, (0, 2, 3, 4), 107)
for step in range(1, 100):
    step_windows(cache, frame, first=0, size=64, max_tokens=20, seed=1, step=step)
text = Path("/proc/self/smaps_rollup").read_text()
print(next(int(line.split()[1]) for line in text.splitlines() if line.startswith("Anonymous")))
"""
    if not Path("/proc/self/smaps_rollup").exists():
        pytest.skip("only Linux counts anonymous pages")
    used = []
    for count in (2_000, 30_000):
        command = [sys.executable, "-c", program, str(count), str(tmp_path / str(count))]
        environment = with_support() | {"RAYON_NUM_THREADS": "1"}
        given = json.dumps([WORDS, tiny_tokenizer()])  # made here: who makes them imports torch
        done = subprocess.run(
            command, input=given, capture_output=True, text=True, check=True, env=environment
        )
        used.append(int(done.stdout))
    ids_kib = (tmp_path / "30000" / "ids.bin").stat().st_size / 1024
    assert ids_kib > 3_000
    assert used[1] - used[0] < max(0.05 * used[0], 0.5 * ids_kib)


# --- windows and masks


@pytest.mark.parametrize("count", [1, 2, 3, 17, 64, 1000])
def test_every_epoch_visits_every_document_once(count: int) -> None:
    epochs = visited_documents(count, 0, 3 * count, seed=1).reshape(3, count)
    assert all(sorted(epoch) == list(range(count)) for epoch in epochs.tolist())
    assert np.array_equal(visited_documents(count, count, count, seed=1), epochs[1])
    if count > 16:
        assert not np.array_equal(epochs[0], epochs[1])
        assert not np.array_equal(visited_documents(count, 0, count, seed=2), epochs[0])


def test_the_order_of_an_epoch_is_random() -> None:
    orders = np.stack([visited_documents(50, 50 * epoch, 50, seed=3) for epoch in range(2000)])
    counts = np.stack([np.bincount(orders[:, place], minlength=50) for place in range(50)])
    assert abs(counts - 40).max() < 6 * np.sqrt(40)
    assert abs(np.corrcoef(orders[:, 0], orders[:, 1])[0, 1]) < 0.1


def test_a_window_is_contiguous_and_starts_anywhere(tmp_path: Path) -> None:
    words = " ".join(WORDS[:30])
    cache = build_cache(
        [Document("long", words), Document("short", WORDS[40])], tiny_tokenizer(), tmp_path, seed=1
    )
    windows = fixed_windows(cache, FRAME, np.array([0, 1] * 4000), max_tokens=22)
    restored = windows.ids.copy()
    restored[windows.masked] = windows.targets
    starts = {}
    for row in np.split(restored, np.cumsum(windows.lengths)[:-1]):
        assert (row[0], row[-1]) == (2, 3)
        if len(row) == 3:
            assert row[1] == 5 + 40
            continue
        assert len(row) == 22
        assert np.array_equal(row[1:-1], row[1] + np.arange(20))
        starts[int(row[1]) - 5] = starts.get(int(row[1]) - 5, 0) + 1
    assert sorted(starts) == list(range(11))  # 0 to n - (max - 2), both included
    assert max(abs(count - 4000 / 11) for count in starts.values()) < 5 * np.sqrt(4000 / 11)


def test_masks_are_those_of_a8(cache: TokenCache) -> None:
    windows = fixed_windows(cache, FRAME, np.tile(np.arange(300), 40), max_tokens=128)
    text = int((windows.lengths - 2).sum())
    share = len(windows.masked) / text
    assert abs(share - 0.15) < 5 * np.sqrt(0.15 * 0.85 / text)
    seen = windows.ids[windows.masked]
    chosen = len(seen)
    rates = {"mask": (seen == 4).mean(), "kept": (seen == windows.targets).mean()}
    # a random id may be [MASK] or the token itself
    assert abs(rates["mask"] - (0.8 + 0.1 / VOCABULARY)) < 5 * np.sqrt(0.16 / chosen)
    assert abs(rates["kept"] - (0.1 + 0.1 / VOCABULARY)) < 5 * np.sqrt(0.09 / chosen)
    drawn = seen[(seen != 4) & (seen != windows.targets)]
    assert set(drawn.tolist()) == set(range(VOCABULARY)) - {4}
    assert not np.isin(windows.targets, [0, 2, 3, 4]).any()
    gaps = np.diff(windows.masked)
    assert abs((gaps == 1).mean() - 0.15) < 0.02  # each by itself, no whole words


def test_special_tokens_that_a_text_spells_out_stay(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_str(tiny_tokenizer())
    tokenizer.add_special_tokens(["[MASK]", "[SEP]"])
    text = Document("a", "[MASK] [SEP] balan " * 9)
    cache = build_cache([text], tokenizer.to_str(), tmp_path, seed=1)
    assert sorted(set(cache.ids.tolist())) == [3, 4, 5]
    windows = fixed_windows(cache, FRAME, np.zeros(500, dtype=np.int64), max_tokens=64)
    assert set(windows.targets.tolist()) == {5}


def test_everything_follows_from_seed_and_step(cache: TokenCache) -> None:
    def drawn(**changes: int) -> Any:
        return step_windows(
            cache, FRAME, **({"first": 0, "size": 300, "max_tokens": 30, "seed": 1, "step": 1} | changes)
        )

    first = drawn()
    assert all(np.array_equal(left, right) for left, right in zip(first, drawn(), strict=True))
    for change in ({"step": 2}, {"seed": 2}):
        other = drawn(**change)
        assert not np.array_equal(first.masked, other.masked)
        assert sorted(first.lengths) == sorted(other.lengths)  # the same documents, visited anew


def test_a_batch_has_at_least_one_mask(tmp_path: Path) -> None:
    cache = build_cache([Document(word, word) for word in WORDS[:2]], tiny_tokenizer(), tmp_path, seed=1)
    for step in range(1, 30):
        found = step_windows(cache, FRAME, first=0, size=1, max_tokens=8, seed=1, step=step)
        assert found.masked.tolist() == [1]


def test_micro_batches_waste_little() -> None:
    lengths = np.random.default_rng(0).integers(3, 190, 512)
    groups = list(cut_by_length(lengths, 4096, 128))
    assert sorted(np.concatenate(groups).tolist()) == list(range(512))
    sizes = [len(group) * lengths[group].max() for group in groups]
    assert max(sizes) <= 4096
    assert sum(sizes) < 1.05 * lengths.sum()
    alone = list(cut_by_length(np.array([500, 20, 20]), 100, 0))
    assert [group.tolist() for group in alone] == [[0], [1, 2]]


def test_words_are_masked_whole() -> None:
    vocabulary = np.arange(5, 100)
    wordwise = Frame(2, 3, 4, (0, 2, 3, 4), VOCABULARY, rests=tuple(vocabulary[::3].tolist()))
    random = np.random.default_rng(0)
    ids = random.choice(vocabulary, 60_000)
    text = np.delete(np.arange(60_000), np.arange(0, 60_000, 30))  # windows of 29 tokens behind a special one
    chosen = np.zeros(60_000, dtype=bool)
    chosen[choose_words(ids, text, wordwise, random)] = True
    assert 0.14 < chosen[text].mean() < 0.16
    rests = text[np.isin(ids[text], wordwise.rests) & np.isin(text - 1, text)]
    assert (chosen[rests] == chosen[rests - 1]).all()
    heads = text[~np.isin(ids[text], wordwise.rests) & np.isin(text - 1, text)]
    assert 0.1 < (chosen[heads] & ~chosen[heads - 1]).mean() < 0.15  # words are chosen each by itself


def test_something_is_masked_when_chance_chooses_no_word() -> None:
    one_word = Frame(2, 3, 4, (0, 2, 3, 4), VOCABULARY, rests=tuple(range(5, 100)))
    drawn = [np.random.default_rng(seed) for seed in range(40)]
    found = [len(choose_words(np.arange(5, 9), np.arange(4), one_word, random)) for random in drawn]
    assert min(found) == 1
    assert max(found) == 4
