"""Reads semantic fields of both products as plain text, without the output of their models.

OpenSearch's `semantic` stores embeddings in a separate object next to the text. Elasticsearch's
`semantic_text` stores them inside the field before 8.18, and in no document since. Only this file knows the
difference: the other files see a text field, in mappings and in documents.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

OPENSEARCH, ELASTICSEARCH = "semantic", "semantic_text"
DEFAULT_ENDPOINT = ".elser-2-elasticsearch"
OF_THE_MODEL = frozenset(
    "model_id search_model_id raw_field_type semantic_info_field_name chunking dense_embedding_config "
    "semantic_field_search_analyzer sparse_encoding_config skip_existing_embedding model_selection".split()
)
"""Parameters of `semantic`; all others belong to its raw type."""
WITH_ANY_MODEL = ("chunking", "semantic_info_field_name", "skip_existing_embedding")
"""Parameters of `semantic` that stay when its model changes."""
OF_THE_TEXT = frozenset({"fields", "copy_to", "meta"})
"""Parameters that `semantic_text` shares with a text field."""


class SemanticField(NamedTuple):
    """A field for which the cluster runs a model: its type, the model, the path of the model's output in
    documents (`stored`), and the parameters that fit any model (`options`)."""

    type: str
    model: str
    stored: str
    options: Mapping[str, Any] = {}

    def __str__(self) -> str:
        return f"{self.type} of model {self.model}"

    @property
    def written_by(self) -> str:
        """Return the path at which a document names the model that ran."""
        return f"{self.stored}.{'model.id' if self.type == OPENSEARCH else 'inference_id'}"

    @property
    def has_words(self) -> bool:
        """Return whether the index also holds the words of the text."""
        return self.type == OPENSEARCH


def plain_mappings(mappings: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, SemanticField]]:
    """Return mappings in which semantic fields are text, and the semantic fields by dotted name."""
    semantic: dict[str, SemanticField] = {}
    fields = plain_fields(mappings.get("properties", {}), "", semantic)
    return {**mappings, "properties": fields} if semantic else dict(mappings), semantic


def plain_fields(
    fields: Mapping[str, Any], prefix: str, semantic: dict[str, SemanticField]
) -> dict[str, dict[str, Any]]:
    """Return fields as text, without objects of embeddings; add the semantic fields to `semantic`."""
    plain: dict[str, dict[str, Any]] = {}
    for name, mapping in fields.items():
        path, kind = prefix + name, mapping.get("type")
        if kind == OPENSEARCH:
            embeddings = mapping.get("semantic_info_field_name") or f"{name}_semantic_info"
            options = {part: mapping[part] for part in WITH_ANY_MODEL if part in mapping}
            semantic[path] = SemanticField(
                kind, str(mapping.get("model_id")), f"{prefix}{embeddings}", options
            )
            parameters = {part: value for part, value in mapping.items() if part not in OF_THE_MODEL}
            mapping = parameters | {"type": mapping.get("raw_field_type", "text")}
        elif kind == ELASTICSEARCH:
            model = str(mapping.get("inference_id", DEFAULT_ENDPOINT))
            semantic[path] = SemanticField(kind, model, f"{path}.inference")
            parameters = {part: value for part, value in mapping.items() if part in OF_THE_TEXT}
            mapping = parameters | {"type": "text"}
        inner = [part for part in ("properties", "fields") if part in mapping]
        plain[name] = {**mapping} | {
            part: plain_fields(mapping[part], f"{path}.", semantic) for part in inner
        }
    stored = {field.stored for field in semantic.values()}
    return {name: mapping for name, mapping in plain.items() if prefix + name not in stored}


def plain_source(source: Any, semantic: Mapping[str, SemanticField], prefix: str = "") -> Any:
    """Return a document, or the part of it below `prefix`, with the texts of its semantic fields, without the
    output of models.
    """
    if isinstance(source, list):
        return [plain_source(item, semantic, prefix) for item in source]
    if not semantic or not isinstance(source, dict):
        return source
    stored, plain = {field.stored for field in semantic.values()}, {}
    for key, inner in source.items():
        if prefix + key in stored:
            continue
        if prefix + key not in semantic or not isinstance(inner, dict):
            plain[key] = plain_source(inner, semantic, f"{prefix}{key}.")
        elif "text" in inner:  # else the field only holds copies of other fields
            plain[key] = inner["text"]
    return plain


def fields_with_models(semantic: Mapping[str, SemanticField]) -> str:
    """Return semantic fields with their models, as text for a message."""
    return ", ".join(f"{name} ({field})" for name, field in sorted(semantic.items()))


def with_semantic_fields(
    fields: Mapping[str, Any], parameters: Mapping[str, Mapping[str, Any]], prefix: str = ""
) -> dict[str, Any]:
    """Return text fields, of which those named in `parameters` (by dotted name) become semantic."""
    mapped: dict[str, Any] = {}
    for name, mapping in fields.items():
        if extras := parameters.get(prefix + name):
            mapping = mapping | {"type": OPENSEARCH, "raw_field_type": mapping["type"], **extras}
        elif "properties" in mapping:
            inner = with_semantic_fields(mapping["properties"], parameters, f"{prefix}{name}.")
            mapping = mapping | {"properties": inner}
        mapped[name] = mapping
    return mapped


def stored_form(source: dict[str, Any], semantic: Mapping[str, SemanticField]) -> dict[str, Any]:
    """Return a document as an index with these semantic fields stores it.

    With a `semantic` field OpenSearch stores a name `a.b` as `b` inside `a`. It loses values of fields that a
    document has in both forms; this function keeps them.
    """
    unfolds = any(field.type == OPENSEARCH for field in semantic.values())
    return unfolded_object(source.items()) if unfolds else source


def unfolded(value: Any) -> Any:
    """Return a value in which no name has a dot."""
    if isinstance(value, list):
        return [unfolded(item) for item in value]
    return unfolded_object(value.items()) if isinstance(value, dict) else value


def unfolded_object(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Return nested objects for dotted names. Equal names are joined: objects to one, others to a list."""
    grouped: dict[str, list[Any]] = {}
    for name, value in pairs:
        first, _, rest = name.partition(".") if all(name.split(".")) else (name, "", "")
        grouped.setdefault(first, []).append({rest: value} if rest else value)
    joined = {}
    for name, values in grouped.items():
        if all(isinstance(value, dict) for value in values):
            joined[name] = unfolded_object(pair for value in values for pair in value.items())
        else:
            joined[name] = unfolded(values if len(values) > 1 else values[0])
    return joined


def embedded_texts(source: Any, name: str, field: SemanticField) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield each text of an OpenSearch `semantic` field in a stored document, with its model's output."""
    *path, text_key = name.split(".")
    stored_key = field.stored.rpartition(".")[2]
    for holder in objects_at(source, path):
        if isinstance(text := holder.get(text_key), str) and text.strip():
            yield text, holder.get(stored_key) or {}


def embedding_model_id(stored: Mapping[str, Any]) -> str | None:
    """Return the id of the model that embedded a text, from the stored output; None without an embedding."""
    has_embedding = stored.get("embedding") or stored.get("chunks")
    return stored.get("model", {}).get("id") if has_embedding else None


def objects_at(value: Any, path: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield the objects at a path, including those in lists."""
    if isinstance(value, list):
        for item in value:
            yield from objects_at(item, path)
    elif isinstance(value, dict) and path:
        yield from objects_at(value.get(path[0]), path[1:])
    elif isinstance(value, dict):
        yield value
