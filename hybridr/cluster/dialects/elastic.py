"""Elasticsearch's dialect: translates vector fields, `knn` queries, points in time and parameters."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar

import orjson

from ...errors import ClusterError, NotFound
from ..field_values import WITHOUT_VECTORS
from . import ApiRequest, Dialect, Version

LIKE: Version = (3, 2, 0)
"""The first OpenSearch version with `combined_fields`, which Elasticsearch has too."""
K_SINCE: Version = (8, 15, 0)  # before that, a `knn` query only has `num_candidates`
HIDES_VECTORS: Version = (9, 2, 0)  # since then new indices return documents without their vectors
MAX_CANDIDATES = 10_000
SIMILARITIES = {"cosinesimil": "cosine", "innerproduct": "max_inner_product"}
SPACES = {similarity: space for space, similarity in SIMILARITIES.items()}
BY_SCRIPT = re.compile(r"(cosineSimilarity|innerProduct)\(params\.(\w+), doc\[('[^']+')\]\)")
IN_SCRIPT = {"cosineSimilarity": "cosineSimilarity", "innerProduct": "dotProduct"}
DOCUMENT_PATHS = ("/_doc/", "/_create/", "/_update/")  # bodies are documents, which are never translated
PARAMS = {
    "cluster_manager_timeout": "master_timeout",
    "search_pipeline": "",
    "allow_partial_pit_creation": "",
}
"""OpenSearch's parameter -> Elasticsearch's; "" for parameters that Elasticsearch lacks."""
NAMES = {"max_analyzer_offset": "max_analyzed_offset"}
TRANSLATED = {"_meta", "hybrid", "search_pipeline", "source", "knn", *NAMES}
OF_PLUGIN = ("knn.", "index.knn")
CONTAINERS, PLAIN_VALUES = (dict, list), (str, int, float, list)
"""Types for fast checks: a body of soft terms has a thousand values, most of them plain."""
PIT_PATH = "_search/point_in_time"
UNSUPPORTED = ("/_plugins/", "/_search/pipeline")
INT8 = {"confidence_interval": 1.0}
LACKING = {
    "deploy": "`hybridr deploy`",
    "representations": "what is made of tokens (--token-bits, --representations)",
    "faiss": "--engine faiss",
    "on_disk": "--vectors on_disk",
    "semantic": "--semantic",
}


class Elastic(Dialect):
    """The dialect of Elasticsearch."""

    name = "elastic"
    product = "Elasticsearch"
    most_dimensions = 4096
    has_parts = False
    plain_scores = None
    like = LIKE
    lacking: ClassVar[Mapping[str, str]] = {
        part: f"{name} does not work on Elasticsearch yet" for part, name in LACKING.items()
    }

    def __init__(self, version: Version) -> None:
        self.version = version

    def translated_request(self, request: ApiRequest) -> ApiRequest:
        """Return a request of OpenSearch's API as Elasticsearch understands it.

        Raises NotFound for an API, and ClusterError for a query or vector field that Elasticsearch lacks.
        """
        method, path, body, params = request
        if path.startswith(UNSUPPORTED):
            raise NotFound(f"Elasticsearch has no {path.split('?')[0]}", status=404)
        if path.endswith(PIT_PATH):
            path = path.removesuffix(PIT_PATH) + "_pit"
            body = {"id": body["pit_id"][0]} if method == "DELETE" else body  # hybridr closes one at a time
        elif path.endswith("/_msearch") and isinstance(body, bytes):
            lines = (self.translated(orjson.loads(line)) for line in body.splitlines() if line)
            body = b"".join(orjson.dumps(line) + b"\n" for line in lines)
        elif isinstance(body, Mapping) and not any(part in path for part in DOCUMENT_PATHS):
            body = self.translated(body)
            if method == "PUT" and "mappings" in body and self.version >= HIDES_VECTORS:
                body = {**body, "settings": {**body.get("settings", {}), WITHOUT_VECTORS: False}}
        renamed = {PARAMS.get(name, name): value for name, value in (params or {}).items()}
        renamed.pop("", None)  # the parameters that Elasticsearch lacks
        return ApiRequest(method, path, body, renamed or None)

    def translated_answer(self, request: ApiRequest, answer: Any) -> Any:
        """Return Elasticsearch's answer in OpenSearch's form (points in time, index descriptions)."""
        if request.method == "POST" and request.path.endswith(f"/{PIT_PATH}"):
            return {**answer, "pit_id": answer["id"]}
        if request.method != "GET" or not isinstance(answer, Mapping):
            return answer
        indices = dict(answer)
        for name, index in answer.items():
            if isinstance(index, Mapping) and "mappings" in index:
                indices[name] = {**index, "mappings": with_knn_fields(index["mappings"])}
                if "settings" in index:  # every index may hold vectors
                    indices[name]["settings"] = {**index["settings"], "index.knn": "true"}
        return indices

    def translated(self, value: Any) -> Any:
        """Return a value of a request body with all its parts translated; lists of numbers stay."""
        if isinstance(value, list) and value and isinstance(value[0], CONTAINERS):
            return [self.translated(child) for child in value]
        if isinstance(value, PLAIN_VALUES) or not isinstance(value, Mapping):
            return value
        if value.get("type") == "knn_vector" and "method" in value:
            return vector_field(value)
        translation: dict[str, Any] = {}
        for name, child in value.items():
            if name in TRANSLATED or name.startswith(OF_PLUGIN):
                translation |= self.translated_member(name, child)
            else:
                translation[name] = self.translated(child)
        return translation

    def translated_member(self, name: str, value: Any) -> dict[str, Any]:
        """Return a member of a request body in Elasticsearch's form; empty if Elasticsearch lacks it.

        Raises ClusterError for the query `hybrid`.
        """
        if name == "_meta":
            return {name: value}
        if name == "hybrid" and isinstance(value, Mapping) and "queries" in value:
            raise ClusterError("Elasticsearch has no query `hybrid`", hint='[search] fusion = "absolute"')
        if name == "search_pipeline":
            return {}
        if name == "source" and isinstance(value, str):
            # Scripts take the name of a vector field in Elasticsearch, its doc values in OpenSearch.
            return {name: BY_SCRIPT.sub(lambda m: f"{IN_SCRIPT[m[1]]}(params.{m[2]}, {m[3]})", value)}
        if (name == "knn" or name.startswith(OF_PLUGIN)) and not isinstance(value, Mapping):
            return {}  # a setting
        if name == "knn" and len(value) == 1:
            [(field, clause)] = value.items()
            if isinstance(clause, Mapping) and "vector" in clause:
                return {name: self.knn_clause(field, clause)}
        return {NAMES.get(name, name): self.translated(value)}

    def knn_clause(self, field: str, clause: Mapping[str, Any]) -> dict[str, Any]:
        """Return the body of Elasticsearch's `knn` query for OpenSearch's clause of one vector field."""
        candidates = clause.get("method_parameters", {}).get("ef_search", clause["k"])
        request: dict[str, Any] = {"field": field, "query_vector": clause["vector"]}
        request |= {"num_candidates": min(max(clause["k"], candidates), MAX_CANDIDATES)}
        request |= {"k": clause["k"]} if self.version >= K_SINCE else {}
        request |= {"filter": self.translated(clause["filter"])} if "filter" in clause else {}
        return request | {name: clause[name] for name in ("_name", "boost") if name in clause}


def vector_field(mapping: Mapping[str, Any]) -> dict[str, Any]:
    """Return the `dense_vector` mapping for a `knn_vector` mapping. Raises ClusterError if there is none."""
    method = mapping["method"]
    if method["engine"] != "lucene" or "mode" in mapping:
        raise ClusterError(
            "Elasticsearch cannot store vectors in this form",
            hint="use --engine lucene --vectors float, byte or sq",
        )
    parameters = method.get("parameters", {})
    graph = {name: parameters[name] for name in ("m", "ef_construction") if name in parameters}
    quantised = "encoder" in parameters
    graph |= {"type": "int8_hnsw", **INT8} if quantised else {"type": "hnsw"}
    options = {"element_type": "byte"} if mapping.get("data_type") == "byte" else {}
    options |= {"dims": mapping["dimension"], "similarity": SIMILARITIES[method["space_type"]]}
    return {"type": "dense_vector", "index": True, **options, "index_options": graph}


def with_knn_fields(value: Any) -> Any:
    """Return a mapping with each `dense_vector` field as the equivalent `knn_vector` field, if any."""
    if not isinstance(value, Mapping):
        return value
    if value.get("type") == "dense_vector":
        options, kind = value.get("index_options", {}), value.get("similarity")
        graph = {name: options[name] for name in ("m", "ef_construction") if name in options}
        if options.get("type") == "int8_hnsw":
            graph["encoder"] = {"name": "sq", "parameters": {"bits": 7, "confidence_interval": 1.0}}
        if kind not in SPACES or "dims" not in value:
            return value
        method = {"name": "hnsw", "engine": "lucene", "space_type": SPACES[kind], "parameters": graph}
        form = {"data_type": "byte"} if value.get("element_type") == "byte" else {}
        field = {"type": "knn_vector", "dimension": value["dims"], **form, "method": method}
        return field if vector_field(field) == value else value
    return {name: field if name == "_meta" else with_knn_fields(field) for name, field in value.items()}
