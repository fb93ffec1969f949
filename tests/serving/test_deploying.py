"""The search body that a deployment shows; what is deployed is tested on a node."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from hybridr.cluster.record import IndexInfo, Record
from hybridr.errors import ClusterError
from hybridr.records import Windows
from hybridr.search.settings import SearchSettings
from hybridr.serving.deploy import ingesting
from hybridr.serving.deploy.deploying import example_body
from hybridr.serving.settings import DeploySettings


def dense_leg(way: str, **remembered: Any) -> Any:
    info = IndexInfo("docs", {}, {}, {})
    mappings = {
        "_meta": info.meta_with(
            Record(vector_field="vectors", fields=("text",), lexical_fields=("text",), **remembered)
        )
    }
    mappings["properties"] = {"text": {"type": "text"}}
    cluster: Any = SimpleNamespace(version=(3, 6, 0))
    shown = json.loads(example_body(cluster, IndexInfo("docs", {}, mappings, {}), way, SearchSettings()))
    return shown["query"]["hybrid"]["queries"][1]


@pytest.mark.parametrize(("way", "kind"), [("client", "knn"), ("neural", "neural")])
def test_the_body_asks_for_vectors_where_they_are(way: str, kind: str) -> None:
    """OpenSearch refuses a query by vector on the nested field that holds the passages."""
    assert list(dense_leg(way)[kind]) == ["vectors"]
    nested = dense_leg(way, passages=Windows(256, 32, 64))["nested"]
    assert (nested["path"], nested["score_mode"]) == ("vectors", "max")
    assert list(nested["query"][kind]) == ["vectors.vector"]


@pytest.mark.parametrize(
    ("plugins", "message"),
    [((), "--ingest needs the plugin opensearch-ml"), (("opensearch-ml",), "and --ingest sends floats")],
)
def test_an_ingest_pipeline_is_refused_by_its_own_option(plugins, message, monkeypatch):
    """It said `--way neural`, which nobody typed, and advised another --way, which does not help."""
    info = IndexInfo("docs", {}, {}, {})
    mappings = {"_meta": info.meta_with(Record(vector_field="vectors", fields=("text",), vectors="byte"))}
    monkeypatch.setattr(ingesting, "resolve_complete", lambda *_: IndexInfo("docs", {}, mappings, {}))
    cluster: Any = SimpleNamespace(installed_parts=lambda kind: frozenset(plugins))
    with pytest.raises(ClusterError, match=message) as refused:
        ingesting.plan_ingest(cluster, "docs", DeploySettings())
    assert refused.value.hint.startswith("hybridr sync docs --every 30s")
