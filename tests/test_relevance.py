"""REM training: labels, negatives, objectives, files; against the formulas of Zhan et al. 2022 (A.8)."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dam_training import tiny_dam
from hybridr.adaptation import rem as rem_module
from hybridr.adaptation.batches import Batches, Limits, read_examples
from hybridr.adaptation.judged import (
    Judged,
    mine,
    read_judged_beir,
    read_judged_files,
    read_negatives,
    read_scores,
    table_documents,
)
from hybridr.adaptation.loop import Processes
from hybridr.adaptation.objectives.contrast import Contrastive
from hybridr.adaptation.rem import train_rem
from hybridr.adaptation.settings import RemSettings
from hybridr.assembly.assembly import assemble
from hybridr.assembly.designs import PUBLISHED, read_design
from hybridr.assembly.new_rem import attach_fresh, config_of, design_of
from hybridr.assembly.rem_files import read_rem
from hybridr.errors import DataError, ModelError, SettingsError
from hybridr.evaluation.bm25 import Bm25, terms_of
from rem_training import SETTINGS, write_toy
from tiny import tiny_texts

GOLDEN = Path(__file__).parent / "golden" / "ddr"
PROGRAM = Path(__file__).parent / "rem_training.py"
TEXTS = tiny_texts(8, longest=20, seed=5)


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_toy(tmp_path_factory.mktemp("toy") / "beir")


@pytest.fixture(scope="module")
def dam(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_dam(tmp_path_factory.mktemp("dam"))


@pytest.fixture(scope="module")
def judged(toy: Path) -> Judged:
    return read_judged_beir(toy)


def settings(dam: Path, out: Path, **values: Any) -> RemSettings:
    return RemSettings(**SETTINGS | {"dam": str(dam), "out": out} | values)


def vectors(dam: Path, rem: Path | None = None) -> np.ndarray:
    return assemble(dam, rem).encode_documents(TEXTS)


@pytest.mark.parametrize("design", ["lora", "parallel", "both"])
def test_the_loss_falls_and_the_files_give_the_trained_vectors(
    design: str, judged: Judged, dam: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = []
    write = rem_module.write
    monkeypatch.setattr(rem_module, "write", lambda plan, *rest: (kept.append(plan), write(plan, *rest)))
    trained = train_rem(
        judged, settings(dam, tmp_path / "rem", design=design, steps=60, learning_rate=1e-2, rank=16)
    )
    assert trained.loss_end < 0.9 * trained.loss_start
    ranker = kept[0].ranker
    assert np.abs(ranker.encode_documents(TEXTS) - vectors(dam, tmp_path / "rem")).max() <= 1e-6
    assert np.abs(vectors(dam, tmp_path / "rem") - vectors(dam)).max() > 1e-3
    frozen = assemble(dam).backbone.state_dict()
    for name, value in ranker.backbone.state_dict().items():
        if name.replace(".base_layer", "") in frozen:
            assert torch.equal(value, frozen[name.replace(".base_layer", "")])
    assert (assemble(dam, tmp_path / "rem").merged) == (design != "parallel")
    assert {path.name for path in (tmp_path / "rem").iterdir()} == {
        "adapter_config.json",
        "pytorch_adapter.bin",
        "losses.jsonl",
        "losses.svg",
        "manifest.json",
    }


def test_the_configuration_is_that_of_the_published_files(judged: Judged, dam: Path, tmp_path: Path) -> None:
    published = json.loads((GOLDEN / "rems/rem_dense_lora192-pa4/msmarco/adapter_config.json").read_text())
    assert config_of(PUBLISHED) == published["config"]
    assert read_design(published["config"]) == design_of("both", 192)
    alone = json.loads((GOLDEN / "rems/rem_dense_lora192/msmarco/adapter_config.json").read_text())
    assert config_of(design_of("lora", 192)) == alone["config"]
    train_rem(judged, settings(dam, tmp_path / "rem", steps=1, name="toy"))
    record = json.loads((tmp_path / "rem" / "adapter_config.json").read_text())
    assert record.keys() == published.keys()
    assert {key: record[key] for key in ("model_class", "model_type", "version", "name", "hidden_size")} == {
        "model_class": "BertDense",
        "model_type": "bert",
        "version": "3.2.1",
        "name": "toy",
        "hidden_size": 32,
    }
    weights = torch.load(tmp_path / "rem" / "pytorch_adapter.bin", weights_only=True)
    assert "bert.encoder.layer.1.attention.self.value.loras.toy.lora_B" in weights


def test_a_fresh_rem_is_seeded_and_changes_nothing(dam: Path) -> None:
    def fresh(seed: int) -> dict[str, torch.Tensor]:
        ranker = assemble(dam)
        attach_fresh(ranker, design_of("both", 16), seed)
        assert np.abs(ranker.encode_documents(TEXTS) - vectors(dam)).max() == 0
        return {name: w.detach() for name, w in ranker.backbone.named_parameters() if w.requires_grad}

    first, again, other = fresh(1), fresh(1), fresh(2)
    bound = 1 / np.sqrt(32)  # of Kaiming-uniform with a = sqrt(5) and 32 inputs
    for name, weight in first.items():
        assert torch.equal(weight, again[name])
        if "lora_A" in name or "adapter_down.0.weight" in name:
            assert not torch.equal(weight, other[name])
            assert 0.9 * bound < float(weight.abs().max()) <= bound
        else:
            assert not weight.any()


def test_other_backbones(judged: Judged, tmp_path: Path) -> None:
    for kind in ("roberta", "distilbert"):
        dam = tiny_dam(tmp_path / kind, kind)
        train_rem(judged, settings(dam, tmp_path / f"{kind}-rem", design="both", steps=2))
        assert np.abs(vectors(dam, tmp_path / f"{kind}-rem") - vectors(dam)).max() > 0


def test_all_weights_are_trained_without_a_rem(judged: Judged, dam: Path, tmp_path: Path) -> None:
    trained = train_rem(judged, settings(dam, tmp_path / "dr", full=True, steps=30))
    assert (trained.kind, trained.share) == ("whole", 1.0)
    assert trained.loss_end < trained.loss_start
    words = assemble(tmp_path / "dr").backbone.get_input_embeddings().weight
    assert not torch.equal(words, assemble(dam).backbone.get_input_embeddings().weight)
    assert assemble(tmp_path / "dr", ranker="splade").encode_queries(TEXTS).shape[1] == len(words)
    rem = train_rem(judged, settings(tmp_path / "dr", tmp_path / "rem", steps=1))
    assert vectors(tmp_path / "dr", rem.folder).shape == (8, 32)


def test_a_rem_is_trained_on_with_another_dam(judged: Judged, dam: Path, tmp_path: Path) -> None:
    first = train_rem(judged, settings(dam, tmp_path / "first", name="source", design="both"))
    target = tiny_dam(tmp_path / "target", seed=4)
    second = train_rem(
        judged, settings(target, tmp_path / "second", rem=str(first.folder), steps=30, learning_rate=1e-2)
    )
    before, after = (read_rem(run.folder) for run in (first, second))
    assert after.record == before.record
    weights = [rem.tensors("pytorch_adapter.bin") for rem in (before, after)]
    assert weights[0].keys() == weights[1].keys()
    assert all(not torch.equal(value, weights[1][key]) for key, value in weights[0].items())
    assert second.loss_end < second.loss_start
    wide = GOLDEN / "rems" / "rem_dense_lora192__none"
    with pytest.raises(ModelError, match="there is no DAM or REM"):
        train_rem(judged, settings(target, tmp_path / "third", rem=str(wide)))
    other = tiny_dam(tmp_path / "distilbert", "distilbert")
    with pytest.raises(ModelError, match="kind bert, this one is distilbert"):
        train_rem(judged, settings(other, tmp_path / "third", rem=str(first.folder)))


def program(*launcher: str, toy: Path, values: dict[str, Any]) -> subprocess.Popen[str]:
    command = [sys.executable, *launcher, str(PROGRAM), str(toy), json.dumps(values)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true"}
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )


def test_a_killed_run_ends_with_the_same_weights(
    judged: Judged, toy: Path, dam: Path, tmp_path: Path
) -> None:
    train_rem(judged, settings(dam, tmp_path / "whole"))
    given = settings(dam, tmp_path / "broken")
    for at in ("4", "8"):
        broken = program(toy=toy, values=SETTINGS | {"dam": str(dam), "out": str(given.out)})
        assert broken.stdout is not None
        for line in broken.stdout:
            if line.strip() == at:
                broken.send_signal(signal.SIGKILL)
                break
        broken.communicate()
        assert not (given.out / "manifest.json").exists()
    continued = train_rem(judged, given)
    assert continued.resumed_from == 6
    for name in ("pytorch_adapter.bin", "losses.jsonl", "losses.svg"):
        assert (given.out / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


@pytest.mark.parametrize("loss", ["contrast", "distil"])
def test_two_processes_are_one_with_the_double_batch(
    loss: str, judged: Judged, toy: Path, dam: Path, tmp_path: Path
) -> None:
    """Started by torchrun, as `accelerate launch` does on GPUs; on processors that starts one only."""
    teacher = str(write_teacher(tmp_path / "teacher.tsv", judged)) if loss == "distil" else None
    common = SETTINGS | {"dam": str(dam), "dropout": False, "steps": 4, "loss": loss, "teacher": teacher}
    one = train_rem(judged, RemSettings(**common | {"out": tmp_path / "one"}))
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    two = program(*launcher, toy=toy, values=common | {"batch_size": 4, "out": str(tmp_path / "two")})
    _, said = two.communicate()
    assert two.returncode == 0, said[-2000:]
    alone, together = (read_rem(tmp_path / name).tensors("pytorch_adapter.bin") for name in ("one", "two"))
    assert max(float((value - together[key]).abs().max()) for key, value in alone.items()) <= 1e-5
    lines = (tmp_path / "two" / "losses.jsonl").read_text().splitlines()
    assert [json.loads(line)["loss"] for line in lines] == pytest.approx(one.losses, abs=1e-5)


def test_a_finished_run_is_not_repeated(judged: Judged, dam: Path, tmp_path: Path) -> None:
    given = settings(dam, tmp_path / "rem", steps=3)
    assert not train_rem(judged, given).reused
    assert train_rem(judged, given).reused
    assert not train_rem(judged, given.model_copy(update={"seed": 1})).reused
    (tmp_path / "rem" / "pytorch_adapter.bin").write_bytes(b"")
    assert not train_rem(judged, given.model_copy(update={"seed": 1})).reused
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("mine")
    with pytest.raises(ModelError, match="is not replaced"):
        train_rem(judged, settings(dam, tmp_path / "mine"))


def objective(judged: Judged, dam: Path, size: int = 40, **values: Any) -> Contrastive:
    ranker: Any = assemble(dam)
    examples = read_examples(judged, None, ranker.tokens, Limits())
    batches = Batches(examples, size, 3, 7)
    given = RemSettings(dam=str(dam), **values)
    return Contrastive(ranker, {}, batches, given, "fp32", Processes("cpu"))


def test_the_contrastive_loss_is_the_formula(judged: Judged, dam: Path) -> None:
    found = objective(judged, dam, inv_temperature=0.5)
    batch = found.parts(1)[0]
    queries, corpus = list(judged.queries.values()), list(judged.documents())
    numbers = [*batch.positives, *batch.negatives.ravel()]
    q = found.module.encode_queries([queries[number] for number in batch.queries], max_tokens=24)
    d = found.module.encode_documents([corpus[number].contents for number in numbers], max_tokens=128)
    scores = 0.5 * q.astype(np.float64) @ d.T.astype(np.float64)
    masked = 0
    for row, query in enumerate(batch.queries):
        relevant = judged.positives[list(judged.queries)[query]]
        for column, number in enumerate(numbers):
            if corpus[number].doc_id in relevant and column != row:
                scores[row, column] -= 10_000
                masked += 1
    assert masked >= 5  # queries of two documents, the other one's own query is in the batch too
    scores -= scores.max(1, keepdims=True)
    wanted = np.mean(np.log(np.exp(scores).sum(1)) - np.diag(scores))
    with torch.inference_mode():
        assert abs(float(found.loss(batch)) - wanted) <= 1e-4


def test_batches_follow_from_seed_and_step(judged: Judged, dam: Path) -> None:
    batches = objective(judged, dam, 8).batches
    epoch = [batches(step) for step in range(1, 6)]
    assert sorted(number for batch in epoch for number in batch.queries.tolist()) == list(range(40))
    again = objective(judged, dam, 8).batches(3)
    assert np.array_equal(again.queries, epoch[2].queries)
    assert np.array_equal(again.negatives, epoch[2].negatives)
    drawn = {
        batch.positives[place]
        for step in range(1, 60)
        if (batch := batches(step))
        for place, query in enumerate(batch.queries)
        if query == 0
    }
    assert drawn == {0, 10}
    for batch in epoch:
        for query, positive, negatives in zip(batch.queries, batch.positives, batch.negatives, strict=True):
            relevant = set(batches.examples.positives[query].tolist())
            assert positive in relevant
            assert len(set(negatives.tolist())) == 3
            assert not relevant & set(negatives.tolist())
    shares = [epoch[0].share(rank, 2) for rank in (0, 1)]
    assert np.array_equal(np.concatenate([s.negatives for s in shares]), epoch[0].negatives)
    with pytest.raises(DataError, match="40 queries can be trained on, a batch takes 41"):
        objective(judged, dam, 41)


def write_teacher(file: Path, judged: Judged) -> Path:
    """Score by the number of common words, as JSONL or TSV."""
    corpus = list(judged.documents())
    lines = []
    for query_id, text in judged.queries.items():
        for document in corpus:
            common = len(set(text.split()) & set(document.contents.replace(".", " ").split()))
            score = common + 2.0 * (document.doc_id in judged.positives[query_id])
            record = {"query-id": query_id, "corpus-id": document.doc_id, "score": score}
            tsv = f"{query_id}\t{document.doc_id}\t{score}"
            lines.append(json.dumps(record) if file.suffix == ".jsonl" else tsv)
    file.write_text("\n".join(lines) + "\n")
    return file


def test_distillation_reaches_the_teachers_margins(judged: Judged, dam: Path, tmp_path: Path) -> None:
    """The teacher is the DAM with a REM that the pupil does not know."""
    teacher: Any = assemble(dam)
    attach_fresh(teacher, design_of("parallel", 1), seed=8)
    generator = torch.Generator().manual_seed(1)
    for weight in teacher.parameters():
        if weight.requires_grad:
            torch.nn.init.normal_(weight, std=0.2, generator=generator)
    corpus = list(judged.documents())

    def margins(ranker: Any) -> tuple[np.ndarray, np.ndarray]:
        queries = ranker.encode_queries(list(judged.queries.values()), max_tokens=24)
        scores = queries @ ranker.encode_documents([d.contents for d in corpus], max_tokens=32).T
        return scores, np.diag(scores)[:, None] - scores

    scores, goals = margins(teacher)
    lines = [
        {"query-id": query_id, "corpus-id": document.doc_id, "score": float(scores[row, column])}
        for row, query_id in enumerate(judged.queries)
        for column, document in enumerate(corpus)
    ]
    file = tmp_path / "teacher.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    given = settings(
        dam,
        tmp_path / "rem",
        loss="distil",
        teacher=file,
        design="both",
        steps=200,
        learning_rate=1e-2,
        dropout=False,
        checkpoint_every=1000,
    )
    assert train_rem(judged, given).dropped == 0
    before, after = (np.mean((margins(assemble(dam, rem))[1] - goals) ** 2) for rem in (None, given.out))
    assert after < 0.1 * before


def answers(ranker: Any, judged: Judged) -> np.ndarray:
    texts = list(judged.queries.values())[:6]
    if ranker.ranker == "rerank":
        return ranker.score([(text, other) for text in texts for other in TEXTS])
    return ranker.encode_documents(TEXTS)


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("kind", ["unicoil", "splade", "colbert", "rerank"])
def test_the_other_rankers(
    kind: str, full: bool, judged: Judged, dam: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = []
    write = rem_module.write
    monkeypatch.setattr(rem_module, "write", lambda plan, *rest: (kept.append(plan), write(plan, *rest)))
    if kind == "rerank":  # what a random BERT can learn of pairs: one document is always the answer
        positives = dict.fromkeys(judged.queries, ("d0",))
        judged = replace(judged, positives=positives, fingerprint="always d0")
    given = settings(dam, tmp_path / "rem", ranker=kind, steps=40, learning_rate=1e-2, full=full)
    trained = train_rem(judged, given)
    assert trained.loss_end < 0.97 * trained.loss_start
    opened = assemble(*((given.out,) if full else (dam, given.out)), ranker=kind, merge=False)
    assert np.abs(answers(opened, judged) - answers(kept[0].ranker, judged)).max() <= 1e-6
    if not full:
        target = tiny_dam(tmp_path / "target", seed=4)
        second = settings(target, tmp_path / "second", ranker=kind, steps=2, rem=str(given.out))
        assert train_rem(judged, second).parameters == trained.parameters
        if kind == "rerank":  # its files do not say what they are for
            return
        with pytest.raises(ModelError, match="was made for the ranker"):
            assemble(dam, given.out, ranker="unicoil" if kind == "splade" else "splade")


@pytest.mark.parametrize("kind", ["dense", "unicoil", "splade", "colbert", "rerank"])
def test_files_have_the_names_and_sizes_of_the_published_ones(
    kind: str, judged: Judged, tmp_path: Path
) -> None:
    published = GOLDEN / "rems" / f"rem_{kind}_lora192-pa4" / "msmarco"
    given = settings(
        GOLDEN / "dams" / "dam_source",
        tmp_path,
        ranker=kind,
        design="both",
        rank=192,
        name="msmarco",
        steps=1,
        token_dim=16,
    )
    train_rem(judged, given)
    for file in sorted(path.name for path in published.iterdir()):
        if file.endswith(".json"):
            found, wanted = (json.loads((folder / file).read_text()) for folder in (given.out, published))
            assert found | {"config_id": ""} == wanted | {"config_id": ""}
        else:
            found, wanted = (
                torch.load(folder / file, weights_only=True) for folder in (given.out, published)
            )
            assert {key: value.shape for key, value in found.items()} == {
                key: value.shape for key, value in wanted.items()
            }


def test_splades_penalty_grows_over_the_first_epoch(judged: Judged, dam: Path) -> None:
    found = objective(judged, dam, 8)
    found.flops = 2.0
    queries, documents = torch.tensor([[1.0, 0.0], [1.0, 2.0]]), torch.tensor([[2.0, 0.0]])
    whole = 2.0 * (1 + 1 + 4)
    for step, share in ((1, 1 / 25), (4, 16 / 25), (5, 1), (9, 1)):
        assert float(found.penalty(step, queries, documents, documents)) == pytest.approx(whole * share)


def test_a_bare_backbone_has_no_head_for_splade(judged: Judged, tmp_path: Path) -> None:
    from hybridr.exporting.exporting import export
    from tiny import tiny_retriever

    folder = export(tiny_retriever(), tmp_path / "bare")
    with pytest.raises(ModelError, match="no masked-LM head"):
        train_rem(judged, settings(folder, tmp_path / "rem", ranker="splade"))


def test_queries_that_the_teacher_left_out_are_dropped(judged: Judged, dam: Path, tmp_path: Path) -> None:
    teacher = write_teacher(tmp_path / "teacher.tsv", judged)
    kept = [line for line in teacher.read_text().splitlines() if not line.startswith(("q1\t", "q2\td2\t"))]
    teacher.write_text("\n".join(kept))
    given = settings(dam, tmp_path / "rem", loss="distil", teacher=teacher, steps=1)
    trained = train_rem(judged, given)
    assert (trained.dropped, trained.queries) == (2, 38)
    teacher.write_text("q1\td5\t3.5\n")
    with pytest.raises(DataError, match="scores no query's relevant document and 3 others"):
        train_rem(judged, settings(dam, tmp_path / "other", loss="distil", teacher=teacher, steps=1))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("t.pkl", pickle.dumps({"q": {"d": 1.0}}), "a pickle is never opened"),
        ("t.tsv", pickle.dumps({"q": {"d": 1.0}}), "a pickle is never opened"),
        ("t.csv", b"q,d,1", "read from .jsonl or .tsv"),
        ("t.tsv", b"q\td\thigh\n", r"t.tsv:1: no query, document and score"),
        ("t.tsv", b"q d 1\nq d nan\n", r"t.tsv:2: the score of query 'q' is nan"),
        ("t.jsonl", b'{"query-id": "q", "score": 1}\n', r"t.jsonl:1: no query"),
    ],
)
def test_teachers_that_cannot_be_read(name: str, content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message):
        list(read_scores(tmp_path / name))


def test_settings_that_contradict_each_other(judged: Judged, dam: Path, tmp_path: Path) -> None:
    for values, message in (
        ({"full": True, "rem": "x"}, "--full trains all weights"),
        ({"loss": "distil"}, "--teacher"),
        ({"teacher": Path("x.tsv")}, "--teacher"),
        ({"ranker": "colbert", "similarity": "cosine"}, "for the dense ranker, not for colbert"),
        ({"ranker": "rerank", "loss": "distil", "teacher": Path("x.tsv")}, "by --loss contrast only"),
        ({"ranker": "rerank", "negatives_per_query": 0}, "--negatives-per-query 1 or more"),
        ({"negatives": tmp_path / "none.tsv"}, "there is no file"),
    ):
        with pytest.raises(SettingsError, match=message):
            train_rem(judged, settings(dam, tmp_path / "rem", **values))


def test_bm25_reads_postings_and_scores_as_rank_bm25(judged: Judged) -> None:
    from rank_bm25 import BM25Okapi

    texts = [document.contents for document in judged.documents()] + ["", "the of"]
    found = Bm25(texts)
    other = BM25Okapi([terms_of(text) or [""] for text in texts], k1=1.2, b=0.75)
    other.idf = found.idf
    for query in [*judged.queries.values(), "", "nowhere", "the"]:
        known = [term for term in terms_of(query) if term in found.idf]
        assert np.array_equal(found.scores(query), np.asarray(other.get_scores(known)))


def test_mined_negatives(judged: Judged, tmp_path: Path) -> None:
    mined = mine(judged, tmp_path, 5)
    assert (mined.queries, mined.documents, mined.shortest, mined.reused) == (40, 200, 5, False)
    lines = dict(line.split("\t") for line in mined.file.read_text().splitlines())
    corpus = list(judged.documents())
    index = Bm25([document.contents for document in corpus])
    for query_id, listed in lines.items():
        best = [corpus[int(place)].doc_id for place in index.search(judged.queries[query_id], 40)]
        assert listed.split() == [name for name in best if name not in judged.positives[query_id]][:5]
    assert mine(judged, tmp_path, 5).reused
    assert not mine(judged, tmp_path, 6).reused
    known = {document.doc_id: position for position, document in enumerate(corpus)}
    assert len(dict(read_negatives(mined.file, judged, known))) == 40


def test_broken_off_mining_goes_on(judged: Judged, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = mine(judged, tmp_path / "whole", 4).file.read_bytes()
    monkeypatch.setattr("hybridr.adaptation.judged.BATCH", 16)
    asked: list[str] = []

    def rank(queries: Any, k: int) -> dict[str, dict[str, float]]:
        if len(asked) == 16:
            raise KeyboardInterrupt
        asked.extend(query.query_id for query in queries)
        from hybridr.adaptation.judged import rank_here

        return rank_here(judged, lambda *_: None)(queries, k)

    with pytest.raises(KeyboardInterrupt):
        mine(judged, tmp_path / "broken", 4, rank=rank)
    part = next((tmp_path / "broken").glob(".negatives.part.*"))
    part.write_bytes(part.read_bytes() + b"q16\td1 d")
    assert mine(judged, tmp_path / "broken", 4).file.read_bytes() == whole


def files_of(folder: Path, qrels: str, negatives: str = "") -> tuple[Judged, Path]:
    for name, text in (
        ("qrels", qrels),
        ("negatives", negatives),
        ("queries", "q1\tone\nq2\ttwo\nq3\tthree\n"),
        ("corpus", "".join(f"d{i}\ttext {i}\n" for i in range(6))),
    ):
        (folder / f"{name}.tsv").write_text(text)
    names = (folder / f"{name}.tsv" for name in ("qrels", "queries", "corpus"))
    return read_judged_files(*names), folder / "negatives.tsv"


def test_the_files_of_ddr(tmp_path: Path) -> None:
    judged, _ = files_of(tmp_path, "q1 0 d1 1\nq1 0 d2 2\nq2 0 d3 0\nq3\t0\td4\t1\n")
    assert judged.queries == {"q1": "one", "q3": "three"}
    assert judged.positives == {"q1": ("d1", "d2"), "q3": ("d4",)}
    assert [document.text for document in judged.documents()] == [f"text {i}" for i in range(6)]
    assert judged.sample(1, 3).queries.keys() < judged.queries.keys()
    assert judged.sample(1, 3).fingerprint != judged.fingerprint
    assert judged.sample(2, 3) is judged


@pytest.mark.parametrize(
    ("qrels", "negatives", "message"),
    [
        ("q1 0 d1 1.5\n", "", "qrels.tsv:1: needed"),
        ("q1 0 d1 0\n", "", "no query has a document of grade 1"),
        ("q9 0 d1 1\n", "", "1 judged queries have no text, such as 'q9'"),
        ("q1 0 d9 1\n", "q1\td1\n", "lacks document 'd9', relevant to query 'q1'"),
        ("q1 0 d1 1\nq2 0 d2 1\n", "q1\td3 d4\n", "lacks 1 queries that the qrels have, such as 'q2'"),
        ("q1 0 d1 1\n", "q1\td3\nq3\td4\n", "query 'q3' is not in the qrels"),
        ("q1 0 d1 1\n", "q1\td3\nq1\td4\n", "query 'q1' comes for the second time"),
        ("q1 0 d1 1\n", "q1\td3 d1\n", "document 'd1' is a negative of query 'q1' and relevant"),
        ("q1 0 d1 1\n", "q1\td3 d8\n", "document 'd8', a negative of query 'q1', is not in the corpus"),
    ],
)
def test_labels_that_cannot_be_used(
    qrels: str, negatives: str, message: str, dam: Path, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match=message):  # noqa: PT012
        judged, file = files_of(tmp_path, qrels, negatives)
        train_rem(judged, settings(dam, tmp_path / "rem", negatives=file, batch_size=1))


def test_texts_that_are_missing(toy: Path, dam: Path, tmp_path: Path) -> None:
    folder = write_toy(tmp_path / "beir")
    lines = (folder / "corpus.jsonl").read_text().splitlines()
    lines[7] = json.dumps({"_id": "d7", "title": "", "text": " "})
    (folder / "corpus.jsonl").write_text("\n".join(lines))
    with pytest.raises(DataError, match="document 'd7', which is relevant to a query, has no text"):
        train_rem(read_judged_beir(folder), settings(dam, tmp_path / "rem"))
    (tmp_path / "broken.tsv").write_text("d1\ttext\tmore\n")
    with pytest.raises(DataError, match="broken.tsv:1: needed 'id<TAB>text'"):
        list(table_documents(tmp_path / "broken.tsv"))


def test_the_commands(toy: Path, dam: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import hybridr_cli

    common = ["--beir", str(toy), "--json"]
    assert hybridr_cli.main(["rem", "negatives", "--out", str(tmp_path / "n"), "--mined", "4", *common]) == 0
    mined = json.loads(capsys.readouterr().out)
    assert (mined["queries"], mined["documents"]) == (40, 160)
    train = [
        "rem",
        "train",
        "--dam",
        str(dam),
        "--out",
        str(tmp_path / "rem"),
        "--steps",
        "3",
        "--rank",
        "4",
        "--batch-size",
        "8",
        "--device",
        "cpu",
        "--similarity",
        "cosine",
    ]
    assert hybridr_cli.main([*train, "--negatives", mined["file"], *common]) == 0
    trained = json.loads(capsys.readouterr().out)
    assert (trained["kind"], trained["steps"], trained["queries"]) == ("rem", 3, 40)
    assert assemble(dam, tmp_path / "rem").similarity == "cosine"  # as it was trained
    assert hybridr_cli.main([*train, "--negatives", mined["file"], "--beir", str(toy)]) == 0
    shown = capsys.readouterr().out
    assert "done before" in shown
    assert f"--rem {tmp_path / 'rem'}" in shown
    assert hybridr_cli.main(train) == 2
    assert "--beir FOLDER" in capsys.readouterr().err
