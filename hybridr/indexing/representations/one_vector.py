"""Representation with one vector a document, of as much of its text as the encoder reads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...cluster.connection import Cluster
from ...cluster.dialects import Version
from ...cluster.record import Record
from ...cluster.retrievers.dense import to_stored_values, vector_mapping
from ...cluster.vector_forms import form_of, lacks_native_libraries, require_form
from ...encoders.contract import Encoder, Vectors, offers_of
from ...errors import ClusterError, ModelError
from ..settings import ReindexSettings
from . import EncodedDocument, Representation

MIN_COSINE = 0.98  # of a stored vector with its text encoded again; int8 documents differ by .016


class OneVector(Representation):
    """One vector a document, in a field of its own."""

    name = "one_vector"
    help = "one vector a document"
    setting = "passages"
    compared = "vector"
    freeing = "--vector-field NAME chooses another"
    reads_tokens = False
    staged = ""

    @classmethod
    def is_chosen(cls, named: ReindexSettings | Record) -> bool:
        """Return whether documents are not split."""
        return not named.passages

    @classmethod
    def fields(cls, named: ReindexSettings | Record) -> tuple[str, ...]:
        """Return the name of the vector field."""
        return (named.vector_field,)

    @classmethod
    def check(cls, cluster: Cluster, encoder: Encoder, settings: ReindexSettings) -> None:
        """Raise ClusterError or ModelError for vectors that the cluster cannot store, or no room for text."""
        cluster.dialect.require(settings.engine, settings.vectors)
        require_form(
            form_of(settings), encoder.similarity, cluster.version, bare=lacks_native_libraries(cluster)
        )
        plugins = cluster.installed_parts("plugins")  # none where this user may not know
        if cluster.dialect.has_parts and plugins and "opensearch-knn" not in plugins:
            raise ClusterError("the plugin opensearch-knn is not on every node", hint="hybridr doctor")
        product, limit = cluster.dialect.product, cluster.dialect.most_dimensions
        if encoder.dim > limit:
            raise ModelError(f"the encoder gives {encoder.dim} dimensions, {product} takes at most {limit}")
        if spans := offers_of(encoder).spans:
            spans.room("document", settings.max_tokens)

    @property
    def job(self) -> dict[str, Any]:
        """Return nothing: one vector a document is the default and is not part of a job's fingerprint."""
        return {}

    def mapping(self, version: Version) -> dict[str, Any]:
        """Return the mapping of the vector field."""
        dim, similarity = self.encoder.dim, self.encoder.similarity
        return {self.settings.vector_field: vector_mapping(dim, similarity, self.settings, version)}

    def values(self, encoded: EncodedDocument) -> dict[str, Any]:
        """Return the vector of the document, by field."""
        return {self.settings.vector_field: to_stored_values(encoded.vectors, self.settings.vectors)[0]}

    def fits(self, encoded: EncodedDocument, stored: Any) -> bool:
        """Return whether the stored vector is that of the document's text."""
        return are_near(encoded.vectors, [stored])


def are_near(vectors: Vectors, stored: Sequence[Sequence[float]], min_cosine: float = MIN_COSINE) -> bool:
    """Return whether each of the `vectors` `(n, dim)` has at least `min_cosine` with its stored one."""
    rows = np.array(stored, dtype=np.float32)  # (n, dim)
    lengths = np.linalg.norm(vectors, axis=1) * np.linalg.norm(rows, axis=1)
    cosines = (vectors * rows).sum(axis=1) / np.maximum(lengths, 1e-12)
    return not bool((cosines < min_cosine).any())
