"""Masked-LM training: A.8's windows and masks, the gradient of the one big batch, exact continuation."""

from __future__ import annotations

import gzip
import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

import hybridr_cli
from dam_training import SETTINGS, VOCABULARY, tiny_dam
from hybridr.adaptation import loop
from hybridr.adaptation.corpus import CorpusFile
from hybridr.adaptation.dam import fit_dam, frame_of
from hybridr.adaptation.loop import Processes
from hybridr.adaptation.objectives.mlm import IGNORED, MaskedLm
from hybridr.adaptation.settings import DamSettings
from hybridr.adaptation.token_cache import (
    Frame,
    TokenCache,
    build_cache,
    cut,
    fixed_windows,
    open_cache,
    visits,
    windows_of_step,
)
from hybridr.assembly.assembly import assemble
from hybridr.assembly.backbone import read_dam
from hybridr.errors import DataError, DownloadError, ModelError
from hybridr.exporting.exporting import export
from hybridr.files.manifest import read_manifest
from hybridr.records import Document
from tiny import WORDS, damage_json, tiny_corpus, tiny_retriever, tiny_tokenizer

TESTS = Path(__file__).parent
FRAME = Frame((2,), (3,), 4, (0, 2, 3, 4), VOCABULARY)


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    former = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(former)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_dam(tmp_path_factory.mktemp("base") / "tiny")


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> TokenCache:
    return build_cache(tiny_corpus(300), tiny_tokenizer(), tmp_path_factory.mktemp("tokens"), seed=5)


def settings(base: Path, out: Path, **changes: Any) -> DamSettings:
    return DamSettings(**(SETTINGS | {"base": str(base), "out": out} | changes))


def weights_of(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def same(left: Path, right: Path) -> bool:
    one, other = weights_of(left), weights_of(right)
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


# --- the token cache ---


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
        windows_of_step(one, FRAME, first=9, size=20, max_tokens=30, seed=5, step=3) for one in (cache, again)
    ]
    assert all(np.array_equal(left, right) for left, right in zip(*drawn, strict=True))
    other = build_cache(tiny_corpus(300), tiny_tokenizer(), tmp_path / "seed", seed=6)
    assert other.order.tolist() != cache.order.tolist()
    fewer = build_cache(tiny_corpus(299), tiny_tokenizer(), tmp_path / "fewer", seed=5)
    assert fewer.fingerprint != cache.fingerprint


def test_a_sample_is_the_start_of_the_seeded_order(cache: TokenCache) -> None:
    assert cache.limited(50).order.tolist() == cache.order[:50].tolist()
    assert cache.limited(None) is cache


def test_an_unfinished_or_foreign_cache_is_not_opened(tmp_path: Path) -> None:
    build_cache(tiny_corpus(10), tiny_tokenizer(), tmp_path, seed=1, key="mine")
    assert open_cache(tmp_path, "mine") is not None
    assert open_cache(tmp_path, "other") is None
    (tmp_path / "ends.bin").write_bytes((tmp_path / "ends.bin").read_bytes()[:-8])
    assert open_cache(tmp_path, "mine") is None
    (tmp_path / "manifest.json").unlink()
    assert open_cache(tmp_path, "mine") is None


def test_tsv_as_ddr_reads_it(tmp_path: Path) -> None:
    file = tmp_path / "corpus.tsv.gz"
    with gzip.open(file, "wt") as lines:
        lines.write("7\tbalan bason\n9\tmiran\r\n8\t\n")
    assert list(CorpusFile(file, "tsv")) == [
        Document("7", "balan bason"),
        Document("9", "miran"),
        Document("8", ""),
    ]


@pytest.mark.parametrize("line", ["8 no tab", "8\ta\tb", ""])
def test_a_tsv_needs_two_columns(tmp_path: Path, line: str) -> None:
    file = tmp_path / "corpus.tsv"
    file.write_text(f"7\tbalan\n{line}\n9\tmiran\n")
    with pytest.raises(DataError, match=r"corpus\.tsv:2: needed 'docid<TAB>text'"):
        list(CorpusFile(file, "tsv"))


def test_a_damaged_gzip_is_said(tmp_path: Path) -> None:
    file = tmp_path / "corpus.tsv.gz"
    file.write_bytes(gzip.compress(b"7\tbalan\n" * 1000)[:-20])
    with pytest.raises(DataError, match="cannot be read"):
        list(CorpusFile(file, "tsv"))
    with pytest.raises(DataError, match="no file"):
        list(CorpusFile(tmp_path / "none.tsv", "tsv"))


def test_jsonl_and_beir(tmp_path: Path) -> None:
    records = [{"_id": "1", "title": "balan", "text": "bason"}, {"_id": "2", "body": ["miran", "tulan"]}]
    (tmp_path / "corpus.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    found = list(CorpusFile(tmp_path, "beir"))
    assert found == [Document("1", "bason", "balan"), Document("2", "")]
    named = CorpusFile(tmp_path / "corpus.jsonl", "jsonl", ("title", "text", "body"))
    assert [document.contents for document in named] == ["balan bason", "miran tulan"]
    with pytest.raises(DataError, match=r":1: no field body"):
        list(CorpusFile(tmp_path / "corpus.jsonl", "jsonl", ("body",)))


def test_memory_does_not_grow_with_the_corpus(tmp_path: Path) -> None:
    """Anonymous pages of a small and a larger corpus; benchmarks/dam_memory.py does it in full."""
    program = """
import sys
from pathlib import Path
from hybridr.adaptation.token_cache import build_cache
from hybridr.adaptation.token_cache import Frame, windows_of_step
from hybridr.records import Document
from tiny import WORDS, tiny_tokenizer
count = int(sys.argv[1])
documents = (Document(str(i), f"{WORDS[i % 100]} {WORDS[i // 100 % 100]} {WORDS[i // 10000]} " * 9)
             for i in range(count))
cache = build_cache(documents, tiny_tokenizer(), Path(sys.argv[2]), seed=1)
frame = Frame((2,), (3,), 4, (0, 2, 3, 4), 107)
for step in range(1, 100):
    windows_of_step(cache, frame, first=0, size=64, max_tokens=20, seed=1, step=step)
text = Path("/proc/self/smaps_rollup").read_text()
print(next(int(line.split()[1]) for line in text.splitlines() if line.startswith("Anonymous")))
"""
    if not Path("/proc/self/smaps_rollup").exists():
        pytest.skip("only Linux counts anonymous pages")
    used = []
    for count in (2_000, 30_000):
        command = [sys.executable, "-c", program, str(count), str(tmp_path / str(count))]
        environment = os.environ | {"PYTHONPATH": str(TESTS), "RAYON_NUM_THREADS": "1"}
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
        used.append(int(done.stdout))
    ids_kib = (tmp_path / "30000" / "ids.bin").stat().st_size / 1024
    assert ids_kib > 3_000
    assert used[1] - used[0] < max(0.05 * used[0], 0.5 * ids_kib)


# --- windows and masks ---


@pytest.mark.parametrize("count", [1, 2, 3, 17, 64, 1000])
def test_every_epoch_visits_every_document_once(count: int) -> None:
    seen = visits(count, 0, 3 * count, seed=1)
    epochs = seen.reshape(3, count)
    assert all(sorted(epoch) == list(range(count)) for epoch in epochs.tolist())
    assert np.array_equal(visits(count, count, count, seed=1), epochs[1])
    if count > 16:
        assert not np.array_equal(epochs[0], epochs[1])
        assert not np.array_equal(visits(count, 0, count, seed=2), epochs[0])


def test_the_order_of_an_epoch_is_random() -> None:
    orders = np.stack([visits(50, 50 * epoch, 50, seed=3) for epoch in range(2000)])
    counts = np.stack([np.bincount(orders[:, place], minlength=50) for place in range(50)])
    assert abs(counts - 40).max() < 6 * np.sqrt(40)
    assert abs(np.corrcoef(orders[:, 0], orders[:, 1])[0, 1]) < 0.1


def test_a_window_is_contiguous_and_starts_anywhere(tmp_path: Path) -> None:
    words = " ".join(WORDS[:30])
    cache = build_cache(
        [Document("long", words), Document("short", WORDS[40])], tiny_tokenizer(), tmp_path, seed=1
    )
    rows = np.array([0, 1] * 4000)
    windows = fixed_windows(cache, FRAME, rows, max_tokens=22, seed=1)
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
    rows = np.tile(np.arange(300), 40)
    windows = fixed_windows(cache, FRAME, rows, max_tokens=128, seed=1)
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
    windows = fixed_windows(cache, FRAME, np.zeros(500, dtype=np.int64), max_tokens=64, seed=1)
    assert set(windows.targets.tolist()) == {5}


def test_everything_follows_from_seed_and_step(cache: TokenCache) -> None:
    def drawn(**changes: int) -> Any:
        return windows_of_step(
            cache, FRAME, **({"first": 0, "size": 300, "max_tokens": 30, "seed": 1, "step": 1} | changes)
        )

    first = drawn()
    assert all(np.array_equal(left, right) for left, right in zip(first, drawn(), strict=True))
    for change in ({"step": 2}, {"seed": 2}):
        other = drawn(**change)
        assert not np.array_equal(first.masked, other.masked)
        assert sorted(first.lengths) == sorted(other.lengths)  # the same documents, visited anew


def test_a_batch_has_at_least_one_mask(tmp_path: Path) -> None:
    cache = build_cache(
        [Document("a", WORDS[0]), Document("b", WORDS[1])], tiny_tokenizer(), tmp_path, seed=1
    )
    for step in range(1, 30):
        found = windows_of_step(cache, FRAME, first=0, size=1, max_tokens=8, seed=1, step=step)
        assert found.masked.tolist() == [1]


def test_micro_batches_waste_little() -> None:
    random = np.random.default_rng(0)
    lengths = random.integers(3, 190, 512)
    groups = list(cut(lengths, 4096, 128))
    assert sorted(np.concatenate(groups).tolist()) == list(range(512))
    sizes = [len(group) * lengths[group].max() for group in groups]
    assert max(sizes) <= 4096
    assert sum(sizes) < 1.05 * lengths.sum()
    alone = list(cut(np.array([500, 20, 20]), 100, 0))
    assert [group.tolist() for group in alone] == [[0], [1, 2]]


# --- the objective ---


def objective(folder: Path, cache: TokenCache, **changes: Any) -> MaskedLm:
    dam = read_dam(folder)
    values = {
        "batch_size": 24,
        "max_tokens": 40,
        "seed": 1,
        "token_budget": 150,
        "held_out": 0,
    } | changes
    processes = values.pop("processes", Processes("cpu"))
    return MaskedLm(dam.model, frame_of(dam), cache, DamSettings(**values), "fp32", processes)


def plain_loss(folder: Path, found: MaskedLm, step: int) -> Any:
    """Give the model of transformers after one backward pass of its own loss on the padded whole batch."""
    windows = windows_of_step(
        found.cache,
        found.frame,
        first=found.held_out,
        size=found.batch_size,
        max_tokens=found.max_tokens,
        seed=found.seed,
        step=step,
    )
    labels = np.full_like(windows.ids, -100)
    labels[windows.masked] = windows.targets
    rows = [np.split(array, np.cumsum(windows.lengths)[:-1]) for array in (windows.ids, labels)]
    ids, wanted = (
        torch.nn.utils.rnn.pad_sequence(list(map(torch.from_numpy, part)), True, filler)
        for part, filler in zip(rows, (found.module.config.pad_token_id, -100), strict=True)
    )
    model = transformers.AutoModelForMaskedLM.from_pretrained(folder).eval()
    mask = torch.arange(ids.shape[1]) < torch.from_numpy(windows.lengths)[:, None]
    loss = model(input_ids=ids, attention_mask=mask.long(), labels=wanted).loss
    loss.backward()
    return loss.item(), dict(model.named_parameters())


@pytest.mark.parametrize("kind", ["bert", "roberta", "distilbert"])
def test_the_gradient_is_that_of_the_one_big_batch(kind: str, tmp_path: Path) -> None:
    folder = tiny_dam(tmp_path / kind, kind)
    dam = read_dam(folder)
    cache = build_cache(tiny_corpus(100), str(dam.tokenizer), tmp_path / "tokens", seed=1)
    found = objective(folder, cache)
    parts = found.parts(3)
    assert len(parts) > 4
    loss = sum(found.loss(part) for part in parts)
    loss.backward()
    wanted, gradients = plain_loss(folder, found, 3)
    assert abs(loss.item() - wanted) < 1e-5
    assert gradients.keys() == found.weights.keys()
    for name, weight in found.weights.items():
        assert torch.allclose(weight.grad, gradients[name].grad, rtol=1e-4, atol=1e-6), name


def test_the_shares_of_processes_are_the_batch(base: Path, cache: TokenCache) -> None:
    class Two:
        count, device = 2, torch.device("cpu")

        def __init__(self, rank: int) -> None:
            self.rank = rank

    whole = objective(base, cache)
    total = sum(whole.loss(part).item() for part in whole.parts(1))
    shares = [objective(base, cache, processes=Two(rank)) for rank in range(2)]
    tokens = [sum(int((part.targets != IGNORED).sum()) for part in share.parts(1)) for share in shares]
    assert sum(tokens) == shares[0].parts(1)[0].divisor
    assert abs(tokens[0] - tokens[1]) < 0.3 * sum(tokens)
    assert abs(sum(share.loss(part).item() for share in shares for part in share.parts(1)) - total) < 1e-5


def test_dropout_is_off_unless_asked_for(base: Path, cache: TokenCache) -> None:
    for share, differs in ((0.0, False), (0.1, True)):
        found = objective(base, cache, dropout=share)
        assert found.dropout is differs
        found.module.train(True)
        part = found.parts(1)[0]
        assert (found.loss(part).item() != found.loss(part).item()) is differs


# --- the whole ---


def test_training_is_real_and_opens_everywhere(base: Path, tmp_path: Path) -> None:
    found = fit_dam(
        tiny_corpus(200), settings(base, tmp_path / "dam", steps=40, learning_rate=5e-3, held_out=40)
    )
    assert (found.steps, found.documents, found.fresh_head, found.reused) == (40, 160, False, False)
    assert found.unseen_loss_end < found.unseen_loss_start - 0.1
    assert found.loss_end < found.loss_start
    assert [path.name for path in tmp_path.iterdir()] == ["dam"]
    assert not (found.folder / ".training").exists()
    model, report = transformers.AutoModelForMaskedLM.from_pretrained(found.folder, output_loading_info=True)
    assert not any(report.values())
    tokenizer = transformers.AutoTokenizer.from_pretrained(found.folder)
    assert tokenizer("balan").input_ids == [2, 5, 3]
    assert tokenizer.mask_token_id == 4
    opened = read_dam(found.folder)
    assert opened.has_language_head
    before, after = read_dam(base).model.state_dict(), opened.model.state_dict()
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in after.items())
    assert not any(torch.equal(before[name], after[name]) for name in before if "weight" in name)
    assert assemble(found.folder).encode_documents(["balan bason"]).shape == (1, 32)


def test_the_folder_tells_its_history(base: Path, tmp_path: Path) -> None:
    found = fit_dam(tiny_corpus(120), settings(base, tmp_path / "dam"))
    manifest = read_manifest(found.folder) or {}
    assert manifest["stage"] == "dam"
    assert manifest["settings"]["learning_rate"] == 1e-3
    assert manifest["inputs"]["base"]["name"] == "tiny"
    assert manifest["parents"] == [manifest["inputs"]["base"]["weights"]]
    assert manifest["dam"]["losses"] == list(found.losses)
    assert len(found.losses) == 12
    assert set(manifest["outputs"]) >= {"config.json", "model.safetensors", "tokenizer.json", "losses.svg"}
    assert "<svg" in (found.folder / "losses.svg").read_text()
    logged = [json.loads(line) for line in (found.folder / "losses.jsonl").read_text().splitlines()]
    assert [entry["loss"] for entry in logged] == list(found.losses)
    own_words = {word for document in tiny_corpus(120) for word in document.text.split()}
    assert not [word for word in own_words if f'"{word}' in (found.folder / "manifest.json").read_text()]


def test_a_finished_run_is_known_by_its_texts(base: Path, tmp_path: Path) -> None:
    first = fit_dam(tiny_corpus(120), settings(base, tmp_path / "dam"))
    written = (first.folder / "manifest.json").stat().st_mtime_ns
    again = fit_dam(tiny_corpus(120)[::-1], settings(base, tmp_path / "dam"))
    assert again.reused
    assert again.losses == first.losses
    assert (first.folder / "manifest.json").stat().st_mtime_ns == written
    assert not (first.folder / ".training").exists()
    assert not fit_dam(tiny_corpus(121), settings(base, tmp_path / "dam")).reused
    other = fit_dam(tiny_corpus(121), settings(base, tmp_path / "dam", seed=3))
    assert not other.reused
    (other.folder / "model.safetensors").write_bytes(b"")
    assert not fit_dam(tiny_corpus(121), settings(base, tmp_path / "dam", seed=3)).reused


def test_an_unfinished_run_does_not_read_its_source_again(base: Path, tmp_path: Path) -> None:
    whole = fit_dam(tiny_corpus(120), settings(base, tmp_path / "whole"))

    def stop(stage: str, done: int, total: int | None = None, note: str = "") -> None:
        if stage == "train" and done == 8:
            raise KeyboardInterrupt

    file = tmp_path / "corpus.jsonl"
    records = [{"_id": d.doc_id, "title": d.title, "text": d.text} for d in tiny_corpus(120)]
    file.write_text("".join(json.dumps(record) + "\n" for record in records))
    source, out = CorpusFile(file, "jsonl"), tmp_path / "stopped"
    with pytest.raises(KeyboardInterrupt):
        fit_dam(source, settings(base, out), progress=stop)
    stages: list[str] = []
    resumed = fit_dam(source, settings(base, out), progress=lambda stage, *_: stages.append(stage))
    assert resumed.resumed_from == 6
    assert "read" not in stages
    assert same(resumed.folder, whole.folder)
    with pytest.raises(KeyboardInterrupt):
        fit_dam(source, settings(base, tmp_path / "changed"), progress=stop)
    file.write_text("".join(json.dumps(record) + "\n" for record in records[:100]))
    assert fit_dam(source, settings(base, tmp_path / "changed")).documents == 80  # another file: read anew


def test_a_run_killed_by_sigkill_ends_with_the_same_weights(base: Path, tmp_path: Path) -> None:
    whole = fit_dam(tiny_corpus(120), settings(base, tmp_path / "whole"))
    step = int(np.random.default_rng().integers(1, 12))
    out = tmp_path / "killed"
    command = [
        sys.executable,
        str(TESTS / "dam_training.py"),
        json.dumps({"base": str(base), "out": str(out)}),
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout or ():
            if line.split() == ["train", str(step)]:
                process.send_signal(signal.SIGKILL)
                break
    assert process.returncode == -signal.SIGKILL
    assert (out / ".training").is_dir()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    assert same(out, whole.folder), f"killed at step {step}"
    assert (read_manifest(out) or {})["dam"]["resumed_from"] <= step


def test_two_processes_give_the_weights_of_one(base: Path, tmp_path: Path) -> None:
    """Started by torchrun, as `accelerate launch` does on GPUs; on processors that starts one only."""
    whole = fit_dam(tiny_corpus(120), settings(base, tmp_path / "one"))
    out = tmp_path / "two"
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc_per_node",
        "2",
        str(TESTS / "dam_training.py"),
        json.dumps({"base": str(base), "out": str(out)}),
    ]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    assert (read_manifest(out) or {})["dam"]["processes"] == 2
    one, two = weights_of(whole.folder), weights_of(out)
    gaps = {name: float((one[name] - two[name]).abs().max()) for name in one}
    assert max(gaps.values()) < 1e-5, max(gaps.items(), key=lambda item: item[1])


def test_a_base_without_a_head_gets_a_seeded_one(tmp_path: Path) -> None:
    folder = export(tiny_retriever(), tmp_path / "retriever")
    runs = [fit_dam(tiny_corpus(120), settings(folder, tmp_path / name, steps=3)) for name in ("a", "b")]
    assert runs[0].fresh_head
    assert same(runs[0].folder, runs[1].folder)
    assert (read_manifest(runs[0].folder) or {})["dam"]["fresh_head"] is True
    other = fit_dam(tiny_corpus(120), settings(folder, tmp_path / "c", steps=3, seed=4))
    assert not same(other.folder, runs[0].folder)


# --- refusals ---


def test_no_usable_text_is_refused(base: Path, tmp_path: Path) -> None:
    for documents in ([], [Document("a", ""), Document("b", "  ")]):
        with pytest.raises(DataError, match="hold no usable text"):
            fit_dam(documents, settings(base, tmp_path / "dam"))
    with pytest.raises(DataError, match="1 different texts; 2 are needed"):
        fit_dam([Document("a", "balan")] * 9, settings(base, tmp_path / "dam"))


def test_a_strange_vocabulary_is_refused(base: Path, tmp_path: Path) -> None:
    strange = [Document(str(i), f"{'字' * (i + 1)} wholly unknown words") for i in range(50)]
    with pytest.raises(DataError, match="tokenizer of tiny does not know 100% of the tokens"):
        fit_dam(strange, settings(base, tmp_path / "dam"))
    folder = tiny_dam(tmp_path / "base")
    (folder / "tokenizer.json").write_text(tiny_tokenizer([*WORDS, "more", "words"]))
    with pytest.raises(ModelError, match="embeddings"):
        fit_dam(tiny_corpus(50), settings(folder, tmp_path / "dam"))
    definition = json.loads(tiny_tokenizer())
    definition["model"]["vocab"].pop("[MASK]")
    (folder / "tokenizer.json").write_text(json.dumps(definition))
    with pytest.raises(ModelError, match="no mask token"):
        fit_dam(tiny_corpus(50), settings(folder, tmp_path / "dam"))
    (folder / "tokenizer.json").unlink()
    with pytest.raises(ModelError, match="no tokenizer"):
        fit_dam(tiny_corpus(50), settings(folder, tmp_path / "dam"))


def test_a_base_of_another_kind_is_refused(base: Path, tmp_path: Path) -> None:
    folder = tiny_dam(tmp_path / "base")
    damage_json(folder / "config.json", hidden_size=48)
    with pytest.raises(ModelError, match="wrong sizes"):
        fit_dam(tiny_corpus(50), settings(folder, tmp_path / "dam"))
    with pytest.raises(ModelError, match="there is no DAM"):
        fit_dam(tiny_corpus(50), settings(tmp_path / "none", tmp_path / "dam"))


def test_too_little_disk_is_said_before_anything_is_read(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = type(loop.shutil.disk_usage(tmp_path))
    monkeypatch.setattr(loop.shutil, "disk_usage", lambda _: usage(10**9, 10**9, 1000))

    def unread() -> Iterator[Document]:
        raise AssertionError("it was read")
        yield

    with pytest.raises(DownloadError, match="0 MB free; tokens and checkpoints need about 1 MB"):
        fit_dam(unread(), settings(base, tmp_path / "dam"))


def test_too_little_memory_is_said_before_training(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(psutil, "virtual_memory", lambda: type("M", (), {"available": 1_000_000}))
    steps: list[str] = []
    with pytest.raises(ModelError, match="1 MB of memory are free on cpu"):
        fit_dam(
            tiny_corpus(50), settings(base, tmp_path / "dam"), progress=lambda *told: steps.append(told[0])
        )
    assert "train" not in steps


def test_a_loss_that_is_not_finite_stops(base: Path, tmp_path: Path) -> None:
    folder = tiny_dam(tmp_path / "base")
    weights = weights_of(folder)
    weights["cls.predictions.transform.LayerNorm.weight"] *= 3e38
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"the loss is (nan|inf) at step 1; most likely the first one"):
        fit_dam(tiny_corpus(50), settings(folder, tmp_path / "dam"))
    assert not (tmp_path / "dam" / "model.safetensors").exists()


def test_another_folder_is_not_replaced(base: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("dear")
    with pytest.raises(ModelError, match="is not a DAM that hybridr trained"):
        fit_dam(tiny_corpus(50), settings(base, tmp_path / "mine"))
    assert (tmp_path / "mine" / "letter.txt").read_text() == "dear"


# --- the command ---


def test_the_command(base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "corpus.tsv"
    file.write_text("".join(f"{d.doc_id}\t{d.contents}\n" for d in tiny_corpus(60)))
    out = str(tmp_path / "dam")
    command = [
        "dam",
        "train",
        "--tsv",
        str(file),
        "--base",
        str(base),
        "--out",
        out,
        "--steps",
        "3",
        "--batch-size",
        "8",
        "--held-out",
        "10",
        "--precision",
        "fp32",
    ]
    assert hybridr_cli.main([*command, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["steps"], found["documents"], found["reused"]) == (3, 50, False)
    assert hybridr_cli.main(command) == 0
    told = capsys.readouterr()
    assert "(done before)" in told.out
    assert "hybridr adapt --base" in told.out
    assert "read: 60" in told.err


def test_the_command_needs_one_source(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert hybridr_cli.main(["dam", "train"]) == 2
    assert hybridr_cli.main(["dam", "train", "--jsonl", "a", "--tsv", "b"]) == 2
    assert "one source of documents is needed" in capsys.readouterr().err
