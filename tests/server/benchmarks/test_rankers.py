"""The study of the five rankers goes from the backbone to an index and its table."""

from __future__ import annotations

import json

import run
from studies import rankers
from support.corpus import drop_indices
from support.tiny_study import write_source_and_target


def test_five_rankers_are_searched_with_either_dam(tmp_path, cluster):
    backbone = write_source_and_target(tmp_path)
    out = tmp_path / "rankers.json"
    command = ["rankers", str(tmp_path), "--form", "seeds", "--backbone", str(backbone), "--url", cluster.url]
    command += ["--work", str(tmp_path / "work"), "--json", str(out)]
    try:
        assert not run.main(command)
        values = json.loads(out.read_text())["sets"]["target"]
        again = (tmp_path / "work").stat().st_mtime_ns
        assert not run.main(command)
        assert (tmp_path / "work").stat().st_mtime_ns == again, "what is there is neither trained nor asked"
    finally:
        drop_indices(cluster, "rankers-*")
    assert values["documents"] == 60
    assert values["bm25"] > 0.5  # each query is the beginning of its document
    for ranker in rankers.RANKERS:
        assert 0 < values[ranker]["source"] <= 1
        assert 0 < values[ranker]["target"] <= 1
    page = rankers.render(json.loads(out.read_text()))
    assert page.count("target's DAM |") == len(rankers.RANKERS)
