"""REM training with iDRO, GroupDRO, MoDIR and BERM: what comes of it, continuation, processes, refusals."""

from __future__ import annotations

import json
import signal
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch

from hybridr.encoders.export.exporting import export
from hybridr.errors import DataError, ModelError, SettingsError
from hybridr.files.local import read_manifest
from hybridr.records import Document
from hybridr.relevance.corpus import TargetDomain, read_target
from hybridr.training.backbone import read_rem
from hybridr.training.judged import Judged
from hybridr.training.objectives import modir
from hybridr.training.rankers import assemble
from hybridr.training.rem import train_rem
from hybridr.training.settings import RemSettings
from support.programs import Program, killed_at
from support.rem_training import FITTED_STEPS, SETTINGS, TEXTS, main, rem_settings, set_small, write_teacher
from support.tiny import tiny_corpus

METHODS: dict[str, dict[str, Any]] = {
    "idro": {"method": "idro", "method_settings": {"clusters": 4}},
    "idro of the paper, in batch": {
        "method": "idro",
        "method_settings": {"clusters": 4, "variant": "paper"},
        "loss": "contrast",
    },
    "groupdro": {"method": "groupdro", "method_settings": {"clusters": 4}},
    "modir": {"method_settings": {"queue": 6, "queue_entries": 2}, "loss": "pairwise"},
    "berm": {"method": "berm"},
    "berm as released": {"method": "berm", "method_settings": {"variant": "code"}, "loss": "pairwise"},
}


@pytest.fixture(autouse=True)
def quick_classifier(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(modir, "FITTED_STEPS", FITTED_STEPS)


@pytest.fixture(scope="module")
def target() -> TargetDomain:
    return read_target("tiny", tiny_corpus(60), seed=4)


def target_of(name: str, target: TargetDomain) -> TargetDomain | None:
    return target if name.startswith("modir") else None


def invariant(name: str) -> tuple[str, ...]:
    return ("invariant",) if name.startswith("modir") else ()


def rem_weights(folder: Path) -> dict[str, torch.Tensor]:
    return read_rem(folder).tensors("pytorch_adapter.bin")


@pytest.mark.parametrize("name", METHODS)
def test_the_loss_falls_and_the_manifest_tells_the_method(name, judged, dam, target, tmp_path):
    given = rem_settings(dam, tmp_path / "rem", steps=30, learning_rate=2e-2, rank=16, **METHODS[name])
    trained = train_rem(judged, given, target=target_of(name, target))
    assert trained.method["name"] == name.split()[0]
    lines = [json.loads(line) for line in (tmp_path / "rem" / "losses.jsonl").read_text().splitlines()]
    ranking = [line["loss_ranking"] for line in lines]
    assert sum(ranking[-10:]) < 0.95 * sum(ranking[:10])
    if name == "idro":
        folder = export(assemble(dam, tmp_path / "rem"), tmp_path / "encoder")
        assert f"| trained by | {trained.method['source']} |" in (folder / "README.md").read_text()
    if "clusters" in trained.method:
        assert sum(row["queries"] for row in trained.method["clusters"]) == 40
        assert len(lines[0]["weights_after"]) == 4
    if name == "modir":
        assert all(0 <= line["local_accuracy"] <= 1 for line in lines)
        assert len({line["accuracy_queries"] for line in lines}) > 1  # measured more than once


def test_weight_zero_is_plain_training_bit_for_bit(judged, dam, target, tmp_path):
    common = {"steps": 5, "loss": "pairwise"}
    short = {"queue": 6, "queue_entries": 2}
    train_rem(judged, rem_settings(dam, tmp_path / "plain", **common))
    for name, own in (("zero", short | {"invariance": 0.0}), ("one", short)):
        given = rem_settings(dam, tmp_path / name, **common, method_settings=own)
        train_rem(judged, given, target=target)
    plain, zero, one = (rem_weights(tmp_path / name) for name in ("plain", "zero", "one"))
    assert all(torch.equal(value, zero[key]) for key, value in plain.items())
    assert not all(torch.equal(value, one[key]) for key, value in plain.items())


@pytest.mark.parametrize("name", ["idro", "groupdro", "modir", "berm"])
def test_a_stopped_run_ends_with_the_same_weights(name, judged, toy, dam, target, tmp_path):
    """MoDIR has most to keep: it is killed. A kill within a step: `test_loop.py`."""

    def stop(stage: str, done: int, total: int | None = None, note: str = "") -> None:
        if stage == "train" and done == 5:
            raise KeyboardInterrupt

    values = SETTINGS | METHODS[name] | {"dam": str(dam), "steps": 8}
    train_rem(judged, RemSettings(**values, out=tmp_path / "whole"), target=target_of(name, target))
    out = tmp_path / "broken"
    if name == "modir":
        killed_at("5", main, str(toy), values | {"out": str(out)}, *invariant(name))
    else:
        with pytest.raises(KeyboardInterrupt):
            train_rem(judged, RemSettings(**values, out=out), progress=stop)
    assert not (out / "manifest.json").exists()
    continued = train_rem(judged, RemSettings(**values, out=out), target=target_of(name, target))
    assert continued.resumed_from == 3
    for file in ("pytorch_adapter.bin", "losses.jsonl"):
        assert (out / file).read_bytes() == (tmp_path / "whole" / file).read_bytes()
    method = [(read_manifest(folder) or {})["rem"]["method"] for folder in (out, tmp_path / "whole")]
    assert method[0] == method[1]


@pytest.mark.parametrize("name", ["idro", "idro of the paper, in batch", "modir", "berm as released"])
def test_two_processes_are_one_with_the_double_batch(name, judged, toy, dam, target, tmp_path):
    values = SETTINGS | METHODS[name] | {"dam": str(dam), "dropout": False, "steps": 2}
    one = train_rem(judged, RemSettings(**values, out=tmp_path / "one"), target=target_of(name, target))
    given = values | {"batch_size": 4, "out": str(tmp_path / "two")}
    assert Program(main, str(toy), given, *invariant(name), ranks=2).wait() == [0, 0]
    alone, together = (rem_weights(tmp_path / folder) for folder in ("one", "two"))
    assert max(float((value - together[key]).abs().max()) for key, value in alone.items()) <= 1e-5
    lines = (tmp_path / "two" / "losses.jsonl").read_text().splitlines()
    assert [json.loads(line)["loss"] for line in lines] == pytest.approx(one.losses, abs=1e-4)


def test_episodes_mine_and_cluster_anew_and_go_on_after_a_stop(judged, toy, dam, tmp_path):
    values = SETTINGS | METHODS["idro"] | {"dam": str(dam), "episodes": 2, "learning_rate": 1e-2}
    assert train_rem(judged, RemSettings(**values, out=tmp_path / "whole")).steps == 24
    lines = [json.loads(line) for line in (tmp_path / "whole" / "losses.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(1, 25))
    out = tmp_path / "broken"
    broken = Program(main, str(toy), values | {"out": str(out)})
    assert next(islice(broken.lines, 16, None)), "the fifth step of the second episode"
    broken.kill()
    assert broken.wait() == [-signal.SIGKILL]
    mined = [(out / ".training" / place / "negatives.tsv").read_text() for place in ("", "episode-2")]
    assert mined[0] != mined[1]
    assert train_rem(judged, RemSettings(**values, out=out)).resumed_from >= 12
    assert len({(of / "pytorch_adapter.bin").read_bytes() for of in (out, tmp_path / "whole")}) == 1


def test_methods_stand_on_distillation_too(judged: Judged, dam: Path, target: TargetDomain, tmp_path) -> None:
    teacher = write_teacher(tmp_path / "teacher.tsv", judged)
    for name in ("idro", "modir", "berm"):
        values = METHODS[name] | {"loss": "distil", "teacher": teacher, "steps": 1}
        given = rem_settings(dam, tmp_path / name, **values)
        assert train_rem(judged, given, target=target_of(name, target)).method is not None


def test_what_cannot_be_combined_is_refused_by_name(judged, dam, target, tmp_path):
    for values, given, message in (
        ({"method": "idro"}, target, "--method idro and --invariant-to are methods"),
        ({"method": "idro", "ranker": "splade"}, None, "idro is for the dense ranker, not for splade"),
        ({"ranker": "rerank"}, target, "modir is for the dense ranker, not for rerank"),
        ({"method": "modir"}, None, "modir needs a domain to be invariant to"),
        ({"negatives_per_query": 0}, target, "modir needs .rem. negatives_per_query"),
        ({"method_settings": {"queue": 7, "queue_entries": 2}}, target, "7 is not a multiple of the 2"),
        ({"method_settings": {"clusters": 7}}, target, "unknown setting 'clusters'"),
        ({"loss": "pairwise", "negatives_per_query": 0}, None, "needs .rem. negatives_per_query above 0"),
        ({"batch_size": 1, "negatives_per_query": 0}, None, "a batch of one query has nothing"),
        ({"method_settings": {"variant": "paper"}}, None, "are those of --method"),
        ({"episodes": 2}, target, "neither --teacher nor --invariant-to"),
        ({"episodes": 2, "ranker": "colbert"}, None, "it needs the dense ranker"),
    ):
        with pytest.raises(SettingsError, match=message):
            train_rem(judged, rem_settings(dam, tmp_path / "rem", **values), target=given)


def test_a_rem_is_not_trained_on_with_another_similarity(judged: Judged, dam: Path, tmp_path: Path) -> None:
    train_rem(judged, rem_settings(dam, tmp_path / "first", steps=1))
    mixed = rem_settings(dam, tmp_path / "second", rem=str(tmp_path / "first"), similarity="cosine")
    with pytest.raises(SettingsError, match="trained with similarity ip, not cosine"):
        train_rem(judged, mixed)


def test_one_cluster_too_few_queries_and_empty_clusters(judged: Judged, dam: Path, tmp_path: Path) -> None:
    same = replace(judged, queries=dict.fromkeys(judged.queries, "red fox"), fingerprint="same")
    with pytest.raises(DataError, match="all queries fall into one cluster"):
        train_rem(same, rem_settings(dam, tmp_path / "a", **METHODS["idro"]))
    with pytest.raises(DataError, match="40 queries cannot make 41 clusters"):
        train_rem(judged, rem_settings(dam, tmp_path / "b", method="idro", method_settings={"clusters": 41}))
    few = dict(zip(judged.queries, list(judged.queries.values())[:2] * 20, strict=True))
    two = replace(judged, queries=few, fingerprint="two")
    method = train_rem(two, rem_settings(dam, tmp_path / "c", steps=3, **METHODS["idro"])).method
    sizes = {row["queries"]: row["last_weight"] for row in method["clusters"]}
    assert sizes[0] == pytest.approx(0.01)  # an empty cluster is absent from every batch: at the floor


def test_batches_of_one(judged: Judged, dam: Path, target: TargetDomain, tmp_path: Path) -> None:
    for name in METHODS.keys() - {"idro", "berm"}:
        given = rem_settings(dam, tmp_path / name, batch_size=1, steps=2, **METHODS[name])
        assert len(train_rem(judged, given, target=target_of(name, target)).losses) == 2


def test_a_loss_that_is_not_a_number_stops_every_method(judged, dam, target, tmp_path, monkeypatch):
    from hybridr.training.objectives.labelled import EncodedApart

    scores = EncodedApart.own_scores
    monkeypatch.setattr(EncodedApart, "own_scores", lambda *given: scores(*given) * torch.nan)
    for name in ("idro", "groupdro", "modir", "berm"):
        given = rem_settings(dam, tmp_path / name, **METHODS[name] | {"loss": "pairwise"})
        with pytest.raises(ModelError, match="the loss is nan at step 1"):
            train_rem(judged, given, target=target_of(name, target))


def test_clusters_are_weighed_by_pairwise_losses_unless_another_is_given(dam: Path) -> None:
    assert RemSettings(dam=str(dam), method="idro").loss == "pairwise"
    assert RemSettings(dam=str(dam), method="idro", loss="contrast").loss == "contrast"
    assert RemSettings(dam=str(dam)).loss == "contrast"


def test_the_commands(toy: Path, dam: Path, tmp_path, capsys, monkeypatch) -> None:
    import hybridr_cli

    set_small(monkeypatch)
    train = ["rem", "train", "--dam", str(dam), "--beir", str(toy), "--steps", "2"]
    log = tmp_path / "log.txt"
    log.write_text("".join(f"{text} {number}\n" for number, text in enumerate([*TEXTS, *TEXTS[:3]])))
    target = ["--invariant-to", str(toy)]
    for name, options in (
        ("groupdro", ["--method", "groupdro", "--method-settings", "clusters=3"]),
        ("modir", [*target, "--method-settings", "adversary=gan,invariance=0.5"]),
    ):
        out = ["--out", str(tmp_path / name)]
        assert hybridr_cli.main([*train, *options, *out, "--json"]) == 0, name
        assert json.loads(capsys.readouterr().out)["method"]["name"] == name
    assert hybridr_cli.main([*train, *options, *out]) == 0
    assert "values of each step in losses.jsonl" in capsys.readouterr().out
    given = [*train, *target, "--target-queries", str(log), "--out", str(tmp_path / "log"), "--json"]
    assert hybridr_cli.main(given) == 0
    assert json.loads(capsys.readouterr().out)["method"]["target_queries"] == 11
    assert hybridr_cli.main([*train, "--target-queries", str(log)]) == 2
    assert "--invariant-to" in capsys.readouterr().err
    assert hybridr_cli.main([*train, *target, "--method", "berm"]) == 2
    assert "--method berm and --invariant-to are methods" in capsys.readouterr().err


def test_a_queue_longer_than_the_training_repeats_the_newest() -> None:
    game = modir.Game(queue=6, entries=2)
    assert (game.reads(2), game.reads(6)) == ([0, 1, 1, 1, 1, 1], [0, 1, 2, 3, 4, 5])
    assert replace(game, traversal="released").reads(6) == [1, 2, 3, 4, 5, 5]
    assert replace(game, traversal="repeat").reads(3) == [2] * 6


def test_a_target_needs_documents_and_queries() -> None:
    with pytest.raises(DataError, match="40 are needed"):
        read_target("few", tiny_corpus(20))
    made = read_target("numbers", [Document(str(number), f"{number}") for number in range(60)])
    assert made.queries[0].isdigit()  # a text of one word is its own query
    log = [f"query {number}" for number in range(10)]
    given = read_target("log", tiny_corpus(60), log)
    assert (given.queries, given.made_from) == (tuple(log), (-1,) * 10)
    with pytest.raises(DataError, match="log: 9 queries, 10 are needed"):
        read_target("log", tiny_corpus(60), log[:9])


def test_few_target_queries_come_more_than_once(judged: Judged, dam: Path, tmp_path: Path) -> None:
    few = read_target("log", tiny_corpus(60), [f"red fox {number}" for number in range(10)])
    given = rem_settings(dam, tmp_path / "rem", **METHODS["modir"] | {"batch_size": 20, "steps": 3})
    assert train_rem(judged, given, target=few).method is not None


def test_documents_of_one_sentence_and_a_tokenizer_without_periods(toy: Path, dam: Path, tmp_path) -> None:
    from hybridr.training.judged import read_judged_beir

    def one_sentence(text: str) -> str:
        return text.replace(".", "").strip() + "."

    judged = read_judged_beir(toy)
    documents = [Document(one.doc_id, one_sentence(one.contents)) for one in judged.documents()]
    flat = replace(judged, documents=lambda: iter(documents), fingerprint="flat")
    with pytest.raises(DataError, match="with one each there is nothing to balance"):
        train_rem(flat, rem_settings(dam, tmp_path / "flat", method="berm", mined=0))
    mixed = documents[:-3] + list(judged.documents())[-3:]
    some = replace(judged, documents=lambda: iter(mixed), fingerprint="some")
    assert train_rem(some, rem_settings(dam, tmp_path / "some", method="berm", steps=2, mined=0)).method
