from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from hybridr.encoders.export.exporting import export
from hybridr.encoders.opening import load_encoder
from hybridr.errors import DataError, ModelError, SettingsError
from hybridr.files.manifest import read_manifest
from hybridr.records import Document
from hybridr.training.adaptation import AdaptResult, adapt
from hybridr.training.runs import STATE_FILE
from hybridr.training.settings import AdaptSettings
from hybridr.training.torch_models import read_retriever
from support.tiny import tiny_corpus, tiny_retriever


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export(tiny_retriever(), tmp_path_factory.mktemp("base") / "tiny")


def chosen(base: Path | str, out: Path, **changes: object) -> AdaptSettings:
    values: dict[str, object] = {
        "out": out,
        "base": str(base),
        "steps": 30,
        "batch_size": 16,
        "max_tokens": 64,
        "learning_rate": 2e-3,
        "strength": 0.3,
        "objective_settings": {"held_out": 40, "checkpoint_every": 10, "span_tokens": 24},
    }
    return AdaptSettings(**(values | changes))


@pytest.fixture
def settings(base: Path, tmp_path: Path) -> Callable[..., AdaptSettings]:
    return lambda **changes: chosen(**({"base": base, "out": tmp_path / "adapted"} | changes))


@pytest.fixture(scope="module")
def whole(base: Path, tmp_path_factory: pytest.TempPathFactory) -> AdaptResult:
    """Give what came of 200 documents; nobody changes its folder."""
    return adapt(tiny_corpus(200), chosen(base, tmp_path_factory.mktemp("whole") / "adapted"))


@pytest.fixture
def first(whole: AdaptResult, tmp_path: Path) -> AdaptResult:
    """Give it as if it had been trained in this test's folder."""
    return replace(whole, folder=shutil.copytree(whole.folder, tmp_path / "adapted"))


def weights_of(folder: Path) -> dict[str, torch.Tensor]:
    return read_retriever(folder).backbone.state_dict()


def same(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def test_training_is_real(whole: AdaptResult, base: Path) -> None:
    found = whole
    assert isinstance(found, AdaptResult)
    assert found.steps == len(found.losses) == 30
    assert found.loss_end < found.loss_start - 0.05
    assert found.unseen_loss_end < found.unseen_loss_start - 0.01  # fixed spans: no noise
    assert found.documents == 160
    assert found.resumed_from == 0
    logged = [json.loads(line) for line in (found.folder / "losses.jsonl").read_text().splitlines()]
    assert [entry["step"] for entry in logged] == list(range(1, 31))
    assert [entry["loss"] for entry in logged] == list(found.losses)
    before, after = weights_of(base), weights_of(found.folder)
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed == {name for name in before if name.endswith(("self.query.weight", "self.value.weight"))}


def test_the_result_is_an_encoder_with_its_history(whole: AdaptResult, base: Path) -> None:
    found = whole
    encoder = load_encoder(found.folder)
    assert encoder.fingerprint != load_encoder(base).fingerprint
    assert sorted(path.name for path in found.folder.parent.iterdir()) == ["adapted"]
    assert not (found.folder / ".training").exists()
    manifest = read_manifest(found.folder) or {}
    assert manifest["adaptation"]["training"]["losses"] == list(found.losses)
    assert manifest["adaptation"]["gate"]["rows"][0]["old"] == found.gate.rows[0].old
    assert manifest["parity"]["ndcg"]["documents"] == found.gate.held_out
    assert manifest["encoder"]["base"] == "tiny"
    assert manifest["parents"] == [load_encoder(base).fingerprint]
    card = (found.folder / "README.md").read_text()
    assert "30 steps of `span`" in card
    assert "hybrid top 10 kept" in card
    corpus_words = {word for document in tiny_corpus(200) for word in document.text.split()}
    recorded = card + (found.folder / "manifest.json").read_text()
    assert not [word for word in corpus_words if f" {word} " in recorded]


def test_a_killed_run_goes_on_and_ends_with_the_same_weights(
    settings: Callable[..., AdaptSettings], whole: AdaptResult, tmp_path: Path
) -> None:
    def kill(stage: str, done: int, total: int | None = None, note: str = "") -> None:
        if stage == "train" and done == 17:
            raise KeyboardInterrupt

    stopped = settings(out=tmp_path / "stopped")
    with pytest.raises(KeyboardInterrupt):
        adapt(tiny_corpus(200), stopped, progress=kill)
    assert not (stopped.out / "manifest.json").exists()
    steps: list[int] = []
    resumed = adapt(
        tiny_corpus(200),
        stopped,
        progress=lambda stage, done, *_: steps.append(done) if stage == "train" else None,
    )
    assert steps == list(range(11, 31))
    assert resumed.resumed_from == 10
    assert resumed.losses == whole.losses
    assert same(weights_of(resumed.folder), weights_of(whole.folder))
    log = [json.loads(line)["step"] for line in (resumed.folder / "losses.jsonl").read_text().splitlines()]
    assert log == list(range(1, 31))


def test_a_finished_run_returns_at_once(settings: Callable[..., AdaptSettings], first: AdaptResult) -> None:
    written = (first.folder / "manifest.json").stat().st_mtime_ns
    stages: set[str] = set()
    again = adapt(tiny_corpus(200)[::-1], settings(), progress=lambda stage, *_: stages.add(stage))
    assert again.reused
    assert stages == {"read"}
    assert again.losses == first.losses
    assert again.gate == first.gate
    assert (first.folder / "manifest.json").stat().st_mtime_ns == written


def test_a_damaged_result_is_made_again(settings: Callable[..., AdaptSettings], first: AdaptResult) -> None:
    fingerprint = load_encoder(first.folder).fingerprint
    (first.folder / "onnx" / "model.onnx").write_bytes(b"")
    again = adapt(tiny_corpus(200), settings())
    assert not again.reused
    assert load_encoder(again.folder).fingerprint == fingerprint


@pytest.mark.parametrize(
    ("change", "trains"),
    [({"steps": 31}, True), ({"seed": 2}, True), ({"strength": 0.5}, False), ({"force": True}, False)],
)
def test_other_settings_start_anew_but_train_only_when_needed(
    settings: Callable[..., AdaptSettings], first: AdaptResult, change: dict[str, object], trains: bool
) -> None:
    stages: list[str] = []
    again = adapt(tiny_corpus(200), settings(**change), progress=lambda stage, *_: stages.append(stage))
    assert not again.reused
    assert ("train" in stages) == trains
    assert "export" in stages
    assert (again.losses == first.losses) is not trains


def test_other_documents_start_anew(settings: Callable[..., AdaptSettings], first: AdaptResult) -> None:
    changed = [*tiny_corpus(199), Document("d199", "kolan misot tudur relan balan. " * 6)]
    again = adapt(changed, settings())
    assert not again.reused
    assert again.losses != first.losses


def test_too_few_documents_are_a_clear_error(settings: Callable[..., AdaptSettings]) -> None:
    with pytest.raises(DataError, match="39 documents hold 39 different texts; 40 are needed") as caught:
        adapt(tiny_corpus(39), settings())
    assert "unadapted encoder" in str(caught.value.hint)
    short = [Document(str(i), f"kolan {'misot ' * (i % 8)} {i}") for i in range(100)]
    with pytest.raises(DataError, match="0 documents have 16 tokens, enough for two spans; 32 are needed"):
        adapt(short, settings())


def test_fifty_documents_and_code_are_adapted(settings: Callable[..., AdaptSettings]) -> None:
    assert adapt(tiny_corpus(50), settings(steps=2)).documents == 40  # the others are for the gate
    code = [
        Document(f"{i}.py", f"def f{i}(x): return x[{i}] + g(x, {i}) * [y for y in x if y]")
        for i in range(60)
    ]
    assert adapt(code, settings(steps=2)).documents == 48


def test_repeated_documents_count_once(settings: Callable[..., AdaptSettings]) -> None:
    copies = [Document(f"{one.doc_id} again", one.text, one.title) for one in tiny_corpus(39)]
    with pytest.raises(DataError, match="78 documents hold 39 different texts; 40 are needed"):
        adapt([*tiny_corpus(39), *copies], settings())


def test_another_language_is_refused_until_asked_for(
    settings: Callable[..., AdaptSettings], monkeypatch: pytest.MonkeyPatch
) -> None:
    german = [
        Document(str(i), f"Das ist nicht der {i}. Text und die Sprache ist eine andere, wie man hier sieht.")
        for i in range(100)
    ]
    monkeypatch.setattr("hybridr.training.starting_points.minilm", lambda progress: settings().base)
    with pytest.raises(DataError, match="look like language 'de'; the packaged model reads 'en'") as caught:
        adapt(german, settings(base="minilm"))
    assert "--yes" in str(caught.value.hint)
    assert adapt(german, settings(base="minilm", any_language=True)).language == "de"
    assert adapt(german, settings()).language == "de"


def test_masked_lm_training_of_a_retriever_is_refused(settings: Callable[..., AdaptSettings]) -> None:
    with pytest.raises(SettingsError, match="would undo what .* has learnt of relevance") as caught:
        adapt(tiny_corpus(200), settings(objective="mlm"))
    assert "--rem" in str(caught.value.hint)


def test_a_loss_that_is_not_finite_stops_with_its_step(
    settings: Callable[..., AdaptSettings], tmp_path: Path
) -> None:
    retriever = tiny_retriever()
    with torch.no_grad():
        retriever.backbone.embeddings.word_embeddings.weight[30:] = float("nan")
    broken = export_weights(retriever, tmp_path / "broken")
    with pytest.raises(ModelError, match="the loss is nan at step 1") as caught:
        adapt(tiny_corpus(200), settings(base=str(broken)))
    assert "learning_rate" in str(caught.value.hint)


def export_weights(retriever: object, folder: Path) -> Path:
    from hybridr.encoders.export.model_files import write_model

    folder.mkdir()
    write_model(retriever, folder)
    return folder


def test_a_foreign_folder_is_refused_before_anything_is_read(
    settings: Callable[..., AdaptSettings], tmp_path: Path
) -> None:
    (tmp_path / "adapted").mkdir()
    (tmp_path / "adapted" / "thesis.txt").write_text("only copy")

    def unread() -> None:
        raise AssertionError("documents were read")
        yield

    with pytest.raises(ModelError, match="is not replaced"):
        adapt(unread(), settings())


def test_the_query_log_must_hold_queries(settings: Callable[..., AdaptSettings], tmp_path: Path) -> None:
    log = tmp_path / "queries.txt"
    with pytest.raises(DataError, match="cannot be read"):
        adapt(tiny_corpus(200), settings(queries=log))
    log.write_text("\n\n")
    with pytest.raises(DataError, match="holds no queries"):
        adapt(tiny_corpus(200), settings(queries=log))
    log.write_text("kolan misot\nbalan\nbalan\n" * 3)
    found = adapt(tiny_corpus(200), settings(queries=log))
    assert found.gate.rows[-1].queries == 2
    manifest = (found.folder / "manifest.json").read_text()
    assert "kolan misot" not in manifest
    assert json.loads(manifest)["adaptation"]["gate"]["query_log"] == 2


def test_wrong_settings_are_named() -> None:
    with pytest.raises(SettingsError, match="strength"):
        AdaptSettings(strength=1.5)
    with pytest.raises(SettingsError, match="did you mean 'steps'"):
        AdaptSettings(step=3)


def test_a_damaged_checkpoint_is_not_used(settings: Callable[..., AdaptSettings]) -> None:
    chosen = settings()

    def kill(stage: str, done: int, total: int | None = None, note: str = "") -> None:
        if stage == "train" and done == 25:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        adapt(tiny_corpus(200), chosen, progress=kill)
    state = chosen.out / ".training" / STATE_FILE
    state.write_bytes(state.read_bytes()[:-200])
    assert adapt(tiny_corpus(200), chosen).resumed_from == 0


def test_a_changed_base_starts_anew(
    settings: Callable[..., AdaptSettings], first: AdaptResult, tmp_path: Path
) -> None:
    other = export(tiny_retriever(seed=5), tmp_path / "other")
    again = adapt(tiny_corpus(200), settings(base=str(other)))
    assert again.losses != first.losses
    (other / "model.safetensors").write_bytes(b"short")
    with pytest.raises(ModelError, match="is damaged: model.safetensors"):
        adapt(tiny_corpus(200), settings(base=str(other)))
