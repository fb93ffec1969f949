"""Dialects: how hybridr's requests in OpenSearch's REST API are translated for each product, one file each.

All code outside `cluster` uses OpenSearch's requests and answers. A dialect translates both for its product,
and raises ClusterError for features that the product lacks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple, Protocol, TypeAlias

from ...errors import ClusterError

Version: TypeAlias = tuple[int, int, int]


class ApiRequest(NamedTuple):
    """An HTTP request: `body` is an object, lines of JSON as bytes, or None."""

    method: str
    path: str
    body: Any
    params: Mapping[str, Any] | None


class Dialect(Protocol):
    """Translation of OpenSearch's REST requests and answers for one product.

    `like` is the version of OpenSearch whose requests the product understands (None: its own version).
    `lacking` maps features that the product lacks to a message. `most_dimensions` is the largest dimension of
    a vector. `has_parts` says whether vectors need a plugin that nodes list. BM25 scores have Lucene's old
    factor k1 + 1 before the version `plain_scores` (None: in all versions).
    """

    name: ClassVar[str]
    product: ClassVar[str]
    most_dimensions: ClassVar[int]
    has_parts: ClassVar[bool]
    plain_scores: ClassVar[Version | None]
    like: ClassVar[Version | None] = None
    lacking: ClassVar[Mapping[str, str]] = {}

    def __init__(self, version: Version) -> None:
        """Make the dialect for this version of the product."""

    def require(self, *features: str | None) -> None:
        """Raise ClusterError if the product lacks one of these features (commands, options or values)."""
        for feature in features:
            if feature and feature in self.lacking:
                raise ClusterError(self.lacking[feature], hint="docs/elasticsearch.md says what works where")

    def translated_request(self, request: ApiRequest) -> ApiRequest:
        """Return a request of OpenSearch's API as the product understands it.

        Raises NotFound for an API that the product lacks, ClusterError for such a query or field.
        """
        return request

    def translated_answer(self, request: ApiRequest, answer: Any) -> Any:
        """Return the product's answer to a request in the form that OpenSearch would give."""
        return answer
