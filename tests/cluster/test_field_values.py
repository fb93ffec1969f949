"""The values of documents as they come, as texts or with their names."""

from __future__ import annotations

from typing import Any

import pytest

from hybridr.cluster.field_values import leaf_values, text_of


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ({"text": "half \ud83d of one"}, "half \ufffd of one"),
        ({"text": ["\udc00", "a\udfffb"]}, "\ufffd a\ufffdb"),
        ({"text": "whole \U0001f600 日本語"}, "whole \U0001f600 日本語"),
        ({"text": None}, ""),
    ],
)
def test_half_a_character_becomes_a_sign_that_encoders_read(source: dict[str, Any], expected: str) -> None:
    found = text_of(source, ["text"])
    assert (found, found.encode().decode()) == (expected, found)


def test_a_dot_in_a_name_is_an_object_for_the_cluster_and_here() -> None:
    """Before, a text below a name with a dot was none, and the document stayed without a vector."""
    forms: list[dict[str, Any]] = [
        {"a": {"b": {"c": "anchor"}}},
        {"a.b.c": "anchor"},
        {"a.b": {"c": "anchor"}},
        {"a": {"b.c": "anchor"}},
        {"a": [{"b": [{"c": ["anchor"]}]}, {"x": 1}]},
    ]
    assert {text_of(form, ["a.b.c"]) for form in forms} == {"anchor"}
    assert text_of({"a.b": {"c": "anchor"}, "a": {"b.c": "basket"}}, ["a.b.c"]) == "basket anchor"
    assert text_of({"a": "no object", "a.bc": "x", "a.b": None}, ["a.b.c"]) == ""


def test_values_of_lists_objects_and_dotted_names() -> None:
    source = {"a": {"b": ["x", {"c": 1}], "n": None}, "d.e": True, "f": []}
    assert list(leaf_values(source)) == [("a.b", "x"), ("a.b.c", 1), ("d.e", True)]
