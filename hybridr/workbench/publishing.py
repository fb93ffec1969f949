"""Publishes an evaluation to OpenSearch's own workbench: the plugin search-relevance, 3.1 or newer.

The forms are those of its documentation: a query set, a list of imported judgements, and for each system a
search configuration with an imported experiment, which holds what was measured here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ..cluster.connection import Cluster, path_of
from ..cluster.destinations import resolve
from ..cluster.legs.lexical import lexical_query
from ..cluster.record import IndexInfo
from ..errors import AccessDenied, ClusterError, SettingsError
from ..evaluation.evaluation import Evaluation

PLUGIN_NAME = "opensearch-search-relevance"
BASE = ("_plugins", "_search_relevance")
SWITCH = "plugins.search_relevance.workbench_enabled"
LONGEST_NAME, MOST_QUERIES, LISTED = 50, 1000, 10
SEARCH_TEXT = "%SearchText%"


def publish(cluster: Cluster, index: str, found: Evaluation) -> dict[str, Any]:
    """Put queries, judgements and what each system reached into the workbench; give the ids by kind.

    Raises ClusterError without the plugin, or where its workbench is switched off; SettingsError for more
    queries than it takes.
    """
    if PLUGIN_NAME not in cluster.plugins():
        raise ClusterError(
            f"publishing needs the plugin {PLUGIN_NAME} on every node", hint="leave --publish out"
        )
    if found.queries > MOST_QUERIES:
        raise SettingsError(
            f"{found.queries} queries are more than the {MOST_QUERIES} of a query set",
            hint="a smaller --qrels",
        )
    info = resolve(cluster, index)
    queries = put_entry(cluster, "query_sets", query_set(info, found))
    judgements = put_entry(cluster, "judgments", judgement_list(info, found))
    ids: dict[str, Any] = {"query_set": queries, "judgements": judgements, "experiments": {}}
    for system in found.systems:
        described = search_configuration(info, system, index if info.scope else info.name)
        configuration = put_entry(cluster, "search_configurations", described)
        body = experiment(found, system, [queries, configuration, judgements])
        ids["experiments"][system] = put_entry(cluster, "experiments", body, method="POST")
    return ids


def put_entry(cluster: Cluster, kind: str, body: Mapping[str, Any], *, method: str = "PUT") -> str:
    """Send one entry and give its id. Raises ClusterError; its hint switches the workbench on."""
    try:
        answer = cluster.request(method, path_of(*BASE, kind), dict(body))
    except AccessDenied as error:
        raise ClusterError(
            f"the workbench refused: {error.message}",
            hint=f'PUT /_cluster/settings {{"persistent": {{"{SWITCH}": true}}}}',
        ) from error
    ids = [value for name, value in answer.items() if name.endswith("_id")]
    return str(ids[0])


def name_of(info: IndexInfo, part: str) -> str:
    """Name an entry in at most 50 characters."""
    return f"hybridr {part} {info.name}"[:LONGEST_NAME]


def query_set(info: IndexInfo, found: Evaluation) -> dict[str, Any]:
    """Give the queries that were measured."""
    return {
        "name": name_of(info, "queries"),
        "description": f"{found.queries} judged queries",
        "sampling": "manual",
        "querySetQueries": [{"queryText": query.text} for query in found.topics],
    }


def judgement_list(info: IndexInfo, found: Evaluation) -> dict[str, Any]:
    """Give the judgements of these queries; the plugin takes grades as texts."""
    ratings = [
        {
            "query": query.text,
            "ratings": [
                {"docId": doc, "rating": str(float(grade))}
                for doc, grade in found.qrels[query.query_id].items()
            ],
        }
        for query in found.topics
    ]
    return {
        "name": name_of(info, "judgements"),
        "description": "imported by hybridr evaluate",
        "type": "IMPORT_JUDGMENT",
        "judgmentRatings": ratings,
    }


def search_configuration(info: IndexInfo, system: str, asked: str) -> dict[str, Any]:
    """Describe a system, and which name it asks. Its query is lexical: a vector has no place in a text."""
    query = {"query": lexical_query(SEARCH_TEXT, info.record.lexical_fields)}
    return {"name": name_of(info, system), "index": asked, "query": json.dumps(query)}


def experiment(found: Evaluation, system: str, ids: list[str]) -> dict[str, Any]:
    """Give what a system reached on every query, with the documents that it found first."""
    queries, configuration, judgements = ids
    values, run = found.per_query[system], found.runs[system]
    results = [
        {
            "searchText": query.text,
            "metrics": [{"metric": one, "value": values[one][query.query_id]} for one in found.measures],
            "documentIds": list(run.get(query.query_id, {}))[:LISTED],
        }
        for query in found.topics
    ]
    return {
        "querySetId": queries,
        "searchConfigurationList": [configuration],
        "judgmentList": [judgements],
        "size": LISTED,
        "type": "POINTWISE_EVALUATION",
        "evaluationResultList": results,
    }
