"""`hybridr tune --reset` on a real node: everything that was tuned is as before."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import hybridr_cli
from hybridr import Search, SearchSettings
from hybridr.cluster.connection import Cluster, path_of
from hybridr.cluster.destinations import resolve, write_record
from hybridr.cluster.similarities import Similarity, similarity_of
from hybridr.errors import ClusterError
from hybridr.files import remembered
from hybridr.reindexing.reindexing import reindex
from hybridr.tuning.tuning import change_similarity
from support.corpus import fill_index, text_number
from support.hashing import HashingEncoder

pytestmark = pytest.mark.node


def test_all_that_was_tuned_is_taken_back(cluster: Cluster, index_name: str, capsys: Any) -> None:
    fill_index(cluster, index_name, 30)
    reindex(cluster, index_name, HashingEncoder())
    info = resolve(cluster, index_name)
    tuned, before = Similarity(0.6, 0.3), similarity_of(info)
    first = Search(cluster, index_name, HashingEncoder())(text_number(7))
    change_similarity(cluster, info.name, tuned)
    found = {"fusion": "absolute", "dense_weight": 0.3}
    bm25 = tuned._asdict() | {"before": before._asdict()}
    write_record(cluster, info.name, tuning={"search": found, "pipeline": found, "bm25": bm25})
    command = ["tune", index_name, "--reset", "--url", cluster.url]

    assert hybridr_cli.main([*command, "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert "search, pipeline, bm25: would be taken back" in said
    assert f"POST /{info.name}/_close" in said
    assert resolve(cluster, index_name).record.tuning is not None
    assert Search(cluster, index_name, HashingEncoder()).settings.dense_weight == 0.3

    assert hybridr_cli.main(command) == 0
    assert "search, pipeline, bm25: taken back" in capsys.readouterr().out
    after = resolve(cluster, index_name)
    assert after.record.tuning is None
    assert similarity_of(after) == before
    assert after.record.history[-1]["event"] == "untuned"
    again = Search(cluster, index_name, HashingEncoder())(text_number(7))
    assert [(hit.doc_id, hit.score) for hit in again] == [(hit.doc_id, hit.score) for hit in first]

    assert hybridr_cli.main([*command, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["tuned"] is None


def test_a_query_map_of_an_older_hybridr_ranks_nothing_and_is_taken_back(
    cluster: Cluster, index_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """Whether it stands alone in the record or beside what is still in use, its folder is not looked at."""
    monkeypatch.setattr(remembered, "state_folder", lambda: tmp_path)
    (tmp_path / "map").mkdir()
    (tmp_path / "map" / "query_map.safetensors").write_bytes(b"a matrix")
    (tmp_path / "encoders.json").write_text(json.dumps({f"map-{'f' * 64}": str(tmp_path / "map")}))
    fill_index(cluster, index_name, 30)
    reindex(cluster, index_name, HashingEncoder())
    info = resolve(cluster, index_name)
    old = {"query_map": {"fingerprint": "f" * 64, "strength": 0.3}, "pipeline": None, "bm25": None}
    found = {"fusion": "absolute", "dense_weight": 0.3}
    for search, named in ((None, "query_map"), (found, "search, query_map")):
        given = SearchSettings(**(search or {}))
        wanted = Search(cluster, index_name, HashingEncoder(), settings=given)(text_number(7))
        put_tuning(cluster, info.name, {**old, "search": search})
        hits = Search(cluster, index_name, HashingEncoder())(text_number(7))
        assert [(hit.doc_id, hit.score) for hit in hits] == [(hit.doc_id, hit.score) for hit in wanted]
        assert hybridr_cli.main(["tune", index_name, "--reset", "--url", cluster.url]) == 0
        assert f"{info.name}: {named}: taken back" in capsys.readouterr().out
        assert resolve(cluster, index_name).record.tuning is None


def test_an_index_is_open_after_a_change_that_is_refused(cluster: Cluster, index_name: str) -> None:
    fill_index(cluster, index_name, 30)
    reindex(cluster, index_name, HashingEncoder())
    name = resolve(cluster, index_name).name
    with pytest.raises(ClusterError, match="k1"):
        change_similarity(cluster, name, Similarity(-1.0, 0.5))
    assert Search(cluster, name, HashingEncoder())(text_number(7))
    assert similarity_of(resolve(cluster, name)) == Similarity()


def test_a_new_index_has_the_source_s_k1_and_b_and_that_is_told(
    cluster: Cluster, index_name: str, minilm_encoder_folder: Path, capsys: Any
) -> None:
    fill_index(cluster, index_name, 30)
    name = reindex(cluster, index_name, HashingEncoder()).destination
    change_similarity(cluster, name, Similarity(0.4, 0.0))
    write_record(cluster, name, tuning={"bm25": {"k1": 0.4, "b": 0.0}})
    command = ["reindex", index_name, "--encoder", str(minilm_encoder_folder), "--url", cluster.url]
    assert hybridr_cli.main(command) == 0
    assert f"found for '{name}', k1 and b too" in " ".join(capsys.readouterr().out.split())
    assert similarity_of(resolve(cluster, index_name)) == Similarity()
    assert similarity_of(resolve(cluster, name)) == Similarity(0.4, 0.0)


def put_tuning(cluster: Cluster, index: str, tuning: dict[str, Any]) -> None:
    """Write into a record what an older hybridr would have, past all checks of this one."""
    meta = dict(cluster.index_info(index).mappings["_meta"])
    meta["hybridr"] = {**meta["hybridr"], "tuning": tuning}
    cluster.request("PUT", path_of(index, "_mapping"), {"_meta": meta})
