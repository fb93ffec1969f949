"""Which settings of an index its copy gets."""

from __future__ import annotations

from hybridr.indexing.preflight import copied_settings, left_out

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
FOREIGN = {
    "index.remote_store.enabled": "true",
    "index.remote_store.segment.repository": "s3",
    "index.plugins.replication.follower.leader_index": "docs",
    "index.plugins.index_state_management.rollover_alias": "docs",
    "index.plugins.index_state_management.policy_id": "aging",
    "index.opendistro.index_state_management.rollover_alias": "docs",
    "index.store.type": "remote_snapshot",
    "index.blocks.write": "true",
    "index.append_only.enabled": "true",
    "index.derived_source.enabled": "true",
    "index.replication.type": "SEGMENT",
    "index.routing.allocation.initial_recovery._id": "x",
    "index.whatever.comes.next": "1",
}
SERVERS = {
    "index.uuid": "u",
    "index.creation_date": "1",
    "index.provided_name": "docs",
    "index.version.created": "1",
    "index.history.uuid": "h",
    "index.resize.source.name": "old",
    "index.knn": "true",
}


def test_what_decides_what_an_index_finds_is_copied_and_nothing_else() -> None:
    found = copied_settings({**CHOSEN, **FOREIGN, **SERVERS})
    assert found == {name.removeprefix("index."): value for name, value in CHOSEN.items()}


def test_what_its_owner_gave_it_and_stays_behind_is_named() -> None:
    told = left_out({**CHOSEN, **FOREIGN, **SERVERS})
    assert told == sorted(name.removeprefix("index.") for name in FOREIGN)
    assert left_out({**CHOSEN, **SERVERS, "index.replication.type": "DOCUMENT"}) == []
