"""A hidden index: no pattern of a client stands for it, nor for the copy of it, which is hidden too."""

from __future__ import annotations

import pytest

from hybridr import Search
from hybridr.cluster.connection import Cluster, path_of
from hybridr.indexing.reindexing import reindex, sync
from hybridr.indexing.rollback import rollback
from hybridr.status.standing import remove, status
from support.corpus import fill_index, put_documents, text_number
from support.hashing import HashingEncoder

pytestmark = [pytest.mark.node, pytest.mark.elastic]


@pytest.mark.parametrize(
    ("product", "hidden_at"), [("cluster", "later"), ("elastic", "first")], indirect=["product"]
)
def test_every_verb_sees_hidden_indices(product: Cluster, name: str, hidden_at: str) -> None:
    """Before, a reindex said that somebody had removed the alias, and the next one never ended."""
    encoder, hidden = HashingEncoder(), {"index.hidden": True}
    first = hidden if hidden_at == "first" else {}
    fill_index(product, name, 9, settings={"number_of_replicas": 0, **first})
    assert reindex(product, name, encoder).switched
    if hidden_at == "later":
        for index in (name, f"{name}-hybridr-1"):
            product.request("PUT", path_of(index, "_settings"), hidden)
    assert reindex(product, name, encoder).skipped == 9
    put_documents(product, name, [9])
    assert sync(product, name, encoder).copied == 1
    assert reindex(product, name, HashingEncoder(salt="other")).destination == f"{name}-hybridr-2"
    assert [held.index for held in status(product, name).holdings] == [f"{name}-hybridr-{n}" for n in (1, 2)]
    assert Search(product, name, HashingEncoder(salt="other"))(text_number(9), 3)[0].doc_id == "d9"
    assert rollback(product, name)["to"] == f"{name}-hybridr-1"
    assert len(remove(product, name)["indices"]) == 2
    left = product.request("GET", f"/{name}*", None, {"expand_wildcards": "all"})
    assert (list(left), left[name]["aliases"]) == ([name], {})
