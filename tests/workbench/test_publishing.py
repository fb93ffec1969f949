"""An evaluation in OpenSearch's own workbench, held against the plugin's documented forms."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hybridr.cluster.record import IndexInfo
from hybridr.errors import AccessDenied, ClusterError
from hybridr.evaluation.evaluation import evaluate
from hybridr.records import Query
from hybridr.workbench.publishing import PLUGIN_NAME, publish

QUERIES = [Query("q1", 'a "cat"'), Query("q2", "a dog")]
QRELS = {"q1": {"d1": 2, "d2": 0}, "q2": {"d3": 1}}
RUNS = {
    "bm25": {"q1": {"d2": 2.0, "d1": 1.0}, "q2": {"d3": 1.0}},
    "hybrid": {"q1": {"d1": 2.0}, "q2": {"d3": 1.0}},
}
RECORD = {"role": "source", "lexical_fields": ["title", "text"], "load": {"job": "j", "state": "complete"}}
NEEDED: dict[str, dict[str, type]] = {
    "query_sets": {"name": str, "description": str, "sampling": str, "querySetQueries": list},
    "judgments": {"name": str, "type": str, "judgmentRatings": list},
    "search_configurations": {"name": str, "index": str, "query": str},
    "experiments": {
        "querySetId": str,
        "searchConfigurationList": list,
        "judgmentList": list,
        "size": int,
        "type": str,
        "evaluationResultList": list,
    },
}
IDS = {
    "query_sets": "query_set_id",
    "judgments": "judgment_id",
    "search_configurations": "search_configuration_id",
    "experiments": "experiment_id",
}


class Workbench:
    """A cluster with the plugin, as its documentation tells: it checks what every entry needs."""

    def __init__(self, plugins: set[str], *, enabled: bool = True) -> None:
        self._plugins, self.enabled = plugins, enabled
        self.taken: list[tuple[str, str, dict[str, Any]]] = []

    def plugins(self) -> set[str]:
        return self._plugins

    def index_info(self, name: str) -> IndexInfo:
        return IndexInfo(name, {"index.uuid": "u"}, {"_meta": {"hybridr": RECORD}}, {})

    def indices(self, pattern: str) -> list[IndexInfo]:
        return []

    def request(self, method: str, path: str, body: dict[str, Any]) -> dict[str, str]:
        if not self.enabled:
            raise AccessDenied("Search Relevance Workbench is disabled", status=403)
        kind = path.rpartition("/")[2]
        assert path == f"/_plugins/_search_relevance/{kind}"
        assert method == ("POST" if kind == "experiments" else "PUT")
        for name, wanted in NEEDED[kind].items():
            assert isinstance(body[name], wanted), (kind, name)
        assert len(body.get("name", "")) <= 50
        self.taken.append((method, kind, json.loads(json.dumps(body))))
        return {IDS[kind]: f"{kind}-{len(self.taken)}"}


def test_every_part_is_published_in_its_form() -> None:
    cluster = Workbench({PLUGIN_NAME})
    found = evaluate(RUNS, QUERIES, QRELS, ["nDCG@10", "RR@10"])
    ids = publish(cluster, "docs", found)  # type: ignore[arg-type]
    kinds = [kind for _, kind, _ in cluster.taken]
    assert kinds == ["query_sets", "judgments"] + ["search_configurations", "experiments"] * 2
    bodies = [body for _, _, body in cluster.taken]
    assert bodies[0]["querySetQueries"] == [{"queryText": 'a "cat"'}, {"queryText": "a dog"}]
    assert bodies[1]["judgmentRatings"][0] == {
        "query": 'a "cat"',
        "ratings": [{"docId": "d1", "rating": "2.0"}, {"docId": "d2", "rating": "0.0"}],
    }
    assert "%SearchText%" in bodies[2]["query"]
    experiment = bodies[3]
    assert experiment["querySetId"] == ids["query_set"]
    assert experiment["judgmentList"] == [ids["judgements"]]
    [first, _] = experiment["evaluationResultList"]
    assert first["documentIds"] == ["d2", "d1"]
    metrics = {one["metric"]: one["value"] for one in first["metrics"]}
    assert metrics["RR@10"] == pytest.approx(0.5)
    assert ids["experiments"].keys() == RUNS.keys()


def test_without_the_plugin_or_its_switch_it_says_so() -> None:
    found = evaluate(RUNS, QUERIES, QRELS, ["nDCG@10"])
    with pytest.raises(ClusterError, match="needs the plugin opensearch-search-relevance"):
        publish(Workbench(set()), "docs", found)  # type: ignore[arg-type]
    with pytest.raises(ClusterError, match="disabled") as caught:
        publish(Workbench({PLUGIN_NAME}, enabled=False), "docs", found)  # type: ignore[arg-type]
    assert "workbench_enabled" in (caught.value.hint or "")
