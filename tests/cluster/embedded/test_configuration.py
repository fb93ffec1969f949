from __future__ import annotations

from pathlib import Path

from hybridr.cluster.embedded import configuration


def test_few_memory_maps_switch_mapping_off(tmp_path: Path) -> None:
    limit = tmp_path / "max_map_count"
    limit.write_text("1024\n")
    assert not configuration.maps_suffice(limit)
    limit.write_text("65530\n")
    assert configuration.maps_suffice(limit)
    assert configuration.maps_suffice(tmp_path / "none")
