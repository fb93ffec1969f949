"""Semantic fields of both products, read as the text that they hold, without what a model made of it.

`semantic` is OpenSearch's: embeddings stand beside the text, in an object of their own. `semantic_text` is
Elasticsearch's: they stand inside the field before 8.18, and in no document since. This is the one place that
knows the difference: everything else sees a text field, in mappings as in documents.
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
"""Parameters of `semantic`; all others are those of its raw type."""
WITH_ANY_MODEL = ("chunking", "semantic_info_field_name", "skip_existing_embedding")
"""Parameters of `semantic` that stay where its model is another one."""
OF_THE_TEXT = frozenset({"fields", "copy_to", "meta"})
"""Parameters of `semantic_text` that a text field has too."""


class SemanticField(NamedTuple):
    """A field that the cluster runs a model for: its type, the model, where documents keep its output, and
    the parameters that any model may have."""

    type: str
    model: str
    stored: str
    options: Mapping[str, Any] = {}

    def __str__(self) -> str:
        return f"{self.type} of model {self.model}"

    @property
    def written_by(self) -> str:
        """Return where a document names the model that ran."""
        return f"{self.stored}.{'model.id' if self.type == OPENSEARCH else 'inference_id'}"

    @property
    def has_words(self) -> bool:
        """Return whether the index holds the words of the text too."""
        return self.type == OPENSEARCH


def plain_mappings(mappings: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, SemanticField]]:
    """Return mappings in which semantic fields are text, and these fields by their dotted names."""
    semantic: dict[str, SemanticField] = {}
    fields = plain_fields(mappings.get("properties", {}), "", semantic)
    return {**mappings, "properties": fields} if semantic else dict(mappings), semantic


def plain_fields(
    fields: Mapping[str, Any], above: str, semantic: dict[str, SemanticField]
) -> dict[str, dict[str, Any]]:
    """Return fields as text, without the objects of embeddings; note the semantic ones in `semantic`."""
    plain: dict[str, dict[str, Any]] = {}
    for name, mapping in fields.items():
        path, kind = above + name, mapping.get("type")
        if kind == OPENSEARCH:
            embeddings = mapping.get("semantic_info_field_name") or f"{name}_semantic_info"
            options = {part: mapping[part] for part in WITH_ANY_MODEL if part in mapping}
            semantic[path] = SemanticField(
                kind, str(mapping.get("model_id")), f"{above}{embeddings}", options
            )
            own = {part: value for part, value in mapping.items() if part not in OF_THE_MODEL}
            mapping = own | {"type": mapping.get("raw_field_type", "text")}
        elif kind == ELASTICSEARCH:
            model = str(mapping.get("inference_id", DEFAULT_ENDPOINT))
            semantic[path] = SemanticField(kind, model, f"{path}.inference")
            own = {part: value for part, value in mapping.items() if part in OF_THE_TEXT}
            mapping = own | {"type": "text"}
        inner = [part for part in ("properties", "fields") if part in mapping]
        plain[name] = {**mapping} | {
            part: plain_fields(mapping[part], f"{path}.", semantic) for part in inner
        }
    stored = {field.stored for field in semantic.values()}
    return {name: mapping for name, mapping in plain.items() if above + name not in stored}


def plain_source(source: dict[str, Any], semantic: Mapping[str, SemanticField]) -> dict[str, Any]:
    """Return a document with the texts of its semantic fields, and without what models made of them."""
    return dict(_plain(source, semantic, "")) if semantic else source


def _plain(value: Any, semantic: Mapping[str, SemanticField], above: str) -> Any:
    if isinstance(value, list):
        return [_plain(item, semantic, above) for item in value]
    if not isinstance(value, dict):
        return value
    stored, plain = {field.stored for field in semantic.values()}, {}
    for key, inner in value.items():
        if above + key in stored:
            continue
        if above + key not in semantic or not isinstance(inner, dict):
            plain[key] = _plain(inner, semantic, f"{above}{key}.")
        elif "text" in inner:  # else all of it was copied from other fields
            plain[key] = inner["text"]
    return plain


def fields_with_models(semantic: Mapping[str, SemanticField]) -> str:
    """Name semantic fields with their models, for a message."""
    return ", ".join(f"{name} ({field})" for name, field in sorted(semantic.items()))


def with_semantic_fields(
    fields: Mapping[str, Any], parameters: Mapping[str, Mapping[str, Any]], above: str = ""
) -> dict[str, Any]:
    """Return fields as text in which those with `parameters`, by dotted name, are semantic: by these."""
    mapped: dict[str, Any] = {}
    for name, mapping in fields.items():
        if own := parameters.get(above + name):
            mapping = mapping | {"type": OPENSEARCH, "raw_field_type": mapping["type"], **own}
        elif "properties" in mapping:
            inner = with_semantic_fields(mapping["properties"], parameters, f"{above}{name}.")
            mapping = mapping | {"properties": inner}
        mapped[name] = mapping
    return mapped


def stored_form(source: dict[str, Any], semantic: Mapping[str, SemanticField]) -> dict[str, Any]:
    """Return a document as an index with these fields keeps it: with `semantic` ones OpenSearch makes `a.b` a
    `b` inside `a`, and loses values of fields that a document has in both forms; here none is lost.
    """
    unfolds = any(field.type == OPENSEARCH for field in semantic.values())
    return unfolded_object(source.items()) if unfolds else source


def unfolded(value: Any) -> Any:
    """Return a value in which names of objects have no dots."""
    if isinstance(value, list):
        return [unfolded(item) for item in value]
    return unfolded_object(value.items()) if isinstance(value, dict) else value


def unfolded_object(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Join the values of names that begin alike: objects to one, others to a list, as they are indexed."""
    grouped: dict[str, list[Any]] = {}
    for name, value in pairs:
        first, _, rest = name.partition(".") if all(name.split(".")) else (name, "", "")
        grouped.setdefault(first, []).append({rest: value} if rest else value)
    whole = {}
    for name, values in grouped.items():
        if all(isinstance(value, dict) for value in values):
            whole[name] = unfolded_object(pair for value in values for pair in value.items())
        else:
            whole[name] = unfolded(values if len(values) > 1 else values[0])
    return whole


def embedded_texts(source: Any, name: str, field: SemanticField) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield each text of a field of OpenSearch in a stored document, with what its model left beside it."""
    *path, text_key = name.split(".")
    stored_key = field.stored.rpartition(".")[2]
    for holder in objects_at(source, path):
        if isinstance(text := holder.get(text_key), str) and text.strip():
            yield text, holder.get(stored_key) or {}


def embedding_model_id(stored: Mapping[str, Any]) -> str | None:
    """Return the id of the model that embedded a text, from what stands beside it; None if nothing did."""
    has_embedding = stored.get("embedding") or stored.get("chunks")
    return stored.get("model", {}).get("id") if has_embedding else None


def objects_at(value: Any, path: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield the objects at a path, those in lists too."""
    if isinstance(value, list):
        for item in value:
            yield from objects_at(item, path)
    elif isinstance(value, dict) and path:
        yield from objects_at(value.get(path[0]), path[1:])
    elif isinstance(value, dict):
        yield value
