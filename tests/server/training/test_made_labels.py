"""Labels made from an index on a real node: queries of its documents, found again, and a REM of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import hybridr_cli
from hybridr.cluster.connection import Cluster
from hybridr.errors import DataError
from hybridr.files.formats import read_lines
from hybridr.files.remembered import texts
from hybridr.training import generating
from hybridr.training.made_labels import FOUND_AMONG, LabelSource, make_labels
from support.corpus import fill_index, text_number
from support.dam_training import tiny_dam
from support.pairs import exported

pytestmark = pytest.mark.node


@pytest.fixture
def source(cluster: Cluster, index_name: str) -> str:
    fill_index(cluster, index_name, 60)
    return index_name


def test_queries_of_documents_find_them_again(cluster: Cluster, source: str, tmp_path: Path) -> None:
    made = make_labels(cluster, source, LabelSource(tmp_path / "made", 30, 5))
    assert 10 <= len(made.judgements.queries) <= 30
    for query_id, (own,) in made.judgements.positives.items():
        number = int(own[1:])
        assert {*made.judgements.queries[query_id].lower().split()} <= {*text_number(number).split()}
    for _, line in read_lines(made.negatives):
        query_id, _, listed = line.partition("\t")
        assert len(listed.split()) <= 5
        assert made.judgements.positives[query_id][0] not in listed.split()
    assert str(tmp_path / "made") in {str(one.path) for one in texts(source)}
    before = made.negatives.stat().st_mtime_ns
    assert (
        make_labels(cluster, source, LabelSource(tmp_path / "made", 30, 5)).negatives.stat().st_mtime_ns
        == before
    )


def test_a_log_takes_its_best_hits_and_a_generator_what_finds_its_text(
    cluster: Cluster, source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tuple(text_number(number)[:20] for number in range(12))
    found = make_labels(cluster, source, LabelSource(tmp_path / "log", 30, 5, log=log)).judgements
    assert [*found.queries.values()] == [*log]

    class Written:
        fingerprint = "f"

        def __init__(self, folder: Path) -> None:
            pass

        def queries(self, texts: Any, part: Path, seed: int, progress: Any) -> list[list[str]]:
            return [[text, "no such words"] for text in texts]

    monkeypatch.setattr(generating, "QueryWriter", Written)
    made = make_labels(cluster, source, LabelSource(tmp_path / "t5", 60, 5, generator=tmp_path)).judgements
    assert "no such words" not in made.queries.values(), "no hit, so it does not find its document again"
    assert len(made.queries) == 20
    monkeypatch.setattr(Written, "queries", lambda self, texts, *_: [["no such words"]] * len(texts))
    with pytest.raises(DataError, match=f"0 of 20 queries find their document again among {FOUND_AMONG}"):
        make_labels(cluster, source, LabelSource(tmp_path / "t5", 60, 6, generator=tmp_path))


def test_the_command_trains_by_a_teacher_without_labels(
    cluster: Cluster, source: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = tmp_path / "hybridr.toml"
    settings.write_text("[rem]\nmined = 4\nmax_queries = 20\nrank = 4\nnegatives_per_query = 2\n")
    words = ["rem", "train", "--dam", str(tiny_dam(tmp_path / "dam")), "--loss", "distil", "--steps", "2"]
    words += ["--teacher", str(exported()), "--index", source, "--out", str(tmp_path / "rem")]
    words += ["--batch-size", "4", "--json", "--url", cluster.url, "--config", str(settings)]
    assert hybridr_cli.main(words) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["steps"] == 2
    assert told["queries"] >= 10
    assert hybridr_cli.main(words) == 0
    assert json.loads(capsys.readouterr().out)["reused"]
