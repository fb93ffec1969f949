"""Dialects: how a product is spoken to by who knows OpenSearch's REST API alone, one file each.

Above `cluster` every request is written, and every answer read, as OpenSearch has it. What another product
calls otherwise is translated here, on the way out and in; what it lacks is refused in its own name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple, Protocol, TypeAlias

from ...errors import ClusterError

Version: TypeAlias = tuple[int, int, int]


class Sent(NamedTuple):
    """A request: `body` is an object, lines of JSON as bytes, or None."""

    method: str
    path: str
    body: Any
    params: Mapping[str, Any] | None


class Dialect(Protocol):
    """How one product is spoken to.

    `like` is the version of OpenSearch that understands the same requests, None for its own; `lacking` says
    of verbs, options and values why the product has no such thing. `most_dimensions` is what a vector may
    have, `has_parts` says that vectors come by a plugin, which nodes name. Before the version `plain_scores`
    BM25 has Lucene's old factor, k1 + 1; None: in all versions.
    """

    name: ClassVar[str]
    product: ClassVar[str]
    most_dimensions: ClassVar[int]
    has_parts: ClassVar[bool]
    plain_scores: ClassVar[Version | None]
    like: ClassVar[Version | None] = None
    lacking: ClassVar[Mapping[str, str]] = {}

    def __init__(self, version: Version) -> None:
        """Speak to this version of the product."""

    def require(self, *features: str | None) -> None:
        """Raise ClusterError for the first of these verbs, options or values that the product lacks."""
        for feature in features:
            if feature and feature in self.lacking:
                raise ClusterError(self.lacking[feature], hint="docs/elasticsearch.md says what works where")

    def sent(self, request: Sent) -> Sent:
        """Translate a request of OpenSearch's API into the product's.

        Raise NotFound for a path that it cannot have, and ClusterError for what it lacks inside a body.
        """
        return request

    def answered(self, request: Sent, answer: Any) -> Any:
        """Translate the product's answer to a request into the form of OpenSearch's."""
        return answer
