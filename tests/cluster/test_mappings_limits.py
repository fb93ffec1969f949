"""Limits by the settings that an index or a cluster tells, without a cluster."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from hybridr.cluster.failures import error_from_answer
from hybridr.cluster.mappings import (
    FIELD_NAME_LENGTH,
    MAPPING_DEPTH,
    NESTED_FIELDS,
    NESTED_OBJECTS,
    RESULT_WINDOW,
    TOTAL_FIELDS,
    Shards,
    block_obstacles,
    cluster_obstacles,
    copies_per_shard,
    index_limit,
    mapping_obstacles,
    mapping_size,
    raised_limits,
    require_no_obstacle,
    rescore_window,
    script_obstacles,
    shard_obstacles,
)
from hybridr.cluster.record import IndexInfo
from hybridr.errors import ClusterError

KEYWORD: dict[str, Any] = {"type": "keyword"}
VECTOR = {"hybridr_vector": {"type": "knn_vector", "dimension": 4}, "hybridr_encoder": KEYWORD}
ALLOWED = ("script.allowed_types", "script.allowed_contexts")
PASSAGES = {"hybridr_passages": {"type": "nested", "properties": VECTOR}}


def index(fields: dict[str, Any] | None = None, **settings: str) -> IndexInfo:
    flat = {f"index.{name}": value for name, value in settings.items()}
    return IndexInfo("docs", flat, {"properties": fields or {"title": KEYWORD}}, {})


def test_a_mapping_is_counted_as_the_engine_counts_it() -> None:
    fields = {
        "title": {"type": "text", "fields": {"keyword": KEYWORD}},
        "other": {"type": "alias", "path": "title"},
        "author": {
            "properties": {"name": KEYWORD, "places": {"type": "nested", "properties": {"city": KEYWORD}}}
        },
    }
    limits = (TOTAL_FIELDS, NESTED_FIELDS, MAPPING_DEPTH, FIELD_NAME_LENGTH)
    for properties, counts in ((fields, (7, 1, 3, 7)), ({}, (0, 0, 0, 0)), ({"a.b": KEYWORD}, (2, 0, 2, 1))):
        assert mapping_size(properties) == dict(zip(limits, counts, strict=True))
    whole_names = mapping_size({"a.b": KEYWORD}, is_stored=True)
    assert whole_names == dict(zip(limits, (1, 0, 1, 3), strict=True)), "as `subobjects: false` leaves them"


def test_a_limit_is_the_index_s_own_or_the_default() -> None:
    assert index_limit(index(), RESULT_WINDOW) == 10_000
    assert rescore_window(index()) == 10_000
    assert rescore_window(index(max_result_window="40")) == 40, "follows the other by default"
    assert rescore_window(index(max_result_window="40", max_rescore_window="50")) == 50


@pytest.mark.parametrize(
    ("settings", "added", "nested_objects", "raised"),
    [
        ({}, VECTOR, 0, {}),
        ({"mapping.total_fields.limit": "1"}, VECTOR, 0, {TOTAL_FIELDS: "3"}),
        ({"mapping.total_fields.limit": "30"}, VECTOR, 0, {TOTAL_FIELDS: "32"}),
        ({"mapping.nested_fields.limit": "0"}, PASSAGES, 0, {NESTED_FIELDS: "1"}),
        ({"mapping.depth.limit": "1"}, PASSAGES, 0, {MAPPING_DEPTH: "2"}),
        ({"mapping.depth.limit": "5"}, PASSAGES, 0, {}),
        ({"mapping.field_name_length.limit": "12"}, VECTOR, 0, {FIELD_NAME_LENGTH: "15"}),
        ({"mapping.nested_objects.limit": "3"}, PASSAGES, 64, {NESTED_OBJECTS: "67"}),
        ({}, PASSAGES, 64, {}),
    ],
)
def test_what_is_added_is_added_to_a_copied_limit(settings, added, nested_objects, raised):
    assert raised_limits(index(**settings), None, added, nested_objects) == raised


@pytest.mark.parametrize("section", ["runtime", "derived"])
def test_fields_that_searches_compute_count_too(section: str) -> None:
    computed = {f"c{number}": KEYWORD for number in range(998)}
    full = replace(index(), mappings={**index().mappings, section: computed})
    assert raised_limits(full, None, VECTOR) == {TOTAL_FIELDS: "1002"}
    assert [obstacle.setting for obstacle in mapping_obstacles(full, VECTOR)] == [TOTAL_FIELDS]


def test_a_limit_below_what_the_source_has_is_no_model() -> None:
    """It was lowered later: the copy needs room for all fields."""
    fields = {f"f{number}": KEYWORD for number in range(9)}
    assert raised_limits(index(fields, **{"mapping.total_fields.limit": "5"}), None, VECTOR) == {
        TOTAL_FIELDS: "11"
    }


def test_a_copy_follows_a_limit_that_its_source_raised() -> None:
    source, low, high = (index(**{"mapping.total_fields.limit": most}) for most in ("50", "22", "52"))
    assert raised_limits(source, low, VECTOR) == {TOTAL_FIELDS: "52"}
    assert raised_limits(source, high, VECTOR) == {}
    assert raised_limits(index(), index(), VECTOR) == {}, "defaults on both sides: nothing to send"


def test_fields_in_place_need_room_under_each_limit() -> None:
    limits = {"total_fields": "2", "field_name_length": "14", "depth": "1"}
    tight = index({"title": KEYWORD}, **{f"mapping.{name}.limit": value for name, value in limits.items()})
    found = {obstacle.setting: obstacle for obstacle in mapping_obstacles(tight, VECTOR)}
    assert found.keys() == {TOTAL_FIELDS, FIELD_NAME_LENGTH}
    assert found[TOTAL_FIELDS].remedy == 'PUT /docs/_settings {"index.mapping.total_fields.limit": 3}'
    there = index({"title": KEYWORD, **VECTOR}, **{"mapping.total_fields.limit": "3"})
    assert mapping_obstacles(there, VECTOR) == []
    over = index({"a": KEYWORD, "b": KEYWORD}, **{"mapping.total_fields.limit": "1"})
    assert [obstacle.setting for obstacle in mapping_obstacles(over, {})] == [TOTAL_FIELDS]


def test_every_obstacle_is_named_at_once() -> None:
    blocked = index(**{"blocks.read_only": "true", "blocks.read": "true", "blocks.write": "false"})
    with pytest.raises(ClusterError) as refused:
        require_no_obstacle(block_obstacles(blocked, ("read_only", "read", "write")), "the work")
    assert "index.blocks.read_only is true" in refused.value.message
    assert "index.blocks.read is true" in refused.value.message
    assert 'PUT /docs/_settings {"index.blocks.read": null}' in (refused.value.hint or "")
    require_no_obstacle([], "the work")


@pytest.mark.parametrize("name", ["read_only", "read_only_allow_delete", "create_index"])
def test_a_blocked_cluster(name: str) -> None:
    settings = {f"cluster.blocks.{name}": "true"}
    assert [one.setting for one in cluster_obstacles(settings, creates=True)] == [f"cluster.blocks.{name}"]
    inside = cluster_obstacles(settings, creates=False)
    assert bool(inside) == (name != "create_index"), "in place no index is made"


PER_NODE, ENABLE = "max_shards_per_node", "routing.allocation.enable"
TOTAL = "routing.allocation.total_shards_per_node"


@pytest.mark.parametrize(
    ("settings", "index_settings", "primaries", "added", "refused"),
    [
        ({}, {}, 1, 2, False),
        ({PER_NODE: "5"}, {}, 1, 2, False),
        ({PER_NODE: "4"}, {}, 1, 2, True),
        ({PER_NODE: "1"}, {}, 0, 0, False),
        ({TOTAL: "4"}, {}, 2, 2, True),
        ({TOTAL: "-1"}, {}, 9, 9, False),
        ({ENABLE: "none"}, {}, 1, 1, True),
        ({ENABLE: "primaries"}, {}, 1, 1, False),
        ({}, {ENABLE: "none"}, 1, 1, True),
        ({ENABLE: "none"}, {ENABLE: "all"}, 1, 1, False),
    ],
)
def test_shards_that_a_cluster_would_not_take(settings, index_settings, primaries, added, refused):
    """Two data nodes with 8 shards, 7 of them held by a node."""
    of_cluster = {f"cluster.{name}": value for name, value in settings.items()}
    of_index = {f"index.{name}": value for name, value in index_settings.items()}
    obstacles = shard_obstacles(of_cluster, Shards(8, 7, 2), of_index, primaries, added)
    named = [*(of_index or of_cluster)] if refused else []
    assert [obstacle.setting for obstacle in obstacles] == named


def test_copies_of_each_shard() -> None:
    assert copies_per_shard({"index.number_of_replicas": "2"}) == 3
    assert copies_per_shard({"index.number_of_replicas": "2", "index.auto_expand_replicas": "false"}) == 3
    assert copies_per_shard({"index.number_of_replicas": "2", "index.auto_expand_replicas": "0-all"}) == 1


@pytest.mark.parametrize(
    ("reason", "hint"),
    [
        ("Limit of total fields [20] has been exceeded", "index.mapping.total_fields.limit"),
        ("Limit of nested fields [0] has been exceeded", "index.mapping.nested_fields.limit"),
        ("Limit of mapping depth [1] has been exceeded due to object field [o]", "index.mapping.depth.limit"),
        ("Field name [abcd] is longer than the limit of [3] characters", "field_name_length"),
        (
            "Validation Failed: 1: this action would add [1] shards, but this cluster currently has [5]/[1] "
            "maximum normal shards open;",
            "cluster.max_shards_per_node",
        ),
        (
            "Keep alive for request (10m) is too large. It must be less than (5m). This limit can be set by "
            "changing the [search.max_keep_alive] cluster level setting.",
            "PUT /_cluster/settings",
        ),
        (
            "Trying to retrieve too many docvalue_fields. Must be less than or equal to: [0] but was [1]. "
            "This limit can be set by changing the [index.max_docvalue_fields_search] index level setting.",
            "PUT /INDEX/_settings",
        ),
        ("index [p] blocked by: [FORBIDDEN/5/read-only];", 'PUT /p/_settings {"index.blocks.read_only"'),
        ("index [p] blocked by: [FORBIDDEN/7/index read (api)];", '{"index.blocks.read": null}'),
        ("index [p] blocked by: [FORBIDDEN/8/index write (api)];", "index.blocks.write"),
        ("index [p] blocked by: [FORBIDDEN/9/index metadata (api)];", "index.blocks.metadata"),
        ("blocked by: [FORBIDDEN/6/cluster read-only (api)];", "cluster.blocks.read_only"),
        ("blocked by: [FORBIDDEN/13/cluster read-only / allow delete (api)];", "read_only_allow_delete"),
        ("blocked by: [FORBIDDEN/10/cluster create-index blocked (api)];", "cluster.blocks.create_index"),
    ],
)
def test_what_a_server_says_of_a_limit_comes_with_what_to_type(reason: str, hint: str) -> None:
    error = error_from_answer(400, {"type": "illegal_argument_exception", "reason": reason})
    assert hint in (error.hint or "")


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"script.allowed_types": [], "script.allowed_contexts": []}, []),
        ({"script.allowed_types": ["inline"], "script.allowed_contexts": ["search", "update"]}, []),
        ({"script.allowed_types": ["none"]}, ["script.allowed_types"]),
        ({"script.allowed_types": ["stored"], "script.allowed_contexts": ["none"]}, [*ALLOWED]),
    ],
)
def test_scripts_that_take_vectors_out_again(settings: dict[str, Any], named: list[str]) -> None:
    assert [one.setting for one in script_obstacles(settings)] == named
