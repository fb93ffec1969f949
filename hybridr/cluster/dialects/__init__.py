"""Dialects: how hybridr's requests in OpenSearch's REST API are translated for each product, one file each.

All code outside `cluster` uses OpenSearch's requests and answers. A dialect translates both for its product,
and raises ClusterError for features that the product lacks.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple, Protocol, TypeAlias

from ...errors import ClusterError
from ...families import load_member
from ..failures import reading_answer, shortened

Version: TypeAlias = tuple[int, int, int]
OLDEST: Version = (2, 19, 0)
OLDEST_OTHER: Version = (8, 12, 0)  # older versions of Elasticsearch have no `knn` query
NO_ANSWER = {400, 404, 405}  # to `GET /`, which the core of Elasticsearch lacks
TAGLINE = "You Know, for Search"
NODES = "/_nodes/_local/none"


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


def identify_product(
    ask: Callable[[], Any], send: Callable[[str], Any], url: str
) -> tuple[dict[str, Any], Dialect]:
    """Return the answer of `GET /` and the dialect of the product at a url.

    `ask` sends `GET /`, `send` gets another path. Raises ClusterError if neither product answers, or if its
    version is too old.
    """
    info: dict[str, Any] = {}
    try:
        info = ask()
    except ClusterError as error:
        if error.status not in NO_ANSWER:
            raise
    if info and info.get("tagline") != TAGLINE:
        product, oldest, dialect = "OpenSearch", OLDEST, "plain"
        entry = info.get("version") if isinstance(info, dict) else None
        entry = entry if isinstance(entry, dict) else {}
        if entry.get("distribution") != "opensearch":
            number = entry.get("number")
            description = f"version {shortened(number)} of another product" if number else "something else"
            raise ClusterError(f"{url} answers, but it is {description}, not OpenSearch", hint="check --url")
    else:
        product, oldest, dialect = "Elasticsearch", OLDEST_OTHER, "elastic"
        if not info:  # ask the node itself for its version
            try:
                answer = send(NODES)
            except ClusterError as error:
                problem = f"{url} answers, but it is not OpenSearch: {error.message}"
                raise ClusterError(problem, hint="check --url") from None
            with reading_answer(url, NODES):
                [node] = answer["nodes"].values()
                info = {"cluster_name": answer["cluster_name"], "version": {"number": node["version"]}}
    version = version_in(info, url)
    if version < oldest:
        minimum, number = ".".join(map(str, oldest[:2])), ".".join(map(str, version))
        raise ClusterError(
            f"{product} {number} at {url}; hybridr needs {minimum} or newer",
            hint="upgrade the cluster, or try it out with: hybridr node start",
        )
    return info, load_member("cluster.dialects", dialect)(version)


def version_in(info: Any, url: str) -> Version:
    """Return the version in an answer to `GET /`, such as `3.6.0` or `3.6.0-SNAPSHOT`, as three numbers."""
    with reading_answer(url, "GET /"):
        parts = [int(part) for part in re.findall(r"\d+", info["version"]["number"])[:3]]
        return (*parts, 0, 0, 0)[:3]  # type: ignore[return-value]
