"""Semantic fields of a new index whose model is hybridr's own encoder, behind `hybridr serve`.

The cluster embeds these fields itself, whoever writes a document. For each index it gets two models of
ml-commons, for documents and for queries, named after the index.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import Any

from ..cluster import remote_models
from ..cluster.connection import Cluster
from ..cluster.reading import sources_by_id
from ..cluster.record import IndexInfo
from ..cluster.record_parts import SemanticModels
from ..cluster.retrievers.dense import SPACES
from ..cluster.semantic import embedded_texts, with_semantic_fields
from ..cluster.settings import Side
from ..cluster.word_fields import indexed_texts
from ..encoders.contract import Encoder, offers_of
from ..errors import ClusterError, DataError, FingerprintMismatch, HybridrError, SettingsError, Unreachable
from .planning import Plan, Proposal
from .representations.one_vector import MIN_COSINE, are_near

MIN_VERSION = (3, 1, 0)
PLUGINS = {remote_models.PLUGIN, "opensearch-neural-search"}
RAW_TYPES = ("text", "match_only_text", "keyword", "wildcard")
SIDES: tuple[Side, ...] = ("passage", "query")
SAME_COSINE = 0.999  # of two embeddings of a text, both by an encoder in fp32
PROBE = "what a model answers"
CHUNKS = {"type": "nested", "properties": {"text": {}, "embedding": {}}}
INFO: dict[str, Any] = {
    "properties": {"model": {"properties": {"id": {}, "name": {}, "type": {}}}, "chunks": CHUNKS}
}
"""Fields that the cluster adds to a mapping for each semantic field, as far as limits count them."""


def check_semantic(proposal: Proposal) -> None:
    """Raise an error if the fields of `--semantic` cannot become semantic, or if the server has another
    encoder: ClusterError, DataError, FingerprintMismatch, SettingsError, Unreachable.
    """
    cluster, settings, encoder = proposal.cluster, proposal.settings, proposal.encoder
    if cluster.version < MIN_VERSION or not cluster.installed_parts("plugins") >= PLUGINS:
        lacking = ", ".join(sorted(PLUGINS - cluster.installed_parts("plugins"))) or "none of these"
        raise ClusterError(
            f"--semantic needs OpenSearch 3.1 or later with {' and '.join(sorted(PLUGINS))} on every node; "
            f"this is {'.'.join(map(str, cluster.version))} and lacks {lacking}",
            hint="an embedded node has them with: hybridr node start --with-ml",
        )
    if "." in settings.vector_field:
        raise SettingsError(f"--vector-field {settings.vector_field}: no name with dots beside --semantic")
    for name in settings.semantic:
        check_field(proposal.info, name)
    missing = remote_models.missing_settings(cluster, settings.server)
    remote_models.require_allowed(missing, settings.server)
    # Raises for a wrong token; the answer is not needed.
    remote_models.ask_embedding_server(settings.server, "/v1/models", token_of(proposal))
    served = str(remote_models.ask_embedding_server(settings.server, "/healthz").get("encoder"))
    if served != encoder.fingerprint:
        raise FingerprintMismatch(
            f"the server at {settings.server} has encoder {served[:12]}, this reindex takes "
            f"{encoder.fingerprint[:12]}",
            hint="hybridr serve --encoder FOLDER   with that of the reindex; --server names another server",
        )


def check_field(info: IndexInfo, name: str) -> None:
    """Raise DataError for a field that cannot become semantic."""
    mapping, problem = info.mapping_of(name), ""
    leaf = next((field for field in info.mapped_fields if field.name == name), None)
    if leaf is None or leaf.type not in RAW_TYPES or leaf.nested:
        kind = leaf.type if leaf else "object" if "properties" in mapping else "missing"
        where = " below nested objects" if leaf and leaf.nested else ""
        problem = f"this field is {kind}{where}, and a semantic field has one text a document"
    elif mapping.get("copy_to") and name not in info.semantic:
        target = mapping["copy_to"][0]
        problem = f"it is copied to '{target}', and OpenSearch copies nothing from a semantic field"
    elif info.mapping_of(stored := embeddings_field(info, name)):
        problem = f"its embeddings go into '{stored}', which is a field of the index already"
    if problem:
        raise DataError(
            f"--semantic {name}: {problem}",
            hint=f"--semantic with other fields; texts of '{info.name}': {indexed_texts(info)}",
        )


def embeddings_field(info: IndexInfo, name: str) -> str:
    """Return the field in which the cluster keeps the embeddings of a field."""
    return info.semantic[name].stored if name in info.semantic else f"{name}_semantic_info"


def token_of(proposal: Proposal) -> str | None:
    """Return the token that the server requires."""
    token = proposal.settings.token
    return token.get_secret_value() if token else None


def models_name(index: str) -> str:
    """Return the name of the models and connectors of an index."""
    return f"hybridr-{index}-semantic"


def connectors(proposal: Proposal, index: str) -> list[tuple[dict[str, Any], dict[str, Any] | None]]:
    """Return the connectors of both models, and the `model_config` that the model of documents needs."""
    encoder, server, token = proposal.encoder, proposal.settings.server, token_of(proposal)
    config = {
        "model_type": "text_embedding",
        "embedding_dimension": encoder.dim,
        "framework_type": "sentence_transformers",
        "additional_config": {"space_type": SPACES[encoder.similarity]},
    }
    bodies = [
        remote_models.embedding_connector(models_name(index), server, side, token=token) for side in SIDES
    ]
    return list(zip(bodies, (config, None), strict=True))


def planned_models(proposal: Proposal, current: IndexInfo | None) -> SemanticModels | None:
    """Return the models' record (for a new index without ids), if any. Raises as `check_semantic`."""
    settings, info = proposal.settings, proposal.info
    if not settings.semantic:
        return None
    check_semantic(proposal)
    ids = {name: f"<{name}>" for name in SemanticModels.model_fields if name.endswith("_id")}
    added = tuple(embeddings_field(info, name) for name in settings.semantic if name not in info.semantic)
    planned = SemanticModels(fields=settings.semantic, added=added, server=settings.server, **ids)
    return current.record.semantic if current else planned


def requests_for_models(proposal: Proposal, index: str) -> list[dict[str, Any]]:
    """Return the requests that create the models of a new index; none without `--semantic`."""
    pairs = connectors(proposal, index) if proposal.settings.semantic else []
    return [request for pair in pairs for request in remote_models.creation_requests(*pair)]


def semantic_fields(
    proposal: Proposal, models: SemanticModels, fields: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the fields of a mapping with those of the models as `semantic`, and the fields that the cluster
    adds for them. With passages their texts are embedded in chunks.
    """
    settings, info = proposal.settings, proposal.info
    graph = {"m": settings.m, "ef_construction": settings.ef_construction}
    method = {"name": "hnsw", "engine": settings.engine, "parameters": graph}
    common: dict[str, Any] = {
        "model_id": models.model_id,
        "search_model_id": models.search_model_id,
        "dense_embedding_config": {"method": method},
        **({"chunking": True} if settings.passages else {}),
    }
    options = {name: field.options for name, field in info.semantic.items()}
    parameters = {name: common | dict(options.get(name, {})) for name in models.fields}
    return with_semantic_fields(fields, parameters), {
        embeddings_field(info, name): INFO for name in models.fields
    }


@contextmanager
def created_models(cluster: Cluster, todo: Plan) -> Iterator[SemanticModels]:
    """Create the models of a new index and yield their ids; delete them again if the block fails, and those
    of killed runs.

    Raises ClusterError, and FingerprintMismatch if their vectors are not the encoder's.
    """
    proposal, index, planned = todo.proposal, todo.destination, todo.record.semantic
    assert planned
    try:
        first, second = (remote_models.create_model(cluster, *pair) for pair in connectors(proposal, index))
        ids = {"search_model_id": second.model_id, "search_connector_id": second.connector_id}
        models = planned.model_copy(update=asdict(first) | ids)
        require_answer(cluster, models, proposal.encoder)
        yield models
    except HybridrError:
        delete_unused_models(cluster, index)
        raise
    delete_unused_models(cluster, index)


def delete_unused_models(cluster: Cluster, index: str) -> None:
    """Delete the models and connectors made for an index that it does not use; all if it does not exist."""
    stored = cluster.index_info(index).record.semantic if cluster.exists(index) else None
    stored_ids = stored.model_dump(exclude={"fields", "added", "server"}).values() if stored else ()
    deletions = remote_models.pipeline_model_deletions(cluster, models_name(index), keep=list(stored_ids))
    remote_models.send_deletions(cluster, deletions)


def require_answer(cluster: Cluster, models: SemanticModels, encoder: Encoder) -> None:
    """Raise Unreachable unless the model of documents answers the cluster, FingerprintMismatch if its vector
    is not the encoder's.
    """
    path = f"{remote_models.ml_path('models', models.model_id)}/_predict"
    subject = f"the server at {models.server}, by which the cluster embeds {', '.join(models.fields)},"
    try:
        answer = cluster.request("POST", path, {"parameters": {"input": [PROBE]}})
    except ClusterError as error:
        raise Unreachable(
            f"{subject} does not answer it: {error.message}",
            hint="start it there with the same token: hybridr serve; then run the same command again",
        ) from None
    if not encodes_equally(encoder, [PROBE], [answer["inference_results"][0]["output"][0]["data"]]):
        raise FingerprintMismatch(
            f"{subject} gives other vectors than the encoder {encoder.fingerprint[:12]}",
            hint="hybridr serve --encoder FOLDER   with the folder that the index was made with",
        )


def encodes_equally(encoder: Encoder, texts: Sequence[str], vectors: Sequence[Sequence[float]]) -> bool:
    """Return whether the encoder makes these vectors of these texts, allowing for its number format."""
    if any(len(vector) != encoder.dim for vector in vectors):
        return False
    is_exact = offers_of(encoder).arithmetic.get("precision", "fp32") == "fp32"
    return are_near(encoder.encode_documents(texts), vectors, SAME_COSINE if is_exact else MIN_COSINE)


def other_embeddings(
    cluster: Cluster, info: IndexInfo, doc_ids: Sequence[str], encoder: Encoder
) -> list[str]:
    """Return the ids of documents whose embedding differs from what the encoder makes of their text."""
    models = info.record.semantic
    assert models
    different = set()
    for doc_id, source in sources_by_id(cluster, replace(info, semantic={}), doc_ids).items():
        for name in models.fields:
            for text, stored in embedded_texts(source, name, info.semantic[name]):
                parts = stored.get("chunks") or [{"text": text, **stored}]
                vectors = [part.get("embedding", ()) for part in parts]
                if not encodes_equally(encoder, [part["text"] for part in parts], vectors):
                    different.add(doc_id)
    return sorted(different)


def model_deletions(cluster: Cluster, infos: Sequence[IndexInfo]) -> list[dict[str, Any]]:
    """Return the requests that delete the models and connectors of indices."""
    names = [models_name(info.name) for info in infos if info.record.semantic]
    return [request for name in names for request in remote_models.pipeline_model_deletions(cluster, name)]
