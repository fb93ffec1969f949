"""`adapt`: a retriever with a second one, or a DAM with a REM, to an encoder folder."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from hybridr import AdaptResult, Document, load_encoder
from hybridr.encoders.export import exporting
from hybridr.encoders.export.exporting import export
from hybridr.errors import DataError, ModelError, SettingsError
from hybridr.files.formats import write_beir
from hybridr.files.local import read_manifest
from hybridr.records import Query, silent
from hybridr.training.adaptation import adapt
from hybridr.training.judged import read_judged_beir
from hybridr.training.rankers import assemble, interpolated_encoder, joined_encoder
from hybridr.training.rem import train_rem
from hybridr.training.settings import AdaptSettings
from support.rem_training import rem_settings
from support.tiny import tiny_corpus, tiny_retriever

pytestmark = pytest.mark.usefixtures("one_thread")

TEXTS = [document.contents for document in tiny_corpus(30, seed=4)]


def unread() -> Iterator[Document]:
    raise AssertionError("documents were read")
    yield


def trained_rem(dam: Path, folder: Path, design: str) -> Path:
    documents = tiny_corpus(60)
    queries = [Query(f"q{i}", " ".join(documents[i].text.split()[:6])) for i in range(40)]
    qrels = {query.query_id: {documents[i].doc_id: 1} for i, query in enumerate(queries)}
    write_beir(folder / "beir", documents, queries, qrels)
    judged = read_judged_beir(folder / "beir", "test")
    small = {"rank": 4, "steps": 12, "batch_size": 8, "mined": 4, "negatives_per_query": 1}
    settings = rem_settings(dam, folder / f"rem-{design}", design=design, learning_rate=1e-2, **small)
    return train_rem(judged, settings).folder


@pytest.fixture(scope="module")
def rem(dam: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained_rem(dam, tmp_path_factory.mktemp("rem"), "lora")


def settings_of(**changes: object) -> AdaptSettings:
    own = {"held_out": 40, "checkpoint_every": 4, "precision": "fp32"}
    values: dict[str, object] = {"steps": 12, "batch_size": 16, "learning_rate": 3e-3, "max_tokens": 64}
    return AdaptSettings(**(values | {"objective_settings": own, "force": True} | changes))


@pytest.fixture
def settings(dam: Path, rem: Path, tmp_path: Path) -> Callable[..., AdaptSettings]:
    return partial(settings_of, base=str(dam), rem=str(rem), out=tmp_path / "adapted")


@pytest.fixture(scope="module")
def original(dam: Path, rem: Path, one_thread: None, tmp_path_factory: pytest.TempPathFactory) -> AdaptResult:
    out = tmp_path_factory.mktemp("original") / "adapted"
    return adapt(tiny_corpus(200), settings_of(base=str(dam), rem=str(rem), out=out))


@pytest.fixture
def adapted(original: AdaptResult, tmp_path: Path) -> AdaptResult:
    """Give a copy of what the usual settings make, where they would make it."""
    return replace(original, folder=shutil.copytree(original.folder, tmp_path / "adapted"))


def test_the_fitted_dam_and_the_rem_become_one_encoder(adapted, dam, rem, settings):
    assert adapted.objective == "mlm"
    assert adapted.promoted
    assert (adapted.steps, adapted.documents) == (12, 160)
    assert adapted.unseen_loss_end < adapted.unseen_loss_start
    encoder = load_encoder(adapted.folder)
    ranker = assemble(adapted.folder / "dam", rem)
    np.testing.assert_allclose(
        encoder.encode_documents(TEXTS), ranker.encode_documents(TEXTS, max_tokens=64), atol=1e-4
    )
    source = assemble(dam, rem).encode_documents(TEXTS, max_tokens=64)
    assert np.abs(encoder.encode_documents(TEXTS) - source).max() > 1e-2
    manifest = read_manifest(adapted.folder) or {}
    assert manifest["assembly"] == {"dam": "tiny", "rem": "rem-lora"}
    assert manifest["adaptation"]["settings"]["strength"] == 1
    assert "mlm" in (adapted.folder / "README.md").read_text()
    assert not (adapted.folder / ".training").exists()


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_coco_fits_the_vector_that_ranks(settings, dam, rem, pooling):
    asked = settings(objective="coco", pooling=pooling)
    found = adapt(tiny_corpus(200), asked)
    assert (found.objective, found.documents, found.steps) == ("coco", 160, 12)
    assert {row.name for row in found.gate.rows}
    assert found.unseen_loss_end < found.unseen_loss_start
    manifest = read_manifest(found.folder) or {}
    own = read_manifest(found.folder / "dam") or {}
    assert own["settings"]["pooling"] == manifest["encoder"]["pooling"] == pooling
    assert manifest["parity"]["max_abs_difference"] < 1e-4
    assert "12 steps of `coco` (COCO, Yu et al. 2022, COCO-DR)" in (found.folder / "README.md").read_text()
    ranker = assemble(found.folder / "dam", rem, pooling=pooling)
    np.testing.assert_allclose(
        load_encoder(found.folder).encode_documents(TEXTS),
        ranker.encode_documents(TEXTS, max_tokens=64),
        atol=1e-4,
    )
    assert adapt(tiny_corpus(200), asked).reused


@pytest.mark.parametrize("objective", ["coco", "mlm"])
def test_training_of_a_retriever_is_refused(settings, tmp_path, objective):
    retriever = export(tiny_retriever(), tmp_path / "retriever")
    with pytest.raises(SettingsError, match=f"{objective} training would undo what") as caught:
        adapt(tiny_corpus(200), settings(base=str(retriever), rem=None, objective=objective))
    assert "a DAM as --base and a --rem" in str(caught.value.hint)


def test_a_published_encoder_is_exported_first(settings: Callable[..., AdaptSettings]) -> None:
    for name in ("OpenMatch/cocodr-base-msmarco", "Dense-bert_base-contrast-msmarco"):
        with pytest.raises(SettingsError, match="without the files of a retriever") as caught:
            adapt(tiny_corpus(50), settings(base=name, rem=None))
        assert f"hybridr export --dam {name}" in str(caught.value.hint)


def test_a_finished_run_returns_and_another_strength_needs_no_training(adapted, settings, dam, rem):
    stages: set[str] = set()

    def note(stage: str, done: int, total: int | None = None, note: str = "") -> None:
        stages.add(stage)

    again = adapt(tiny_corpus(200)[::-1], settings(), progress=note)
    assert again.reused
    assert again.losses == adapted.losses
    assert stages == {"read"}
    none = adapt(tiny_corpus(200), settings(strength=0), progress=note)
    assert not none.reused
    assert "train" not in stages
    np.testing.assert_allclose(
        load_encoder(none.folder).encode_documents(TEXTS),
        assemble(dam, rem).encode_documents(TEXTS, max_tokens=64),
        atol=1e-4,
    )
    assert (none.folder / "dam" / "model.safetensors").is_file()


def test_an_int8_export_keeps_the_fitted_dam(adapted: AdaptResult) -> None:
    before = load_encoder(adapted.folder).fingerprint
    export(adapted.folder, adapted.folder, precision="int8")
    assert load_encoder(adapted.folder).fingerprint == before
    assert (adapted.folder / "dam" / "manifest.json").is_file()


@pytest.mark.parametrize("gate", ["whole", "damaged"])
def test_a_stopped_run_goes_on_without_reading_again(settings, adapted, tmp_path, gate):
    file = tmp_path / "corpus.jsonl"
    write_beir(tmp_path, tiny_corpus(200), [], {})
    from hybridr.relevance.corpus import CorpusFile

    stopped = settings(out=tmp_path / "stopped")

    def stop(stage: str, done: int, total: int | None = None, note: str = "") -> None:
        if stage == "train" and done == 6:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        adapt(CorpusFile(file), stopped, progress=stop)
    kept = [path for path in stopped.out.rglob("*") if path.is_file() and path.suffix in (".jsonl", ".bin")]
    texts = [path for path in kept if path.name != "losses.jsonl"]
    assert texts
    assert all(stat.S_IMODE(os.stat(path).st_mode) == 0o600 for path in texts)
    stages: set[str] = set()
    if gate == "damaged":
        next(path for path in texts if path.suffix == ".jsonl").write_text('["a", "b')
    resumed = adapt(CorpusFile(file), stopped, progress=lambda stage, *_: stages.add(stage) or None)
    assert ("read" in stages) is (gate == "damaged")
    assert resumed.resumed_from == 4
    np.testing.assert_array_equal(
        load_encoder(resumed.folder).encode_documents(TEXTS),
        load_encoder(adapted.folder).encode_documents(TEXTS),
    )


def test_the_gate_compares_with_source_dam_and_rem(settings, dam, rem):
    wild = adapt(tiny_corpus(200), settings(force=False, learning_rate=0.5, steps=8))
    assert not wild.promoted
    assert wild.gate.reasons
    np.testing.assert_allclose(
        load_encoder(wild.folder).encode_documents(TEXTS),
        assemble(dam, rem).encode_documents(TEXTS, max_tokens=64),
        atol=1e-4,
    )


def test_what_the_rem_was_trained_with_counts_before_the_dams_name(settings, dam, rem, tmp_path):
    published = tmp_path / "DAM-bert_base-mlm-dureader"  # by its name: Chinese, cosine
    shutil.copytree(dam, published)
    found = adapt(tiny_corpus(200), settings(base=str(published), steps=4, any_language=True))
    assert assemble(published, rem).similarity == "ip"
    assert load_encoder(found.folder).similarity == "ip"
    bare = tmp_path / "unknown-rem"
    shutil.copytree(rem, bare)
    (bare / "manifest.json").unlink()
    named = settings(base=str(published), rem=str(bare), steps=4, any_language=True, out=tmp_path / "named")
    assert load_encoder(adapt(tiny_corpus(200), named).folder).similarity == "cosine"


def test_a_parallel_adapter_stays_a_part_of_its_own(settings, dam, tmp_path):
    rem = trained_rem(dam, tmp_path, "both")
    found = adapt(tiny_corpus(200), settings(rem=str(rem), steps=4))
    assert not (found.folder / "model.safetensors").exists()
    np.testing.assert_allclose(
        load_encoder(found.folder).encode_documents(TEXTS),
        assemble(found.folder / "dam", rem).encode_documents(TEXTS, max_tokens=64),
        atol=1e-4,
    )


def test_half_the_strength_is_half_way(settings: Callable[..., AdaptSettings], adapted: AdaptResult) -> None:
    chosen = settings()
    old = joined_encoder(chosen.base, chosen, silent)
    new = joined_encoder(adapted.folder / "dam", chosen, silent)
    half = dict(interpolated_encoder(old, new, 0.5).backbone.named_parameters())
    before, after = dict(old.backbone.named_parameters()), dict(new.backbone.named_parameters())
    for name, weight in half.items():
        torch.testing.assert_close(weight, (before[name] + after[name]) / 2)


@pytest.mark.parametrize("kind", ["adapter", "no rem", "no base", "retriever", "few"])
def test_what_cannot_work_is_said_before_training(settings, kind, tmp_path):
    if kind == "adapter":
        with pytest.raises(SettingsError, match="--objective coco or mlm, not ensemble"):
            adapt(unread(), settings(objective="ensemble"))
    elif kind == "no rem":
        for base in (settings().base, "DAM-bert_base-mlm-msmarco"):
            with pytest.raises(SettingsError, match="is not a retriever|without the files") as caught:
                adapt(unread(), settings(base=base, rem=None))
            assert "--rem" in str(caught.value.hint)
    elif kind == "no base":
        with pytest.raises(ModelError, match="there is no DAM or REM nowhere"):
            adapt(unread(), settings(base="nowhere"))
    elif kind == "retriever":
        other = export(tiny_retriever(), tmp_path / "retriever")
        (other / "config.json").write_text((other / "config.json").read_text().replace('"bert"', '"gpt2"'))
        with pytest.raises(ModelError, match="of the kind 'gpt2'"):
            adapt(unread(), settings(base=str(other)))
    else:
        with pytest.raises(DataError, match="20 different texts; 40 are needed"):
            adapt(tiny_corpus(20), settings())


@pytest.fixture
def pair(tmp_path: Path) -> Callable[..., AdaptSettings]:
    """Settings of two tiny retrievers."""
    base, second = (export(tiny_retriever(seed=seed), tmp_path / f"tiny{seed}") for seed in (1, 5))

    def make(**changes: object) -> AdaptSettings:
        own = {"second": str(second), "held_out": 20}
        values = {"out": tmp_path / "joined", "base": str(base), "objective_settings": own, "force": True}
        return AdaptSettings(**(values | changes))

    return make


def test_the_result_is_an_encoder_with_its_history(pair: Callable[..., AdaptSettings]) -> None:
    found = adapt(tiny_corpus(120), pair())
    assert found.objective == "ensemble"
    manifest = read_manifest(found.folder) or {}
    assert manifest["adaptation"]["gate"]["rows"][0]["old"] == found.gate.rows[0].old
    assert manifest["parity"]["ndcg"]["documents"] == min(found.gate.held_out, exporting.TEXTS["numpy"])
    card = (found.folder / "README.md").read_text()
    assert "hybrid top 10 kept" in card
    corpus_words = {word for document in tiny_corpus(120) for word in document.text.split()}
    recorded = card + (found.folder / "manifest.json").read_text()
    assert not [word for word in corpus_words if f" {word} " in recorded]


def test_a_finished_run_returns_at_once_and_a_damaged_one_is_made_again(pair):
    first = adapt(tiny_corpus(120), pair())
    stages: set[str] = set()
    again = adapt(tiny_corpus(120)[::-1], pair(), progress=lambda stage, *_: stages.add(stage) or None)
    assert again.reused
    assert stages == {"read"}
    assert again.gate == first.gate
    assert not adapt([*tiny_corpus(119), Document("d", "kolan misot tudur " * 6)], pair()).reused
    first = adapt(tiny_corpus(120), pair())
    (first.folder / "onnx" / "model.onnx").write_bytes(b"")
    assert not adapt(tiny_corpus(120), pair()).reused
    other = adapt(tiny_corpus(120), pair(strength=0.5))
    assert not other.reused
    assert other.unseen_loss_end != first.unseen_loss_end
    recorded = (read_manifest(other.folder) or {})["adaptation"]
    assert (recorded["settings"]["strength"], recorded["training"]["dim"]) == (0.5, 32)


def test_repeated_documents_count_once(pair: Callable[..., AdaptSettings]) -> None:
    copies = [Document(f"{doc_id} again", text, title) for doc_id, text, title in tiny_corpus(39)]
    with pytest.raises(DataError, match="78 documents hold 39 different texts; 40 are needed") as caught:
        adapt([*tiny_corpus(39), *copies], pair())
    assert "unadapted encoder" in str(caught.value.hint)


def test_another_language_is_refused_until_asked_for(pair: Callable[..., AdaptSettings], monkeypatch) -> None:
    german = [
        Document(str(i), f"Das ist nicht der {i}. Text und die Sprache ist eine andere, wie man hier sieht.")
        for i in range(100)
    ]
    monkeypatch.setattr("hybridr.encoders.export.exporting.minilm", lambda progress: Path(pair().base))
    with pytest.raises(DataError, match="look like language 'de'; the packaged model reads 'en'") as caught:
        adapt(german, pair(base="minilm"))
    assert "--yes" in str(caught.value.hint)
    assert adapt(german, pair(base="minilm", any_language=True)).language == "de"
    assert adapt(german, pair()).language == "de"


def test_a_foreign_folder_is_refused_before_anything_is_read(pair: Callable[..., AdaptSettings]) -> None:
    pair().out.mkdir()
    (pair().out / "thesis.txt").write_text("only copy")
    with pytest.raises(ModelError, match="is not replaced"):
        adapt(unread(), pair())


def test_the_query_log_must_hold_queries(pair: Callable[..., AdaptSettings], tmp_path: Path) -> None:
    log = tmp_path / "queries.txt"
    with pytest.raises(DataError, match="cannot be read"):
        adapt(tiny_corpus(120), pair(queries=log))
    log.write_text("\n\n")
    with pytest.raises(DataError, match="holds no queries"):
        adapt(tiny_corpus(120), pair(queries=log))
    log.write_text("kolan misot\nbalan\nbalan\n" * 3)
    found = adapt(tiny_corpus(120), pair(queries=log))
    assert found.gate.rows[-1].queries == 2
    assert "kolan misot" not in (found.folder / "manifest.json").read_text()
    assert (read_manifest(found.folder) or {})["adaptation"]["gate"]["query_log"] == 2


def test_a_damaged_base_is_refused(pair: Callable[..., AdaptSettings]) -> None:
    (Path(pair().base) / "model.safetensors").write_bytes(b"short")
    with pytest.raises(ModelError, match=r"is damaged: model.safetensors"):
        adapt(tiny_corpus(120), pair())


def test_wrong_settings_are_named() -> None:
    with pytest.raises(SettingsError, match="strength"):
        AdaptSettings(strength=1.5)
    with pytest.raises(SettingsError, match="did you mean 'steps'"):
        AdaptSettings(step=3)
