from __future__ import annotations

import pytest

from hybridr.cluster.embedded import configuration
from hybridr.cluster.settings import NodeSettings


@pytest.mark.parametrize(("limit", "is_off"), [("1024\n", True), ("65530\n", False), (None, False)])
def test_few_memory_maps_switch_mapping_off(limit: str | None, is_off: bool, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(configuration, "MAP_LIMIT", tmp_path / "max_map_count")
    if limit:
        (tmp_path / "max_map_count").write_text(limit)
    values = configuration.node_settings(NodeSettings(), tmp_path, 9200)
    assert ("node.store.allow_mmap" in values) is is_off
