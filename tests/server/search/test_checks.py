"""A cluster that forbids scripts: the pipeline joins searches, with a word, those that are open too."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from hybridr import Search, SearchSettings, reindex
from hybridr.cluster.connection import Cluster
from hybridr.deploying.deploying import fusing, pipeline_body
from hybridr.errors import SettingsError
from hybridr.files.formats import read_corpus
from hybridr.search import checks, systems
from hybridr.search.systems import Compared, JudgedQueries, evaluate_index
from hybridr_cli import main
from support.corpus import beir_folder, bulk
from support.hashing import HashingEncoder

pytestmark = pytest.mark.node
INDEX = "t-scripts"
TEXT = "anchor needle velvet"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return beir_folder(tmp_path_factory.mktemp("scripts") / "beir")


@pytest.fixture(scope="module")
def index(cluster: Cluster, folder: Any) -> Iterator[str]:
    properties = {"text": {"type": "text"}, "year": {"type": "long"}}
    cluster.request("PUT", f"/{INDEX}", {"mappings": {"properties": properties}})
    documents = [({"index": {"_id": one.pop("_id")}}, one) for one in read_corpus(folder)]
    bulk(cluster, INDEX, [line for pair in documents for line in pair])
    reindex(cluster, INDEX, HashingEncoder(dim=32))
    yield INDEX
    for info in cluster.indices(f"{INDEX}*"):
        cluster.request("DELETE", f"/{info.name}")


@contextmanager
def scripts_forbidden(cluster: Cluster) -> Iterator[None]:
    """Forbid scripts for a while."""
    expensive = "search.allow_expensive_queries"
    cluster.request("PUT", "/_cluster/settings", {"persistent": {expensive: False}})
    try:
        yield
    finally:
        cluster.request("PUT", "/_cluster/settings", {"persistent": {expensive: None}})


def test_the_pipeline_takes_over_with_a_word(cluster: Cluster, index: str) -> None:
    encoder, settings = HashingEncoder(dim=32), SearchSettings(boost="linear(year, 20):0.1")
    stock = Search(cluster, index, encoder, settings=SearchSettings(fusion="pipeline"))
    with scripts_forbidden(cluster):
        search = Search(cluster, index, encoder, settings=settings)
        assert search.fusion == search.using("hybrid").fusion == "pipeline"
        [remark] = search.remarks
        assert "search.allow_expensive_queries is false" in remark
        assert "the boost is left out" in remark
        assert search(TEXT, 5) == stock(TEXT, 5) != []
    assert Search(cluster, index, encoder, settings=settings).remarks == []


def test_a_search_that_is_open_goes_on(cluster: Cluster, index: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "RECHECK_S", 0.0)
    search = Search(cluster, index, HashingEncoder(dim=32))
    ranked = search(TEXT, 5)
    with scripts_forbidden(cluster):
        assert search.current().fusion == "pipeline"
        assert len(search(TEXT, 5)) == 5
        with pytest.raises(SettingsError, match="runs no scripts"):
            search.body(TEXT)
    assert search(TEXT, 5) == ranked


def test_commands_say_it(
    cluster: Cluster,
    index: str,
    folder: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for module in (checks, systems):
        monkeypatch.setattr(module, "encoder_for", lambda *_, **__: HashingEncoder(dim=32))
    asked = ["search", index, TEXT, "--url", cluster.url]
    with scripts_forbidden(cluster):
        found = evaluate_index(cluster, index, JudgedQueries(folder), Compared(("bm25", "hybrid")))
        assert main(asked) == 0
        assert main([*asked, "--json"]) == 0
    [remark] = found.remarks
    assert remark.startswith("hybrid: ranked by the fusion 'pipeline': the cluster runs no scripts")
    said = capsys.readouterr()
    assert "the cluster runs no scripts" in said.err
    assert "the cluster runs no scripts" in json.loads(said.out.splitlines()[-1])["remarks"][0]


def test_deploying_takes_the_form_of_the_pipeline(cluster: Cluster, index: str) -> None:
    info = cluster.index_info(f"{index}-hybridr")
    with scripts_forbidden(cluster):
        settings, remark = fusing(cluster, SearchSettings(boost="linear(year, 20):0.1"), info)
    assert "the boost is left out" in remark
    [processor] = pipeline_body(info, "transparent", settings, cluster.version, "m")["request_processors"]
    assert "query_template" not in processor["ml_inference"], "the query alone is rewritten"
    assert settings.boost == ""
