"""Which settings of an index its copy gets."""

from __future__ import annotations

from hybridr.cluster.record import IndexInfo
from hybridr.indexing.preflight import copied_settings, differing_settings, settings_not_copied

CHOSEN = {
    "index.number_of_shards": "3",
    "index.number_of_replicas": "2",
    "index.analysis.analyzer.mine.type": "custom",
    "index.similarity.default.type": "LMDirichlet",
    "index.sort.field": "day",
    "index.mapping.total_fields.limit": "2000",
    "index.mapping.nested_objects.limit": "9",
    "index.max_ngram_diff": "20",
    "index.max_result_window": "50000",
    "index.query.default_field": ["title"],
    "index.routing_partition_size": "2",
    "index.knn.algo_param.ef_search": "512",
    "index.routing.allocation.require.box_type": "hot",
    "index.search.default_pipeline": "mine",
}
FOREIGN_NAMES = """
    remote_store.enabled remote_store.segment.repository plugins.replication.follower.leader_index
    plugins.index_state_management.rollover_alias plugins.index_state_management.policy_id
    opendistro.index_state_management.rollover_alias store.type blocks.write append_only.enabled
    derived_source.enabled routing.allocation.initial_recovery._id whatever.comes.next"""
FOREIGN = {f"index.{name}": "true" for name in FOREIGN_NAMES.split()} | {"index.replication.type": "SEGMENT"}
SERVERS_NAMES = "uuid creation_date provided_name version.created history.uuid resize.source.name knn"
SERVERS = {f"index.{name}": "true" for name in SERVERS_NAMES.split()}


def test_what_decides_what_an_index_finds_is_copied_and_nothing_else() -> None:
    found = copied_settings({**CHOSEN, **FOREIGN, **SERVERS})
    assert found == {name.removeprefix("index."): value for name, value in CHOSEN.items()}


def test_what_its_owner_gave_it_and_stays_behind_is_named() -> None:
    told = settings_not_copied({**CHOSEN, **FOREIGN, **SERVERS})
    assert told == sorted(name.removeprefix("index.") for name in FOREIGN)
    assert settings_not_copied({**CHOSEN, **SERVERS, "index.replication.type": "DOCUMENT"}) == []


def test_only_what_somebody_changed_differs() -> None:
    def differing(copy: dict[str, str], source: dict[str, str]) -> list[str]:
        copied, original = (IndexInfo("docs", settings, {}, {}) for settings in (copy, source))
        return differing_settings(copied, original)

    floor, merged = "index.merge.policy.floor_segment", "index.merge.policy.max_merge_at_once"
    plugins = {floor: "2mb", merged: "10"}
    assert differing(CHOSEN | plugins, CHOSEN) == [], "the k-NN plugin gives them to each of its indices"
    assert differing(CHOSEN | plugins | {merged: "20"}, CHOSEN) == [merged]
    assert differing(CHOSEN | plugins, CHOSEN | {floor: "4mb"}) == [floor]
    assert differing(CHOSEN, CHOSEN | plugins) == [floor, merged]
    assert differing({**CHOSEN, "index.max_ngram_diff": "9"}, CHOSEN) == ["index.max_ngram_diff"]
