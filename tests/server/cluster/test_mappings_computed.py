"""Fields that a search computes: runtime fields of Elasticsearch, derived fields of OpenSearch."""

from __future__ import annotations

from typing import Any

import pytest

from hybridr import ReindexSettings
from hybridr.cluster.connection import Cluster, path_of
from hybridr.indexing.reindexing import reindex, sync
from hybridr.indexing.rollback import rollback
from hybridr.indexing.verification import verify
from hybridr.status.standing import status
from support.corpus import create, put, text_number
from support.hashing import HashingEncoder

pytestmark = [pytest.mark.node, pytest.mark.elastic]
TEXT = ReindexSettings(fields=("text",))


class Computing:
    """An index of a product with a computed field `x-code`, and its alias with vectors."""

    def __init__(self, cluster: Cluster, index: str) -> None:
        self.cluster, self.index = cluster, index
        self.is_elastic = cluster.dialect.name != "plain"
        self.section = "runtime" if self.is_elastic else "derived"
        create(cluster, index, {"text": {"type": "text"}}, dynamic="false", **self.computed("code"))
        documents = {f"d{n}": {"text": text_number(n), "code": f"v{n % 3}", "kind": "v1"} for n in range(9)}
        put(cluster, index, documents)
        reindex(cluster, index, HashingEncoder(), TEXT)

    def computed(self, name: str) -> dict[str, Any]:
        """The mapping of a computed field, with the value of a plain one: by its name, or by a script."""
        script = {"script": {"source": f"emit(params._source['{name}'])"}}
        return {self.section: {self.called(name): {"type": "keyword", **({} if self.is_elastic else script)}}}

    def called(self, name: str) -> str:
        return name if self.is_elastic else f"x-{name}"

    def add(self, index: str, name: str) -> None:
        self.cluster.request("PUT", path_of(index, "_mapping"), self.computed(name))

    def hits(self, name: str) -> list[int]:
        """How many documents the index and the alias find by a computed field."""
        query = {"query": {"term": {self.called(name): "v1"}}}
        places = (self.index, f"{self.index}-hybridr")
        return [self.cluster.search(place, query)["hits"]["total"]["value"] for place in places]


def test_a_computed_field_finds_the_same_through_the_alias(product: Cluster, name: str) -> None:
    """Before, one that was added later found nothing there, and no verb knew of it."""
    there = Computing(product, name)
    assert there.hits("code") == [3, 3]
    there.add(name, "kind")
    assert there.hits("kind") == [9, 0]
    (held,) = status(product, name).holdings
    assert held.unlike == (there.called("kind"),)
    assert not verify(product, name, HashingEncoder()).ok
    assert sync(product, name, HashingEncoder()).unlike == ()
    assert there.hits("kind") == [9, 9]
    assert verify(product, name, HashingEncoder()).ok


def test_a_computed_field_of_clients_goes_on_with_what_they_wrote(product: Cluster, name: str) -> None:
    """They have given it to the index behind the alias."""
    there = Computing(product, name)
    there.add(f"{name}-hybridr", "kind")
    put(product, f"{name}-hybridr", {"late": {"text": text_number(20), "kind": "v1"}})
    assert reindex(product, name, HashingEncoder(salt="other"), TEXT).destination == f"{name}-hybridr-2"
    assert there.hits("kind") == [0, 10]
    there.add(f"{name}-hybridr", "code")
    rollback(product, name, copy_back=True)
    assert there.hits("kind") == [10, 10]
