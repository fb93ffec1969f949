"""Archives and checkpoints that unpack to more than they are, write elsewhere, or run code."""

from __future__ import annotations

import json
import os
import resource
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hybridr.encoders.export.fetched_models import REM_FILE, fetch_published
from hybridr.errors import ModelError
from hybridr.training.adapters import read_design
from hybridr.training.backbone import read_rem, read_tensors
from hybridr.training.rankers import assemble
from support import hostile
from support.golden_ddr import SOURCE, changed, rem_of
from support.tiny import Payload


def peak_kb() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


@pytest.mark.attack(53)
def test_a_zip_that_unpacks_to_far_more_than_it_is_is_refused(tmp_path: Path) -> None:
    bomb, before = hostile.rem_bomb(tmp_path / "rem.zip"), peak_kb()
    words = r"it would unpack 0\.\d MB to 10\d MB; the limit is \d+ MB"
    with pytest.raises(ModelError, match=words):
        read_rem(bomb)
    assert peak_kb() - before < 100_000


@pytest.mark.attack(53)
@pytest.mark.parametrize(
    ("make", "words"),
    [
        (hostile.packed_weights, "it is compressed, which torch's files are not"),
        (hostile.stretched_weights, "it holds tensors that are not in the file"),
        (lambda file: hostile.pickled(file, {"weight": Payload(file)}), "may run code"),
        (lambda file: hostile.pickled(file, [1, 2]), "may run code|something else than named tensors"),
        (lambda file: file.write_bytes(hostile.noise(100_000)), "cannot be read|may run code"),
    ],
)
def test_weights_that_grow_or_run_are_refused(make: Callable[[Path], Any], words: str, tmp_path) -> None:
    file = tmp_path / "pytorch_adapter.bin"
    make(file)
    with pytest.raises(ModelError, match=words):
        read_tensors(file, str(file))


@pytest.mark.attack(54)
@pytest.mark.parametrize("prefix", ["../../evil/", "/evil/", "..\\evil\\"])
def test_an_archive_writes_nothing_anywhere(prefix: str, tmp_path: Path) -> None:
    file = hostile.zipped_rem(tmp_path / "rem.zip", lambda name: prefix + name)
    before = sorted(tmp_path.rglob("*"))
    if "\\" in prefix:
        with pytest.raises(ModelError, match="it has no adapter_config.json"):
            read_rem(file)
    else:
        assert read_rem(file).name == "msmarco"
    assert sorted(tmp_path.rglob("*")) == before
    assert not Path("/evil").exists()


@pytest.mark.attack(49)
def test_a_rem_with_a_link_is_refused(secret: Path, tmp_path: Path) -> None:
    rem = Path(shutil.copytree(rem_of("dense_lora192-pa4"), tmp_path / "rem"))
    (rem / "embeddings.bin").symlink_to(secret)
    with pytest.raises(ModelError, match=r"embeddings\.bin is a link that leads out"):
        read_rem(rem)


@pytest.mark.attack(59)
@pytest.mark.parametrize(
    "options",
    [
        {"reduction_factor": 1e-12},
        {"reduction_factor": float("inf")},
        {"reduction_factor": 10**400},
        {"reduction_factor": {"default": []}},
        {"scaling": float("nan")},
    ],
)
def test_a_rem_of_a_giant_is_refused(options: dict[str, Any], tmp_path: Path) -> None:
    rem = changed(rem_of("dense_lora192-pa4"), tmp_path, lambda config: config.update(options))
    with pytest.raises(ModelError, match=f"the REM has {next(iter(options))} .* which is not supported"):
        assemble(SOURCE, rem)


@pytest.mark.attack(59)
@pytest.mark.parametrize("rank", [10**12, float("inf"), 0, -1, 1.5, "x", True])
def test_a_lora_of_any_rank_is_refused(rank: Any) -> None:
    lora = {"architecture": "lora", "r": rank, "alpha": 1, "attn_matrices": ["q"], "selfattn_lora": True}
    with pytest.raises(ModelError, match="the REM has r "):
        read_design(lora)


@pytest.mark.attack(80)
def test_a_published_checkpoint_is_the_same_ever_after(tmp_path, monkeypatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setenv("HYBRIDR_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HYBRIDR_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    place = tmp_path / "cache" / "hub" / "models--jingtao--REM-bert_base-dense-contrast-msmarco"
    for revision in ("1" * 40, "2" * 40):
        (place / "snapshots" / revision).mkdir(parents=True)
        hostile.zipped_rem(place / "snapshots" / revision / REM_FILE)
    (place / "refs").mkdir()
    (place / "refs" / "main").write_text("1" * 40)
    first = fetch_published("REM-bert_base-dense-contrast-msmarco")
    known = json.loads((tmp_path / "home" / "state" / "checkpoints.json").read_text())
    (entry,) = known.values()
    assert (entry["revision"], len(entry["files"][REM_FILE])) == ("1" * 40, 64)
    (place / "refs" / "main").write_text("2" * 40)  # somebody pushed another one
    assert fetch_published("REM-bert_base-dense-contrast-msmarco") == first
    os.truncate(first, 1_000)
    with pytest.raises(ModelError, match=f"is not what was fetched before: {REM_FILE}") as caught:
        fetch_published("REM-bert_base-dense-contrast-msmarco")
    assert "checkpoints.json" in str(caught.value.hint)
