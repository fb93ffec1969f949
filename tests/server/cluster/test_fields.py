"""The choice of text fields on a real node."""

from __future__ import annotations

import pytest

from hybridr.cluster.connection import Cluster
from hybridr.cluster.fields import choose_text_fields
from hybridr.diagnosis.inspection import inspect_index
from hybridr.errors import DataError
from support.books import make

pytestmark = pytest.mark.node


def test_fields_are_chosen_by_name_or_contents(cluster: Cluster, books: str) -> None:
    assert choose_text_fields(cluster, cluster.index_info(books)) == (
        "headline",
        "book.body",
        "comments.words",
    )
    assert choose_text_fields(cluster, cluster.index_info(books), ("book.body",)) == ("book.body",)
    with pytest.raises(DataError, match="has no field 'nothing'"):
        choose_text_fields(cluster, cluster.index_info(books), ("nothing",))


def test_a_field_that_is_not_mapped_can_be_named(cluster: Cluster, index_name: str) -> None:
    documents = [{"title": "a b c", "hidden": {"text": "words in the dark"}}]
    make(cluster, index_name, documents, dynamic="false", properties={"title": {"type": "text"}})
    assert choose_text_fields(cluster, cluster.index_info(index_name), ("hidden.text",)) == ("hidden.text",)
    assert inspect_index(cluster, index_name, fields=("hidden.text",)).lengths.median == 4
