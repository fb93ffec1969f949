"""`hybridr deploy --way local` on a real node: ml-commons runs the encoder inside the cluster."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import hybridr_cli
from hybridr import Search, load_encoder, reindex
from hybridr.assembly.assembly import assemble
from hybridr.cluster.connection import Cluster, path_of
from hybridr.cluster.destinations import resolve
from hybridr.deploying import local_models
from hybridr.deploying.deploying import deploy, plan_deployment, undeploy
from hybridr.deploying.remote_models import ML
from hybridr.deploying.settings import DeploySettings
from hybridr.encoding.folder import OnnxEncoder
from hybridr.errors import ClusterError, FingerprintMismatch, ModelError, NotFound
from hybridr.exporting.exporting import export
from hybridr.reindexing.settings import ReindexSettings
from hybridr.search.settings import SearchSettings
from support.corpus import fill_index, text_number
from support.places import DDR
from support.tiny import tiny_family, tiny_retriever, tiny_texts

pytestmark = [pytest.mark.node, pytest.mark.ml]
INDEX = "cellar"
TEXT = text_number(7)
DEFAULTS = SearchSettings()
LOCAL = DeploySettings(way="local", set_cluster_settings=True)


@pytest.fixture(scope="module", autouse=True)
def leave_no_index(ml_cluster: Cluster) -> Iterator[None]:
    yield
    for info in ml_cluster.indices(f"{INDEX}*"):
        ml_cluster.request("DELETE", path_of(info.name))


@pytest.fixture(scope="module")
def cellar(ml_cluster: Cluster, minilm_encoder_folder: Path) -> Cluster:
    fill_index(ml_cluster, INDEX, 60)
    reindex(ml_cluster, INDEX, minilm_encoder_folder)
    return ml_cluster


@pytest.fixture
def allowed(ml_cluster: Cluster) -> Cluster:
    ml_cluster.request("PUT", "/_cluster/settings", {"persistent": local_models.NEEDED_SETTINGS})
    return ml_cluster


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export(tiny_retriever(query="bal bas: "), tmp_path_factory.mktemp("tiny") / "encoder")


def held(cluster: Cluster) -> dict[str, set[str]]:
    """Everything of models and pipelines that a cluster holds."""
    cluster.refresh(".plugins-ml-model*")
    found = {
        kind: {
            hit["_id"]
            for hit in cluster.request(
                "POST", f"{ML}/{kind}/_search", {"query": {"match_all": {}}, "size": 1000}
            )["hits"]["hits"]
        }
        for kind in ("models", "model_groups")
    }
    try:
        return found | {"pipelines": set(cluster.request("GET", "/_search/pipeline"))}
    except NotFound:  # there is none
        return found | {"pipelines": set()}


def ask(cluster: Cluster, index: str, query: dict[str, Any]) -> dict[str, Any]:
    """Search as a client does, by the default pipeline."""
    found: dict[str, Any] = cluster.request("POST", path_of(index, "_search"), {"query": query})
    return found


def ids(answer: dict[str, Any]) -> list[str]:
    return [hit["_id"] for hit in answer["hits"]["hits"]]


def test_settings_are_asked_for_and_a_dry_run_sends_nothing(
    cellar: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    cellar.request("PUT", "/_cluster/settings", {"persistent": dict.fromkeys(local_models.NEEDED_SETTINGS)})
    before = (cellar.index_info(resolve(cellar, INDEX).name), cellar.request("GET", "/_cluster/settings"))
    with pytest.raises(ClusterError, match="does not let a model run inside it") as refused:
        deploy(cellar, INDEX, DeploySettings(way="local"), DEFAULTS)
    assert "allow_registering_model_via_local_file" in (refused.value.hint or "")
    command = ["deploy", INDEX, "--way", "local", "--url", cellar.url, "--dry-run"]
    assert hybridr_cli.main([*command, "--json"]) == 0
    requests = json.loads(capsys.readouterr().out)["requests"]
    assert requests[0]["body"]["persistent"] == local_models.NEEDED_SETTINGS
    meta, *parts = [request for request in requests if "/models/" in request["path"]]
    assert meta["body"]["total_chunks"] == len(parts) - 1 == 10
    assert hybridr_cli.main(command) == 0
    assert "nothing was sent" in capsys.readouterr().out
    info = cellar.index_info(resolve(cellar, INDEX).name)
    assert (info, cellar.request("GET", "/_cluster/settings")) == before


def test_text_in_a_query_ranks_as_our_own_search_and_nothing_is_left(
    cellar: Cluster, minilm_encoder_folder: Path
) -> None:
    cellar.request("PUT", "/_cluster/settings", {"persistent": local_models.NEEDED_SETTINGS})
    before = held(cellar)
    done = deploy(cellar, INDEX, LOCAL, DEFAULTS)
    deployed = held(cellar)
    assert done.changed
    assert not deploy(cellar, INDEX, LOCAL, DEFAULTS).changed
    assert held(cellar) == deployed != before
    plain = SearchSettings(fusion="pipeline")
    search = Search(cellar, INDEX, load_encoder(minilm_encoder_folder), settings=plain)
    body = json.loads(done.example)
    [match, neural] = body["query"]["hybrid"]["queries"]
    for text in (TEXT, "a ribbon of velvet"):
        match["match"]["text"] = neural["neural"]["hybridr_vector"]["query_text"] = text
        for query, hits in ((body["query"], search(text, 10)), (neural, search.using("dense")(text, 10))):
            answer = ask(cellar, done.index, query)
            assert ids(answer) == [hit.doc_id for hit in hits]
            scores = [hit["_score"] for hit in answer["hits"]["hits"]]
            assert scores == pytest.approx([hit.score for hit in hits], abs=1e-5)
    planned = undeploy(cellar, INDEX, dry_run=True)
    assert held(cellar) == deployed
    assert undeploy(cellar, INDEX) == planned
    assert held(cellar) == before
    info = resolve(cellar, INDEX)
    assert "index.search.default_pipeline" not in info.settings
    assert not info.record.deployment


def assembled(folder: Path) -> Path:
    rem = DDR / "rems" / "rem_dense_lora192-pa4" / "msmarco"
    return export(assemble(DDR / "dams" / "dam_source", rem), folder / "encoder")


MADE: dict[str, Callable[[Path], Path]] = {
    "roberta": lambda folder: export(tiny_family("roberta", folder / "source"), folder / "encoder"),
    "distilbert": lambda folder: export(tiny_family("distilbert", folder / "source"), folder / "encoder"),
    "inner product, cls": lambda folder: export(
        tiny_retriever(similarity="ip", pooling="cls"), folder / "encoder"
    ),
    "parallel adapter": assembled,
}


@pytest.mark.parametrize("kind", MADE)
def test_every_kind_of_encoder_gives_its_own_vectors(allowed: Cluster, kind: str, tmp_path: Path) -> None:
    before = held(allowed)
    encoder = load_encoder(MADE[kind](tmp_path))
    model_id = local_models.ensure_model(allowed, encoder)
    texts = ["", "bal bas", *tiny_texts(5)]
    found = local_models.predict(allowed, model_id, texts, encoder)
    assert np.abs(found - encoder.encode_queries(texts)).max() < 1e-4
    local_models.remove_model(allowed, model_id)
    assert held(allowed) == before


def test_two_indices_share_a_model_with_its_query_prefix(allowed: Cluster, tiny: Path) -> None:
    before = held(allowed)
    names = [f"{INDEX}-{letter}" for letter in "ab"]
    for name in names:
        fill_index(allowed, name, 30)
        reindex(allowed, name, tiny)
        assert deploy(allowed, name, LOCAL, DEFAULTS).changed
    known = [resolve(allowed, name).record.deployment.model_id for name in names]
    assert known[0] == known[1]
    again = SearchSettings(dense_weight=0.4)
    assert deploy(allowed, names[0], LOCAL, again).changed, "another pipeline, the same model"
    assert not any(ML in request["path"] for request in undeploy(allowed, names[0]))
    encoder = load_encoder(tiny)
    query = {"neural": {"hybridr_vector": {"query_text": TEXT, "k": 10}}}
    hits = Search(allowed, names[1], encoder).using("dense")(TEXT, 10)
    answer = ask(allowed, resolve(allowed, names[1]).name, query)
    assert [hit["_score"] for hit in answer["hits"]["hits"]] == pytest.approx([hit.score for hit in hits])
    assert [hit["_score"] for hit in answer["hits"]["hits"]] != pytest.approx(
        [hit.score for hit in Search(allowed, names[1], without_prefix(tiny)).using("dense")(TEXT, 10)]
    )
    undeploy(allowed, names[1])
    assert held(allowed) == before


def without_prefix(folder: Path) -> OnnxEncoder:
    encoder = load_encoder(folder)
    encoder.usage = replace(encoder.usage, prefixes={"query": "", "document": ""})
    return encoder


@pytest.fixture
def encoder(allowed: Cluster, tiny: Path) -> Iterator[OnnxEncoder]:
    """An encoder whose model is not in the cluster, neither before nor afterwards."""
    before = held(allowed)
    yield load_encoder(tiny)
    assert held(allowed) == before


def test_other_vectors_are_refused_and_undone(
    allowed: Cluster, encoder: OnnxEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = encoder.encode_queries
    monkeypatch.setattr(encoder, "encode_queries", lambda texts: own(texts)[::-1])
    with pytest.raises(ModelError, match="other vectors than the encoder"):
        local_models.ensure_model(allowed, encoder)


def interrupted(*_: object) -> None:
    raise KeyboardInterrupt


def test_an_upload_that_ends_early_leaves_nothing(
    allowed: Cluster, encoder: OnnxEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = held(allowed)
    with monkeypatch.context() as patch:
        patch.setattr(local_models, "await_registered", interrupted)
        with pytest.raises(KeyboardInterrupt):
            local_models.ensure_model(allowed, encoder)
    assert held(allowed) == before
    with local_models.packed(encoder) as file:  # killed: nothing could be taken back
        killed = allowed.request("POST", local_models.META, file.body())["model_id"]
    allowed.refresh(".plugins-ml-model")
    model_id = local_models.ensure_model(allowed, encoder)
    assert killed not in held(allowed)["models"]
    assert model_id == local_models.ensure_model(allowed, encoder)
    local_models.remove_model(allowed, model_id)
    assert held(allowed) == before


def test_loading_is_told_and_leaves_nothing_when_it_is_interrupted(
    allowed: Cluster, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = held(allowed)
    encoder, told = load_encoder(tiny), []

    def tell(stage: str, done: int, total: int | None = None, note: str = "") -> None:
        told.append((stage, done, total))

    for model_is in ("new", "there"):
        if model_is == "there":
            with local_models.packed(encoder) as file:
                local_models.upload(allowed, file, tell)
            allowed.refresh(".plugins-ml-model")
        with monkeypatch.context() as patch:
            patch.setattr(local_models, "require_same_vectors", interrupted)
            with pytest.raises(KeyboardInterrupt):
                local_models.ensure_model(allowed, encoder, progress=tell)
        assert held(allowed) == before, model_is
    stages = ["upload the model", "load the model inside the cluster"]
    assert list(dict.fromkeys(stage for stage, _, _ in told)) == stages
    assert told[0] == (stages[0], 1, 1)
    assert told[-1] == (stages[1], 1, 2)


def test_refusals(cellar: Cluster, allowed: Cluster, tiny: Path) -> None:
    with pytest.raises(FingerprintMismatch, match="were written by encoder"):
        plan_deployment(cellar, INDEX, LOCAL.model_copy(update={"encoder": tiny}), DEFAULTS)
    name = f"{INDEX}-bytes"
    fill_index(allowed, name, 20)
    reindex(allowed, name, tiny, ReindexSettings(vectors="byte"))
    with pytest.raises(ClusterError, match="keeps bytes, and a `neural` query sends floats"):
        plan_deployment(allowed, name, LOCAL, DEFAULTS)
    with pytest.raises(ClusterError, match=r"needs OpenSearch 3\.6\.0, this is 3\.5\.0"):
        local_models.check_version(SimpleNamespace(version=(3, 5, 0)))  # type: ignore[arg-type]
