"""Pure functions from settings to the request bodies that OpenSearch takes."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import orjson

from .assets import load_asset
from .errors import SettingsError
from .fusion import Technique
from .settings import VectorSettings, SearchSettings
from .vectors import field_options, form_of, method_parameters

SPACES = {"cosine": "cosinesimil", "ip": "innerproduct"}
ENCODER_FIELD = "hybridr_encoder"
SEQ_NO_FIELD = "hybridr_seq_no"
PASSAGE_VECTOR = "vector"  # inside the nested field; `start` and `end` beside it
MAX_NEIGHBOURS = 10_000  # the largest k that OpenSearch takes
RRF_WEIGHTS = (3, 1, 0)
Z_SCORE = LOWER_BOUNDS = (3, 0, 0)

# What the server sets itself and refuses or misreads in a new index.
PRIVATE_SETTINGS = (
    "uuid", "version.", "creation_date", "provided_name", "history.uuid", "resize.", "blocks.",
    "verified_before_close", "routing.allocation.initial_recovery.", "shard.", "knn", "replication.",
)  # fmt: skip


def copied_settings(settings: dict[str, Any]) -> dict[str, Any]:
    """Keep what the user chose of an index's flat settings, without the prefix `index.`."""
    chosen = {name.removeprefix("index."): value for name, value in settings.items()}
    return {
        name: value
        for name, value in chosen.items()
        if not any(name == key or (key.endswith(".") and name.startswith(key)) for key in PRIVATE_SETTINGS)
    }


def vector_mapping(
    dim: int, similarity: str, settings: VectorSettings, version: tuple[int, int, int]
) -> dict[str, Any]:
    """Map the k-NN field; the engine is always named, since the server's default is not safe everywhere."""
    form = form_of(settings)
    graph = {"m": settings.m, "ef_construction": settings.ef_construction}
    return {
        "type": "knn_vector",
        "dimension": dim,
        **field_options(form),
        "method": {
            "name": "hnsw",
            "engine": settings.engine,
            "space_type": SPACES[similarity],
            "parameters": {**graph, **method_parameters(form, version)},
        },
    }


def passages_mapping(vector: dict[str, Any]) -> dict[str, Any]:
    """Map a field of many vectors a document; where each passage stands is only read, never searched."""
    offset = {"type": "integer", "index": False, "doc_values": False}
    properties = {PASSAGE_VECTOR: vector, "start": offset, "end": offset}
    return {"type": "nested", "dynamic": "false", "properties": properties}


def vector_value(vector: np.ndarray, spans: Sequence[tuple[int, int]]) -> Any:
    """Give what the vector field of a document holds: its vector `(dim,)`, or one `(n, dim)` per span."""
    if not spans:
        return vector
    return [
        {PASSAGE_VECTOR: row, "start": start, "end": end}
        for row, (start, end) in zip(vector, spans, strict=True)
    ]


def destination_mappings(
    source: dict[str, Any], vector_field: str, vector: dict[str, Any], meta: dict[str, Any]
) -> dict[str, Any]:
    """Add the vector and its two companions to the mappings of the source.

    The companions are stored but left out of `_source`: a client's partial update then drops them and
    keeps the vector, so that stale vectors can be found.
    """
    hidden = [ENCODER_FIELD, SEQ_NO_FIELD]
    kept_source = dict(source.get("_source", {}))
    kept_source["excludes"] = [*kept_source.get("excludes", []), *hidden]
    return {
        **source,
        "_source": kept_source,
        "_meta": {**source.get("_meta", {}), "hybridr": meta},
        "properties": {
            **source.get("properties", {}),
            vector_field: vector,
            ENCODER_FIELD: {"type": "keyword", "store": True},
            SEQ_NO_FIELD: {"type": "long", "store": True},
        },
    }


def lexical_query(text: str, fields: Sequence[str]) -> dict[str, Any]:
    """Match the text in one field, or as the best sum over several."""
    if len(fields) == 1:
        return {"match": {fields[0]: {"query": text}}}
    return {"multi_match": {"query": text, "fields": list(fields), "type": "most_fields"}}


def dense_query(
    vector: Sequence[float],
    field: str,
    k: int,
    name: str | None = None,
    *,
    passages: bool = False,
    inner_hits: str | None = None,
    filter: dict[str, Any] | None = None,
    boost: float | None = None,
) -> dict[str, Any]:
    """Find the k documents nearest to a query vector in each shard, by their best passage with `passages`.

    Inner hits of the name `inner_hits` say which passage that is; `filter` is what documents must match,
    `boost` multiplies the scores.
    """
    named = {key: value for key, value in {"_name": name, "boost": boost}.items() if value is not None}
    # A walk of the graph as wide as k alone missed the nearest of all on an open collection.
    wide = {"ef_search": min(2 * k, MAX_NEIGHBOURS)}
    query: dict[str, Any] = {"vector": list(vector), "k": k, "method_parameters": wide}
    if filter is not None:
        query["filter"] = filter
    if not passages:
        return {"knn": {field: {**query, **named}}}
    nested: dict[str, Any] = {
        "path": field,
        "query": {"knn": {f"{field}.{PASSAGE_VECTOR}": query}},
        "score_mode": "max",
        **named,
    }
    if inner_hits:
        nested["inner_hits"] = {"name": inner_hits, "size": 1, "_source": [f"{field}.start", f"{field}.end"]}
    return {"nested": nested}


def dense_scores_query(
    vector: Sequence[float],
    field: str,
    doc_ids: Sequence[str],
    *,
    most_passages: int | None = None,
    inner_hits: bool = False,
) -> dict[str, Any]:
    """Score exactly these documents, each by its best of at most `most_passages` (None: by its one vector).

    The engine compares every vector instead of walking its graph when k covers all that pass the filter.
    """
    each = most_passages or 1
    many = max(1, MAX_NEIGHBOURS // each)
    groups = [doc_ids[start : start + many] for start in range(0, max(1, len(doc_ids)), many)]
    queries = [
        dense_query(
            vector, field, max(1, len(group) * each),
            passages=most_passages is not None, filter={"ids": {"values": list(group)}},
            inner_hits=f"passages {number}" if inner_hits else None,  # two of one name are refused
        )
        for number, group in enumerate(groups)
    ]  # fmt: skip
    return queries[0] if len(queries) == 1 else {"bool": {"should": queries}}


def exact_query(
    vector: Sequence[float],
    field: str,
    similarity: str,
    name: str | None = None,
    filter: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Compare a query vector with every document's vector instead of walking a graph."""
    params = {"field": field, "query_value": list(vector), "space_type": SPACES[similarity]}
    there: list[dict[str, Any]] = [{"exists": {"field": field}}, *([filter] if filter is not None else [])]
    script = {"lang": "knn", "source": "knn_score", "params": params}
    named = {"_name": name} if name else {}
    return {"script_score": {"query": {"bool": {"filter": there}}, "script": script, **named}}


def hybrid_query(legs: Sequence[dict[str, Any]], depth: int) -> dict[str, Any]:
    """Run the legs side by side; `depth` candidates of each, whatever the page."""
    return {"hybrid": {"queries": list(legs), "pagination_depth": depth}}


def lexical_leg(
    query: dict[str, Any], name: str | None = None, filter: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Name a lexical query, and limit it to what matches `filter`; its scores stay."""
    added: dict[str, Any] = {"filter": [filter]} if filter is not None else {}
    added |= {"_name": name} if name else {}
    return {"bool": {"must": [query], **added}} if added else query


def among(doc_ids: Sequence[str], query: dict[str, Any]) -> dict[str, Any]:
    """Ask about these documents only; the scores stay."""
    return {"bool": {"must": [query], "filter": [{"ids": {"values": list(doc_ids)}}]}}


def absolute_query(
    lexical: dict[str, Any],
    leg: dict[str, Any],
    dense: Callable[[float], dict[str, Any]],
    scored: dict[str, Any],
    weights: tuple[float, float],
    window: int,
) -> dict[str, Any]:
    """Rank by `weights[0]` x BM25 + `weights[1]` x dense score, both true for every candidate, in one search.

    The candidates come from both legs: `leg`, which is `lexical` with name and filter, and `dense`, which
    builds the k-NN query of a boost. The best `window` of each shard are scored again, where a document of
    one leg only gets its score of the other by `scored`, the script that `dense_script` builds. No pipeline
    is needed: pages, filters and aggregations stay as usual.
    """
    boost = weights[1] / weights[0] if weights[0] else 1.0
    either = {"bool": {"should": [lexical, {"match_all": {"boost": 0.0}}]}}
    script = {"script_score": {"query": either, "script": scored}}
    return {
        "query": {"bool": {"should": [leg, dense(boost)]}},
        "rescore": {
            "window_size": window,
            "query": {"query_weight": 0.0, "rescore_query_weight": 1.0, "rescore_query": script},
        },
    }


def dense_script(vector: Sequence[float], field: str, weights: tuple[float, float]) -> dict[str, Any]:
    """Add the exact cosine as an engine score, 0 to 1 and .5 without a vector, to the score of the query."""
    return {
        "source": (
            f"params.lexical * _score + (doc['{field}'].size() == 0 ? params.dense / 2.0 : "
            f"params.dense * (1.0 + cosineSimilarity(params.vector, doc['{field}'])) / 2.0)"
        ),
        "params": {"lexical": weights[0], "dense": weights[1], "vector": list(vector)},
    }


def search_pipeline(settings: SearchSettings, version: tuple[int, int, int]) -> dict[str, Any]:
    """Build the pipeline that normalises and combines lexical and dense scores, in this order.

    Raises SettingsError where this server version would refuse it, or silently do something else.
    """
    weights = (1.0 - settings.dense_weight, settings.dense_weight)
    return fusion_pipeline(
        Technique(settings.normalization, settings.combination, weights, settings.rank_constant), version
    )


def fusion_pipeline(technique: Technique, version: tuple[int, int, int]) -> dict[str, Any]:
    """Build the pipeline of a technique from its file in `opensearch/pipelines/`.

    Raises SettingsError where this server version would refuse it, or silently do something else.
    """
    technique.check()
    require_version(technique, version)
    pipeline = load_asset("pipelines", f"{pipeline_file(technique)}.json")
    [processor] = pipeline["phase_results_processors"][0].values()
    # Whole numbers would fail on the server, which casts them to doubles.
    processor["combination"]["parameters"]["weights"] = [float(weight) for weight in technique.weights]
    if technique.lower_bounds:
        bounds = [{"mode": mode, "min_score": float(lowest)} for mode, lowest in technique.lower_bounds]
        processor["normalization"]["parameters"]["lower_bounds"] = bounds
    if technique.normalization == "rrf":
        processor["combination"] = _rank_combination(processor["combination"], technique, version)
    return pipeline


def pipeline_file(technique: Technique) -> str:
    """Name the file of a technique, without its ending."""
    if technique.normalization == "rrf":
        return "hybrid-rrf"
    mean = technique.combination.removesuffix("_mean")
    parts = [technique.normalization.replace("_", "-")]
    parts += [mean] if mean != "arithmetic" else []
    parts += ["lower-bounds"] if technique.lower_bounds else []
    return "-".join(["hybrid", *parts])


def require_version(technique: Technique, version: tuple[int, int, int]) -> None:
    """Raise SettingsError for what this version refuses, or, as lower bounds, silently leaves out."""
    if technique.normalization == "z_score" and version < Z_SCORE:
        raise SettingsError(
            f"z_score needs OpenSearch 3.0, this is {_dotted(version)}", hint="--normalization min_max"
        )
    if technique.lower_bounds and version < LOWER_BOUNDS:
        raise SettingsError(f"lower bounds need OpenSearch 3.0, this is {_dotted(version)}")
    alike = len(set(technique.weights)) == 1
    if technique.normalization == "rrf" and version < RRF_WEIGHTS and not alike:
        raise SettingsError(f"weights for rrf need OpenSearch 3.1, this is {_dotted(version)}")


def _rank_combination(
    combination: dict[str, Any], technique: Technique, version: tuple[int, int, int]
) -> dict[str, Any]:
    if version >= RRF_WEIGHTS:
        return {**combination, "rank_constant": technique.rank_constant}
    # 2.19 reads the constant only among the parameters and ignores it silently elsewhere.
    return {"technique": "rrf", "parameters": {"rank_constant": technique.rank_constant}}


def _dotted(version: tuple[int, int, int]) -> str:
    return ".".join(map(str, version))


def highlight(fields: Sequence[str], text: str) -> dict[str, Any]:
    """Mark the query's words in the best fragment of each field."""
    fragment = {"number_of_fragments": 1, "fragment_size": 160, "no_match_size": 160}
    return {"highlight_query": lexical_query(text, fields), "fields": dict.fromkeys(fields, fragment)}


def as_json(body: Any) -> bytes:
    """Write a body, with vectors ten times as fast as the client does."""
    try:
        return orjson.dumps(body)
    except TypeError:  # half of a surrogate pair, or keys that are no strings
        return json.dumps(body).encode()
